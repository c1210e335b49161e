"""The report in a real browser: it opens without an error, asks no network, and its map leads to matrices."""

import json

import pytest
from finished import CONFIG, HEADS, LAYERS, SLOTS, averages, learned, page_of, write_results
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

pytestmark = pytest.mark.slow
SIDEWAYS = """
const boxes = [...document.querySelectorAll(innerWidth < 500 ? "html, .wide" : "html")];
return boxes.filter((box) => box.scrollWidth > box.clientWidth).length
"""
DRAWN = "return [...document.images].every((image) => image.complete && image.naturalWidth > 100)"
COLOURS = """
const canvas = document.getElementById("matrix");
return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];
"""


def address(folder, **changes):
    """The address of a report of made-up results, in `folder`."""
    finished = write_results(folder, **changes)
    page_of(finished)
    return (finished.folder / "report/index.html").absolute().as_uri()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return address(tmp_path_factory.mktemp("browser"))


def opened(browser, page, width=1400, theme="light"):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(page)
    return browser


def heads(browser):
    return browser.find_elements(By.CSS_SELECTOR, "#map button")


def text(browser, name):
    return browser.find_element(By.ID, name).text


@pytest.mark.parametrize(("width", "theme"), [(400, "light"), (900, "dark"), (1400, "light")])
def test_the_report_opens_without_an_error_and_asks_no_network(chromium, page, width, theme):
    browser = opened(chromium, page, width, theme)
    assert browser.get_log("browser") == []
    assert browser.title.startswith("made: ")
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert requests
    assert all(url == page or url.startswith("data:") for url in requests)
    assert browser.execute_script(SIDEWAYS) == 0, (
        "only tables scroll sideways, and only on wide screens"
    )
    assert browser.execute_script(DRAWN)
    assert len(heads(browser)) == LAYERS * HEADS
    dark = (
        browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        == "rgb(20, 23, 26)"
    )
    assert dark == (theme == "dark")


def test_a_click_or_an_arrow_chooses_a_head_and_shows_its_matrix(chromium, page):
    browser = opened(chromium, page)
    assert text(browser, "range").startswith("λ started at 0.5 for every head and ended between ")
    first = browser.execute_script(COLOURS)
    assert len(first) == 4 * SLOTS**2
    assert text(browser, "chosen").startswith(f"Layer 0, head 0: λ {learned(0, 0):.3f}.")
    assert first[4 * (2 * SLOTS + 4) :][:4] == [200, 200, 200, 255], (
        "no example has slots 2 and 4 both"
    )
    heads(browser)[HEADS + 2].click()
    assert text(browser, "chosen").startswith(f"Layer 1, head 2: λ {learned(0, HEADS + 2):.3f}.")
    assert browser.execute_script(COLOURS) != first
    for key, layer, head in (
        (Keys.ARROW_DOWN, 2, 2),
        (Keys.ARROW_DOWN, 2, 2),
        (Keys.ARROW_LEFT, 2, 1),
    ):
        ActionChains(browser).send_keys(key).perform()
        assert text(browser, "chosen").startswith(f"Layer {layer}, head {head}")
    assert browser.switch_to.active_element.get_attribute("aria-label").startswith(
        "Layer 2, head 1: λ"
    )
    assert [head.get_attribute("tabindex") for head in heads(browser)].count("0") == 1
    ActionChains(browser).move_to_element(browser.find_element(By.ID, "matrix")).perform()
    middle = SLOTS // 2
    mean = float(averages().mean[2, 1, middle, middle])
    query, _, shown = text(browser, "cell").rpartition(": ")
    assert query == f"Query slot {middle}, key slot {middle}"
    assert float(shown) == pytest.approx(mean, rel=0.02)


def test_constants_that_need_no_text_have_a_map_without_matrices(chromium, tmp_path):
    run = CONFIG["run"] | {"tasks": ["second"], "constants": ["zeros", "identity"]}
    browser = opened(chromium, address(tmp_path, run=run, grids={}))
    assert not browser.find_element(By.ID, "matrix").is_displayed()
    assert browser.get_log("browser") == []
    assert text(browser, "chosen").endswith(
        "What replaces its attention is not an average over texts."
    )
