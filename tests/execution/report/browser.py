"""A headless Chromium for the tests of pages. Debian: apt-get install chromium chromium-driver (.ci/chromium does)."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import shutil
from pathlib import Path
from typing import Any

WIDTH, PHONE = 1280, 390  # CSS pixels


class Browser:
    """A Chromium that opens pages from disk and keeps what goes wrong in them."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.show(WIDTH)

    def show(self, width: int, *, dark: bool = False, zone: str = "UTC") -> None:
        """Set the window's width in CSS pixels, the reader's colour scheme and time zone, for the next page."""
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})
        self.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": zone})

    def open(self, page: Path) -> None:
        """Open a page. It must request nothing else and write nothing to the console."""
        self.driver.get(page.resolve().as_uri())
        self.check_silent()

    def check_silent(self) -> None:
        assert [entry["message"] for entry in self.driver.get_log("browser")] == []
        assert self.run("return performance.getEntriesByType('resource').map(entry => entry.name)") == []

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def chart(self, title: str) -> Any:
        return next(
            figure for figure in self.find_all(".chart") if figure.find_element("tag name", "strong").text == title
        )


def why_missing() -> str | None:
    """Return why there is no browser to test with; None if there is one."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed (pip install -e .[dev])"
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        return "chromium and chromedriver are not installed (apt-get install chromium chromium-driver)"
    return None


@functools.cache
def start_chromium() -> Any:
    """Start the browser that all tests of this process share."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(shutil.which("chromedriver"))))
    atexit.register(driver.quit)
    return driver
