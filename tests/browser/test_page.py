"""The report in a real browser: it draws without an error, asks no network, and answers mouse and keyboard."""

import base64
import json
import re

import pytest
from finished import HEADS, LAYERS, TITLE, learned
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

pytestmark = pytest.mark.slow
SECONDS = 60
DRAWN = """
return document.documentElement.dataset.drawn === "all"
  && arguments[0].every((id) => document.querySelector(`#${id} svg`))
"""
CLAIMS = "figure-_claims-score_by_fraction"
FIGURES = (CLAIMS, "figure-_learning", "figure-score_by_fraction", "figure-score_and_drop", "grid", "matrix")
DARK = "rgb(20, 23, 26)"
SIDEWAYS = "const all = document.documentElement; return all.scrollWidth - all.clientWidth"


class Report:
    """The report, opened in a browser of some size and theme."""

    def __init__(self, browser, address):
        self.browser, self.address = browser, address

    def open(self, width=1440, theme="light", figures=FIGURES):
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.browser.get_log("browser"), self.browser.get_log("performance")
        self.browser.get(self.address)
        self.until(lambda: self.run(DRAWN, figures))
        return self

    def until(self, condition):
        return WebDriverWait(self.browser, SECONDS, 0.1).until(lambda _: condition())

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def choice(self, name):
        """A field with a list to choose from."""
        return Select(self.one(f"#{name}"))

    def move_to(self, element):
        self.run("arguments[0].scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'})", element)
        return ActionChains(self.browser).move_to_element(element)

    def click(self, element):
        self.move_to(element).click().perform()

    def tooltip(self, element):
        self.move_to(element).perform()
        self.until(lambda: self.all("#vg-tooltip-element.visible"))
        return self.one("#vg-tooltip-element").text

    def attributes(self, selector, name):
        elements = f"[...document.querySelectorAll('{selector}')]"
        return self.run(f"return {elements}.map((element) => element.getAttribute('{name}'))")

    def cells(self):
        """The outlines and colours of the cells of the matrix."""
        return [self.attributes("#matrix .mark-rect.role-mark path", name) for name in ("d", "fill")]

    def shows(self, words):
        """Wait until the sentence on the chosen head has some words."""
        self.until(lambda: words in self.one("#chosen").text)

    def words_of(self, selector):
        return self.one(selector).text.replace("\u00a0", " ")

    def background(self):
        return self.run("return getComputedStyle(document.body).backgroundColor")

    def errors(self):
        return [entry for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]

    def unfold(self):
        self.run("for (const part of document.querySelectorAll('main details')) part.open = true")


@pytest.fixture
def report(chromium, page):
    return Report(chromium, page)


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_draws_without_errors_or_network_and_fits(report, width, theme):
    report.open(width, theme)
    assert report.errors() == []
    sent = [json.loads(entry["message"])["message"] for entry in report.browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in sent if event["method"] == "Network.requestWillBeSent"]
    assert report.address in asked and all(url.startswith(("file:", "data:", "blob:")) for url in asked)
    assert report.browser.title == "made: how much attention depends on its input"  # and not "owned"
    assert report.run(SIDEWAYS) == 0
    report.unfold()
    assert report.run(SIDEWAYS) == 0
    assert (report.background() == DARK) == (theme == "dark")


def test_the_conclusion_comes_first(report):
    first = report.open(390).words_of("header .lead")
    assert first.startswith("small\nWith all 15 heads of small replaced by average constants, ")
    assert "of what attention contributes is lost on average over 2 tasks." in first
    size = report.run("return parseFloat(getComputedStyle(document.querySelector('.lead')).fontSize)")
    assert 16 <= size <= 22  # to be read, not to be seen from afar


