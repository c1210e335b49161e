"""A headless Chromium with the report of made-up results, where this machine has one."""

import os
import shutil
from pathlib import Path

import pytest
from finished import CHANCE, CONFIG, NO_SKILL, ONE_LABEL, SKILLS, SOLVED, page_job, write_results

from papa.results.page import write_report

PACKAGES = "chromium chromium-driver"


def address(folder, skills=SKILLS, **changes):
    """The address of a report of made-up results, in `folder`."""
    job = page_job(write_results(folder, skills, **changes))
    write_report(job)
    return Path(job.output("page")).absolute().as_uri()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return address(tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def page_without_averages(tmp_path_factory):
    """Constants that need no text, in an order."""
    run = CONFIG["run"] | {"tasks": ["second"], "constants": ["zeros", "identity"]}
    return address(tmp_path_factory.mktemp("browser"), run=run, grids={})


@pytest.fixture(
    params=[
        (NO_SKILL, "the probe is no better than the majority class"),
        (CHANCE, "the probe is no better than the majority class"),
        (ONE_LABEL, "the probe is no better than the majority class"),
        (SOLVED, "attention contributes nothing measurable"),
    ],
    ids=["majority", "random", "one-label", "ceiling"],
)
def nothing_to_claim(tmp_path, request):
    """A report that must claim nothing, with no difference between heads, and the reason."""
    skill, why = request.param
    run = CONFIG["run"] | {"models": ["small"], "constants": ["zeros"], "fractions": ["1", "0"]}
    return address(tmp_path, dict.fromkeys(CONFIG["tasks"], skill), run=run, grids={}), why


@pytest.fixture(scope="module")
def chromium():
    driver = shutil.which("chromedriver")
    binary = shutil.which("chromium")
    if not (driver and binary):
        why = f"no chromium with its chromedriver; on Debian: apt-get install {PACKAGES}"
        # where it must be tested, as in continuous integration, a skip would pass for a success
        pytest.fail(why) if os.environ.get("PAPA_REQUIRE_BROWSER") else pytest.skip(why)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    browser.set_page_load_timeout(90)
    yield browser
    browser.quit()
