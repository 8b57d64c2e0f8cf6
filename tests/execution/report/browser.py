"""A headless Chromium for the tests of pages. Debian: apt-get install chromium chromium-driver
(.ci/chromium does).
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

WIDTH, PHONE = 1280, 390  # CSS pixels


class Browser:
    """A Chromium that opens pages from disk and keeps what goes wrong in them."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.show(WIDTH)

    def show(self, width: int, *, dark: bool = False, zone: str = "UTC") -> None:
        """Set the window's width in CSS pixels, the reader's colour scheme and time zone, for the
        next page.
        """
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": "", "features": [scheme]}
        )
        self.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": zone})

    def open(self, page: Path) -> None:
        """Open a page. It must request nothing else and write nothing to the console."""
        self.driver.get(page.resolve().as_uri())
        self.check_silent()

    def check_silent(self) -> None:
        assert [entry["message"] for entry in self.driver.get_log("browser")] == []
        assert (
            self.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
            == []
        )

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def chart(self, title: str) -> Any:
        return next(
            figure
            for figure in self.find_all(".chart")
            if figure.find_element("tag name", "strong").text == title
        )


def readout(chart: Any) -> tuple[int, dict[str, float]]:
    """The step and the values below a chart."""
    text = chart.find_element("css selector", ".readout").text
    step, _, values = text.removeprefix("step ").partition(": ")
    named = re.findall(r"([^,]+?) (-?[\d.,]*\d(?:e[+-]?\d+)?)(?: [^,]*)?(?:, |$)", values)
    return int(step.replace(",", "")), {
        name: float(value.replace(",", "")) for name, value in named
    }


def scale(browser: Browser, chart: Any, name: str) -> list[float]:
    """The ends of a chart's axis: x or y."""
    ends: list[float] = browser.run(
        f"return arguments[0].chart.{'steps' if name == 'x' else 'range'}", chart
    )
    return ends


def count_pixels(browser: Browser, chart: Any, line: int, picture: str | None = None) -> int:
    """How many pixels of a chart, as it is on the screen, or of a picture have the colour of a
    curve.
    """
    picture = picture or chart.find_element("css selector", ".plot").screenshot_as_base64
    return int(
        browser.driver.execute_async_script(PIXELS, chart, line, f"data:image/png;base64,{picture}")
    )


# the labels of the steps below a chart, with their places in pixels of the chart
TICKS = """
const {left, width} = arguments[0].querySelector(".plot").getBoundingClientRect();
return [...arguments[0].querySelectorAll(".step-labels text")].map((text) => {
  const box = text.getBoundingClientRect();
  return {text: text.textContent, left: box.left - left, right: box.right - left, width};
});
"""
PIXELS = """
const [chart, line, picture, done] = arguments, image = new Image();
image.src = picture;
image.decode().then(() => {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, {width: image.width, height: image.height});
  const context = canvas.getContext("2d", {willReadFrequently: true});
  context.drawImage(image, 0, 0);
  const wanted = getComputedStyle(chart.querySelectorAll(".legend path")[line]).stroke.match(/\\d+/g).map(Number);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let at = 0; at < pixels.length; at += 4) {
    if (wanted.every((value, i) => Math.abs(pixels[at + i] - value) < 8)) count += 1;
  }
  done(count);
});
"""


def press(browser: Browser, element: Any, *keys: str) -> None:
    from selenium.webdriver.common.keys import Keys

    for key in keys:
        element.send_keys(getattr(Keys, key, key))


def wait_for(condition: Callable[[], bool], seconds: float = 5) -> None:
    """Wait until a chart is drawn again, which it is a moment after it changes, or another
    condition holds.
    """
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    assert condition()


# the least contrast of text against its background: WCAG 2.2 asks for 4.5
CONTRASTS = """
const parse = (color) => (color.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
const background = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const color = parse(getComputedStyle(e).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
  return [255, 255, 255];
};
return Math.min(...[...document.querySelectorAll("h1, h2, p, dt, dd, small, td, th, button, .chip, .value")]
  .filter((e) => e.textContent.trim() && e.getAttribute("aria-pressed") !== "false" && !e.classList.contains("brand"))
  .map((e) => [light(parse(getComputedStyle(e).color)), light(background(e))])
  .map(([a, b]) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)));
"""


def walk_through(browser: Browser, page: Path, last: Mapping[str, Any] | None) -> None:
    """Open a page in both themes on a screen and a phone, and use its first chart as a person does.

    The values at the chart's end must be those of `last`, the run's last logged step.
    """
    for width in (WIDTH, PHONE):
        for dark in (False, True):
            browser.show(width, dark=dark)
            browser.open(page)
            assert browser.run("return document.documentElement.scrollWidth") <= width
            assert browser.run(CONTRASTS) >= 4.5
    browser.run("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert browser.run("return document.documentElement.scrollWidth") <= PHONE
    browser.show(WIDTH)
    browser.open(page)
    charts = browser.find_all(".chart")
    if charts:
        _use_chart(browser, charts[0], last)
    browser.check_silent()


def _use_chart(browser: Browser, chart: Any, last: Mapping[str, Any] | None) -> None:
    press(browser, chart, "END")
    step, values = readout(chart)
    if last is not None:
        loss = "nan" if last["loss"] is None else last["loss"]
        assert step == last["step"]
        text = chart.find_element("css selector", ".readout").text
        assert (
            values["training"] == pytest.approx(loss, rel=1e-6)
            if loss != "nan"
            else "training nan" in text
        )
    full = scale(browser, chart, "x")
    press(browser, chart, "+")
    reset = chart.find_element("css selector", ".reset")
    if full[1] - full[0] > 1:
        assert scale(browser, chart, "x") != full
        reset.click()
    assert scale(browser, chart, "x") == full
    assert not reset.is_displayed()
    buttons = chart.find_elements("css selector", ".legend button")
    for button in buttons:
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
    wait_for(lambda: not any(count_pixels(browser, chart, line) for line in range(len(buttons))))


def why_missing() -> str | None:
    """Return why there is no browser to test with; None if there is one."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed (pip install -e .[dev])"
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        return (
            "chromium and chromedriver are not installed (apt-get install chromium chromium-driver)"
        )
    return None


@functools.cache
def start_chromium() -> Any:
    """Start the browser that all tests of this process share."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(str(shutil.which("chromedriver")))
    )
    atexit.register(driver.quit)
    return driver