def test_where_nothing_can_be_concluded_the_first_sentence_says_so(chromium, nothing_to_claim):
    page, why = nothing_to_claim
    nothing = Report(chromium, page).open(figures=("figure-score_by_fraction",))
    first = nothing.words_of("header .lead")
    assert first.startswith("Nothing can be concluded about small with heads replaced by zeros. ")
    assert first.count(why) == 2, first
    assert not nothing.all(".block .value") and not nothing.all("#explorer")
    assert "#explorer" not in [link.get_attribute("href") for link in nothing.all("nav a")]
    assert nothing.errors() == []


def test_tooltips_have_mean_interval_and_seeds(report):
    report.open()
    words = report.tooltip(report.all("#figure-score_by_fraction .mark-symbol path")[0])
    assert all(word in words for word in ("mean", "95 % interval", " to ", "seeds", "heads kept", "0.8"))
    point = report.all(f"#{CLAIMS} .mark-symbol path")[0]
    report.until(lambda: "replaceable at margins above" in report.tooltip(point))
    assert "8 of 15" in report.tooltip(point)


def test_a_line_chosen_in_a_legend_is_highlighted_everywhere(report):
    report.open()

    def opacities(figure="figure-score_by_fraction"):
        return [value or "1" for value in report.attributes(f"#{figure} .mark-line path", "opacity")]

    assert set(opacities()) == set(opacities(CLAIMS)) == {"1"} and not report.all(".block.chosen")
    texts = report.all("#figure-score_by_fraction .role-legend-label text")
    [label] = [text for text in texts if text.text == "other"]
    report.click(label)
    report.until(lambda: len(set(opacities())) > 1)
    report.until(lambda: len(set(opacities(CLAIMS))) > 1)
    report.until(lambda: report.one(".block.chosen h2").text == "other")
    report.until(lambda: report.choice("model").first_selected_option.text == "other")
    assert report.choice("line").first_selected_option.text == "other"
    report.shows("(other, average")
    # and from the field back to the legend
    before = opacities()
    report.choice("line").select_by_visible_text("small")
    report.until(lambda: opacities() != before)
    assert sorted(opacities()) == sorted(before)
    assert report.choice("model").first_selected_option.text == "small"
    report.choice("line").select_by_visible_text("all lines")
    report.until(lambda: set(opacities()) == {"1"} and not report.all(".block.chosen"))


def test_a_click_on_a_head_shows_its_matrix(report):
    report.open()
    report.shows("Layer 0, head 0")
    report.shows(TITLE)
    before = report.cells()
    assert len(before[0]) == 7 * 7 - 2
    report.click(report.all("#grid .mark-rect.role-mark path")[HEADS + 2])  # in the order of the rows
    report.shows("Layer 1, head 2")
    report.until(lambda: report.cells() != before)
    report.shows(f"λ {learned(0, HEADS + 2):.3f}. Rank 8 of 15")
    assert "Drop" not in report.one("#chosen").text
    assert "λ from 0.493 to 0.507; only the order matters." in report.one("#grid-note").text
    assert report.choice("layer").first_selected_option.text == "1"
    labels = [label.get_attribute("textContent") for label in report.all("#matrix .role-axis-label text")]
    assert labels.count("[CLS]") == labels.count("[SEP]") == 2


