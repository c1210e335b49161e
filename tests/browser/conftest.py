"""A headless Chromium, where this machine has one."""

import os
import shutil

import pytest

PACKAGES = "chromium chromium-driver"


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
