"""A saved figure in a real browser: a page that reacts to clicks without the report around it."""

from collections import Counter

import pytest
from finished import CONFIG, write_results
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from papa.config.analyses import grid_view
from papa.config.settings import RUN
from papa.results.analysis import save_figure
from papa.results.figures import grid_figure
from papa.results.grids import rows_of
from papa.results.summary import read_summary

pytestmark = pytest.mark.slow
SECONDS = 60


@pytest.fixture(scope="module", params=["lines", "subsets"])
def figure(request, tmp_path_factory):
    """The address of a figure of two models or of one with subsets, a label of its legend, and how many that has."""
    folder = tmp_path_factory.mktemp(request.param)
    models = ["small", "other"] if request.param == "lines" else ["small"]
    study = write_results(folder, run=CONFIG["run"] | {"models": models}, grids={})
    grid = grid_view(study, RUN)
    rows = rows_of(grid, read_summary(study.results / study.path("summary")))
    save_figure(grid_figure(rows, grid)[0], {"html": str(folder / "figure.html")}, study.config.plots)
    label, choices = {"lines": ("other", 2), "subsets": ("all", 3)}[request.param]
    return (folder / "figure.html").as_uri(), label, choices


def test_a_click_in_a_legend_fades_all_other_curves(chromium, figure):
    address, label, choices = figure
    chromium.get(address)

    def until(condition):
        return WebDriverWait(chromium, SECONDS, 0.1).until(lambda _: condition())

    def opacities():
        lines = "[...document.querySelectorAll('.mark-line path')]"
        return Counter(chromium.execute_script(f"return {lines}.map((line) => line.getAttribute('opacity') ?? '1')"))

    until(opacities)
    curves = opacities().total()
    assert opacities() == {"1": curves} and curves > 2
    texts = chromium.find_elements(By.CSS_SELECTOR, ".role-legend-label text")
    [clicked] = [text for text in texts if text.text == label]
    ActionChains(chromium).move_to_element(clicked).click().perform()
    until(lambda: len(opacities()) == 2)
    assert opacities()["1"] == curves // choices