def test_lambda_is_coloured_both_ways_from_where_it_began(report):
    report.open()
    fills = report.attributes("#grid .mark-rect.role-mark path", "fill")
    assert fills[LAYERS * HEADS // 2] == "rgb(241, 241, 241)"  # λ 0.5
    low, high = (list(map(int, fill[4:-1].split(", "))) for fill in (fills[0], fills[-1]))
    assert low[2] > low[0] and high[0] > high[2]  # blue, orange


def test_constants_that_need_no_text_have_no_matrix(chromium, page_without_averages):
    report = Report(chromium, page_without_averages).open(figures=("figure-score_by_fraction", "grid"))
    assert not report.all("#matrix svg") and "no matrix to show" in report.one("#slots").text
    report.shows("(small, zeros, λ order)")
    report.shows("λ 0.493")
    assert [option.get_attribute("value") for option in report.choice("measure").options] == ["lambda", "rank"]
    report.choice("line").select_by_visible_text("other / identity")
    report.shows("(other, identity, λ order)")
    assert report.errors() == []


def test_keys_do_the_same(report):
    report.open()
    report.one("#grid").send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    report.shows("Layer 1, head 2")
    report.one("#grid").send_keys(*[Keys.ARROW_DOWN] * LAYERS)
    report.shows(f"Layer {LAYERS - 1}, head 2")
    report.choice("head").select_by_visible_text("4")
    report.shows(f"Layer {LAYERS - 1}, head 4")
    assert report.one("#chosen").get_attribute("aria-live") == "polite"
    report.choice("task").select_by_visible_text("Second")
    report.shows("head 4 on Second")
    report.choice("measure").select_by_value("rank")
    report.until(lambda: "Rank" in report.one("#grid-title").text)


def test_an_address_opens_a_head_and_a_choice_changes_it(report):
    opened = Report(report.browser, f"{report.address}#head=2.4&model=other&task=second").open()
    opened.shows("Layer 2, head 4 on Second (other, average")
    opened.until(
        lambda: abs(opened.run("return document.querySelector('#explorer').getBoundingClientRect().top")) < 200
    )
    opened.click(opened.all("#grid .mark-rect.role-mark path")[HEADS + 2])
    opened.shows("Layer 1, head 2 on Second")
    assert opened.run("return location.hash") == "#head=1.2&model=other&task=second"
    opened.choice("task").select_by_value("first")
    opened.shows(f"Layer 1, head 2 on {TITLE}")
    opened.browser.back()
    opened.shows("Layer 1, head 2 on Second")
    opened.browser.back()
    opened.shows("Layer 2, head 4 on Second")
    opened.browser.forward()
    opened.shows("Layer 1, head 2 on Second")
    opened.browser.refresh()
    opened.until(lambda: opened.run(DRAWN, FIGURES))
    opened.shows("Layer 1, head 2 on Second (other, average")
    # the arrow keys change the address without a step for the back button; addresses of sections change no head
    steps = opened.run("return history.length")
    opened.one("#grid").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    opened.until(lambda: opened.run("return location.hash").startswith("#head=1.4&"))
    assert opened.run("return history.length") == steps
    opened.run("location.hash = '#claims'")
    opened.shows("Layer 1, head 4 on Second")
    assert opened.errors() == []


@pytest.mark.parametrize("address", ["#head=99.99", "#head=x.y&task=nothing", "#head=", "#claims", "#head2=1.1"])
def test_an_address_of_no_head_still_opens_the_report(report, address):
    opened = Report(report.browser, report.address + address).open()
    opened.shows(f"Layer {LAYERS - 1}, head {HEADS - 1}" if "99" in address else "Layer 0, head 0")
    assert opened.errors() == []


def test_links_of_the_table_of_heads_lead_to_them(report):
    report.open()
    report.unfold()
    link = report.all("#heads tbody a")[2 * HEADS + 3]
    assert link.get_attribute("href").endswith("#head=2.3&model=small&task=first")
    link.send_keys(Keys.ENTER)
    report.shows("Layer 2, head 3")


def test_the_heads_kept_at_a_fraction_are_marked(report):
    report.open()
    dots = "#grid .mark-symbol.role-mark path"
    assert not report.all(dots)
    choices = [option.text for option in report.choice("kept").options]
    assert choices == ["none", "1/2: 7 of 15 heads"]
    report.choice("kept").select_by_value("1/2")
    report.until(lambda: len(report.all(dots)) == 7)
    assert "White dots: the 7 heads kept at 1/2." in report.one("#grid-note").text
    report.shows("At 1/2, it is replaced.")
    report.one("#grid").send_keys(*[Keys.ARROW_DOWN] * LAYERS)  # heads with a large λ are kept
    report.shows("At 1/2, it is kept.")
    centres = [text.split("(")[1].split(")")[0] for text in report.attributes(dots, "transform")]
    assert len(set(centres)) == 7


def test_two_tasks_and_two_heads_are_side_by_side(report):
    report.open()
    assert not report.one("#pane2").is_displayed()
    report.click(report.one("#compare"))
    report.until(lambda: report.all("#grid2 svg.marks") and report.all("#matrix2 svg.marks"))
    assert "Layer 0, head 0 on Second" in report.one("#chosen2").text and TITLE in report.one("#chosen").text
    assert report.one("#compare").get_attribute("aria-pressed") == "true"
    left, right = (report.one(f"#{name}").rect for name in ("pane", "pane2"))
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"]
    report.choice("task2").select_by_value("first")
    report.click(report.all("#grid2 .mark-rect.role-mark path")[HEADS + 3])
    report.until(lambda: "Layer 1, head 3 on" in report.one("#chosen2").text)
    assert "Layer 0, head 0" in report.one("#chosen").text
    hash = "#head=0.0&model=small&task=first&head2=1.3&model2=small&task2=first"
    assert report.run("return location.hash") == hash
    again = Report(report.browser, report.address + hash).open()
    again.until(lambda: "Layer 1, head 3" in again.one("#chosen2").text)
    again.click(again.one("#compare"))
    again.until(lambda: not again.one("#pane2").is_displayed())
    assert again.run("return location.hash") == "#head=0.0&model=small&task=first"
    again.browser.back()
    again.until(lambda: again.one("#pane2").is_displayed())
    assert again.errors() == []


def test_side_by_side_fits_a_phone(report):
    report.address += "#head=0.0&head2=1.3"
    report.open(390)
    report.until(lambda: report.all("#matrix2 svg"))
    assert report.run(SIDEWAYS) == 0
    assert report.one("#pane2").rect["y"] > report.one("#pane").rect["y"] + 300


def test_latex_and_the_citation_are_copied(report):
    report.open()
    report.unfold()
    report.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    report.click(report.one("button.copy[aria-label='Copy LaTeX of Loss with every head replaced']"))
    report.until(lambda: (report.run("return window.copied") or "").startswith("% needs \\usepackage{booktabs}\n"))
    assert report.run("return window.copied").endswith("\\end{table}\n")
    assert "Copied: Copy LaTeX of Loss" in report.one("#status").get_attribute("textContent")
    report.click(report.one("#cite summary"))
    button = report.one("#cite button")
    report.click(button)
    report.until(lambda: report.run("return window.copied").startswith("@software{papa,"))
    assert button.text == "Copied"
    report.until(lambda: button.text == "Copy BibTeX")


def test_without_a_clipboard_the_old_command_copies(report):
    report.open()
    report.run("""
    navigator.clipboard.writeText = () => Promise.reject(new Error("not allowed"));
    document.execCommand = (command) => { window.copied = [command, document.activeElement.value]; };
    """)
    report.click(report.one("#cite summary"))
    report.click(report.one("#cite button"))
    report.until(lambda: report.run("return window.copied?.[1]?.startsWith('@software{papa,')"))
    assert report.run("return window.copied[0]") == "copy" and not report.all("textarea")


def test_screen_readers_hear_values_and_words_only(report):
    report.open()
    report.unfold()
    labels = "[...document.querySelectorAll('[aria-label]')].map((part) => part.getAttribute('aria-label'))"
    labels = report.run(f"return {labels}")
    assert len(labels) > 50
    assert not [text for text in labels if re.search(r"\d\.\d{4}|null|undefined|NaN|#[0-9a-fA-F]{6}", text)]
    points = [
        text for text in labels if text.startswith("task: Second. model: other. examples: all. fraction kept: 1/2.")
    ]
    assert len(points) == 1 and "heads kept: 7 of 15. mean: 0.7" in points[0]
    # marks without a description, such as lines and cells, are hidden
    silent = "document.querySelectorAll('.role-mark:not([aria-hidden]) > :not([aria-label])').length"
    assert report.run(f"return {silent}") == 0


CONTRAST = """
const light = (color) => {
  const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const paper = light(getComputedStyle(document.body).backgroundColor);
const texts = [...document.querySelectorAll("p, dt, dd, td, th button, a, summary, label, button, pre, svg text")];
const drawn = (part) => part.textContent.trim() && part.getClientRects().length && !part.closest(".vega-actions");
return texts.filter(drawn).map((part) => {
  const style = getComputedStyle(part);
  const ink = light(part.ownerSVGElement ? style.fill : style.color);
  return [(Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05), part.textContent.trim()];
}).filter(([ratio]) => ratio < 4.5);
"""
"""The texts whose contrast with the paper is less than that of WCAG level AA; menus have other paper."""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_has_contrast(report, theme):
    report.open(theme=theme)
    report.unfold()
    assert report.run(CONTRAST) == []


def test_every_control_can_be_reached_by_keys(report):
    report.open()
    seen = []
    report.run("document.activeElement.blur(); document.body.focus()")
    for _ in range(160):
        ActionChains(report.browser).send_keys(Keys.TAB).perform()
        seen.append(report.run("const part = document.activeElement; return part.id || part.className || part.tagName"))
        if seen[-1] == "BODY":
            break
    assert seen[0] == "skip"
    assert {"theme", "line", "grid", "layer", "head", "kept", "compare", "copy quiet", "SUMMARY"} <= set(seen)
    nameless = """
    return [...document.querySelectorAll("button, select, a, [role=group], [role=region]")].filter((tag) =>
      !(tag.textContent.trim() || tag.ariaLabel || tag.labels?.length || tag.getAttribute("aria-labelledby"))).length
    """
    assert report.run(nameless) == 0


def test_a_table_sorts_by_numbers_both_ways(report):
    report.open()
    report.unfold()
    column = "return [...document.querySelectorAll('#jobs-0 tbody tr')].map((row) => row.cells[1].textContent.trim())"
    right = """
    const all = document.createRange();
    return ["th", "tbody td"].map((cell) => {
      all.selectNodeContents(document.querySelectorAll(`#jobs-0 ${cell}`)[1]);
      return all.getBoundingClientRect().right;
    });
    """
    heading, number = report.run(right)
    assert abs(heading - number) < 1, "the arrow of a heading needs no room, and numbers are below their heading"
    header = report.all("#jobs-0 th")[1]
    report.click(header.find_element(By.TAG_NAME, "button"))
    rising = [int(cell) for cell in report.run(column)]
    assert rising == sorted(rising) and len(set(rising)) > 2 and header.get_attribute("aria-sort") == "ascending"
    header.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert [int(cell) for cell in report.run(column)] == rising[::-1]
    assert header.get_attribute("aria-sort") == "descending"


def test_a_download_has_no_formulas(report):
    report.open()
    csv = report.run("""
    document.querySelector("#data-0 tbody tr").cells[0].textContent = '=HYPERLINK("http://x","y")';
    let blob; const make = URL.createObjectURL; URL.createObjectURL = (made) => { blob = made; return make(made); };
    document.querySelector('button[data-table="data-0"]').click();
    return blob.text();
    """)
    assert csv.splitlines()[1].startswith('"\'=HYPERLINK(""http://x"",""y"")","small","1,024 / 2,048"')


def test_the_theme_can_be_chosen(report):
    report.open(theme="light")
    before = report.cells()
    report.one("#theme").click()
    report.until(lambda: report.cells() not in ([[], []], before))
    assert report.background() == DARK
    assert report.one("#theme").text == "Light"


def test_print_holds_everything_opened(report):
    report.open()
    closed = "document.querySelectorAll('main details:not([open])').length"
    assert report.run(f"return {closed}") > 0
    report.run(f"addEventListener('beforeprint', () => {{ window.seen = {closed}; }})")
    pdf = base64.b64decode(report.browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") >= 3
    assert report.run("return window.seen") == 0
    assert report.run(f"return {closed}") > 0
