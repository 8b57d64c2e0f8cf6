"""Pages in a headless Chromium: what a person reads off them is the record; pointer, keyboard,
phone, dark theme.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from launch.errors import EXIT_STOPPED
from launch.execution.record.outcome import Outcome
from launch.execution.record.run import Run
from launch.execution.report.page import render_document, render_runs
from tests.execution.report.browser import (
    CONTRASTS,
    PHONE,
    TICKS,
    WIDTH,
    Browser,
    count_pixels,
    press,
    readout,
    scale,
    wait_for,
)
from tests.execution.report.folders import START, write_run
from tests.execution.report.test_page import HOSTILE
from tests.trials.bench.benches import benched
from tests.trials.records import written
from tests.trials.rollout.test_record import rolled

pytestmark = pytest.mark.slow

DPO = [
    {
        "loss": 0.7 - step / 300 + (3.0 if step == 77 else 0),
        "lr": 5e-7 * step,
        "tokens": 1000 + step,
        "tokens_padded": 1500,
        "rewards/chosen": step / 100,
        "rewards/rejected": -step / 90,
        "rewards/margin": step / 47,
    }
    for step in range(1, 121)
]
GUARD = {"id": "divergence", "message": "the loss rose", "numbers": {"median": 9.25}}
STOPPED = Outcome(
    EXIT_STOPPED, 5.0, 0, None, cause="the loss rose", cause_id="divergence", guard=GUARD
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of every kind, by name."""
    home = tmp_path_factory.mktemp("pages")
    guard = {"kind": "guard", "time": START + 40, "rank": 0, **GUARD}
    dpo = write_run(home / "demo_dpo" / "first", DPO)
    stopped = write_run(
        home / "demo" / "stopped", [*DPO[:30], {"loss": float("nan")}], STOPPED, [guard]
    )
    killed = write_run(home / "demo" / "killed", DPO[:3], outcome=None)
    hostile = write_run(
        home / "demo" / "a<b>&c", [{"loss": 1.0, HOSTILE: step} for step in range(5)]
    )
    rollout, (bench, _, _) = rolled(home / "rollout"), benched(home / "bench", "repeats=2")
    texts = {
        "dpo": render_runs([Run(dpo)]),
        "stopped": render_runs([Run(stopped)]),
        "killed": render_runs([Run(killed)]),
        "hostile": render_runs([Run(hostile)]),
        "several": render_runs([Run(folder) for folder in (dpo, stopped, killed)]),
        "rollout": render_document(written(rollout)),
        "bench": render_document(written(bench)),
    }
    for name, text in texts.items():
        (home / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: home / f"{name}.html" for name in texts}


def write_page(folder: Path, steps: Sequence[Mapping[str, Any]]) -> Path:
    """Write the page of a run with these steps."""
    page = folder / "page.html"
    page.write_text(render_runs([Run(write_run(folder / "demo" / "x", steps))]), encoding="utf-8")
    return page


def move_to(browser: Browser, chart: Any, share: float) -> None:
    """Point at a share of the drawing's width."""
    area = chart.find_element("css selector", ".over")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", area)
    box = browser.run(
        "const b = arguments[0].getBoundingClientRect(); return [b.left, b.top, b.width, b.height]",
        area,
    )
    point = {"x": box[0] + share * box[2], "y": box[1] + box[3] / 2}
    browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **point})


@contextlib.contextmanager
def without_scripts(browser: Browser) -> Iterator[None]:
    """Open pages as a reader does whose browser runs no script."""
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        yield
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def recorded(page: Path, run: str) -> dict[int, dict[str, Any]]:
    lines = (page.parent / run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {entry["step"]: entry for entry in map(json.loads, lines)}


@pytest.mark.parametrize(
    "name", ["dpo", "stopped", "killed", "hostile", "several", "rollout", "bench"]
)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_is_silent_and_fits_every_screen(
    browser: Browser, pages: dict[str, Path], name: str, dark: bool
) -> None:
    for width in (WIDTH, PHONE):
        browser.show(width, dark=dark)
        browser.open(pages[name])
        assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return document.images.length") == 0
    assert browser.run(CONTRASTS) >= 4.5
    browser.run("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert browser.run("return document.documentElement.scrollWidth") <= PHONE
    browser.check_silent()


def test_the_numbers_under_the_pointer_are_the_records(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["dpo"])
    steps = recorded(pages["dpo"], "demo_dpo/first")
    for title, names in {
        "Loss": {"training": ("loss", 1)},
        "Padding": {"padding": ("padding_share", 100)},
        "Rewards": {
            "rewards/chosen": ("rewards/chosen", 1),
            "rewards/rejected": ("rewards/rejected", 1),
        },
        "Reward margin": {"rewards/margin": ("rewards/margin", 1)},
    }.items():
        for share in (0.0, 0.31, 0.5, 0.99):
            chart = browser.chart(title)
            move_to(browser, chart, share)
            step, values = readout(chart)
            assert step == pytest.approx(1 + share * 119, abs=1)
            assert set(values) == set(names)
            for label, (key, factor) in names.items():
                assert values[label] == pytest.approx(factor * steps[step][key], rel=1e-6)


def test_the_validation_loss_is_beside_the_training_loss(browser: Browser, tmp_path: Path) -> None:
    """The steps of a real TRL run of the demo with data.validation, evaluated every 5 of 12."""
    run = write_run(tmp_path / "demo" / "x")
    (run / "metrics.jsonl").write_bytes(
        Path(__file__).with_name("trl_validation.jsonl").read_bytes()
    )
    page = tmp_path / "page.html"
    page.write_text(render_runs([Run(run)]), encoding="utf-8")
    steps = recorded(page, "demo/x")
    assert [step for step, entry in steps.items() if "eval_loss" in entry] == [5, 10, 12]
    browser.open(page)
    assert "validation loss at step 12" in browser.find(".facts").text
    chart = browser.chart("Loss")
    press(browser, chart, "HOME", *["ARROW_RIGHT"] * 4)
    expected = {"training": steps[5]["loss"], "validation": steps[5]["eval_loss"]}
    assert readout(chart) == (
        5,
        {name: pytest.approx(value, rel=1e-6) for name, value in expected.items()},
    )
    press(browser, chart, "ARROW_RIGHT")
    text = chart.find_element("css selector", ".readout").text
    assert text.endswith("(step 5)")  # the validation loss of step 6 is unknown
    assert count_pixels(browser, chart, 1) > 30
    titles = [strong.text for strong in browser.find_all(".chart strong")]
    assert "Evaluation time" in titles
    assert not [title for title in titles if title.lower().startswith("eval_")]


def test_the_keyboard_reads_zooms_and_hides(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["dpo"])
    steps = recorded(pages["dpo"], "demo_dpo/first")
    chart = browser.chart("Rewards")
    press(browser, chart, "END")
    assert readout(chart) == (
        120,
        {"rewards/chosen": 1.2, "rewards/rejected": pytest.approx(-120 / 90)},
    )
    press(browser, chart, "ARROW_LEFT", "ARROW_LEFT")
    assert readout(chart)[0] == 118
    press(browser, chart, "+", "+")
    assert scale(browser, chart, "x") == [90, 120]
    assert chart.find_element("css selector", ".reset").text == "steps 90 to 120: show all"
    press(browser, chart, "ESCAPE")
    assert not chart.find_element("css selector", ".reset").is_displayed()
    button = chart.find_elements("css selector", ".legend button")[0]
    before = [count_pixels(browser, chart, line) for line in (0, 1)]
    assert min(before) > 100
    press(browser, button, "SPACE")
    assert button.get_attribute("aria-pressed") == "false"
    assert scale(browser, chart, "y")[1] < 0.1  # of the curve that is left, which is below 0
    wait_for(lambda: count_pixels(browser, chart, 0) == 0)
    assert count_pixels(browser, chart, 1) > 100
    press(browser, chart, "HOME")
    assert readout(chart) == (1, {"rewards/rejected": pytest.approx(steps[1]["rewards/rejected"])})
    browser.check_silent()


def test_tab_reaches_every_control(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["dpo"])
    expected = browser.run(
        "return document.querySelectorAll('.chart, .legend button, summary, .scroll').length"
        " - document.querySelectorAll('details .scroll').length"
    )
    body, reached = browser.find("body"), set()
    for _ in range(expected + 5):
        press(browser, browser.driver.switch_to.active_element or body, "TAB")
        reached.add(browser.driver.switch_to.active_element.id)
    assert len(reached) >= expected


def test_dragging_zooms_every_chart_and_the_axis_fits_what_is_left(
    browser: Browser, pages: dict[str, Path]
) -> None:
    from selenium.webdriver import ActionChains

    browser.open(pages["dpo"])
    chart = browser.chart("Loss")
    before = scale(browser, chart, "y")
    area = chart.find_element("css selector", ".over")
    width = area.size["width"]
    drag = (
        ActionChains(browser.driver)
        .move_to_element_with_offset(area, round(-0.4 * width), 0)
        .click_and_hold()
    )
    drag.move_by_offset(round(0.25 * width), 0).release().perform()
    for each in browser.find_all(".chart"):
        first, last = scale(browser, each, "x")
        assert first == pytest.approx(1 + 0.1 * 119, abs=2)
        assert last == pytest.approx(1 + 0.35 * 119, abs=2)
        assert (
            each.find_element("css selector", ".reset").text == f"steps {first} to {last}: show all"
        )
    assert scale(browser, chart, "y")[1] < 1  # the spike at step 77 is out of sight
    ActionChains(browser.driver).double_click(area).perform()
    assert scale(browser, chart, "y") == before
    browser.check_silent()


@pytest.mark.parametrize("width", [WIDTH, PHONE])
def test_the_dots_of_a_plot_are_on_one_scale(
    browser: Browser, pages: dict[str, Path], width: int
) -> None:
    browser.show(width)
    browser.open(pages["bench"])
    left = "const b = arguments[0].getBoundingClientRect(); return [b.left + b.width / 2, b.right]"
    tracks = browser.find_all(".spreads")[0].find_elements("css selector", ".track")
    assert len({round(browser.run(left, track)[1], 1) for track in tracks}) == 1
    starts = browser.run(
        "return [...arguments[0]].map(track => track.getBoundingClientRect().left)", tracks
    )
    dots = [browser.run(left, track.find_element("css selector", ".dot"))[0] for track in tracks]
    slow, fast = (dot - start for dot, start in zip(dots, starts, strict=True))
    assert fast / slow == pytest.approx(2, rel=0.05)  # B has twice the throughput of A


def test_several_runs_have_their_values_side_by_side(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["several"])
    chart = browser.chart("Loss")
    press(browser, chart, "HOME", "ARROW_RIGHT")
    step, values = readout(chart)
    first = recorded(pages["several"], "demo_dpo/first")
    assert step == 2
    assert values == {
        name: pytest.approx(first[2]["loss"]) for name in ("first", "stopped", "killed")
    }
    rows = [
        row.text for row in browser.find_all("table")[0].find_elements("css selector", "tbody tr")
    ]
    assert [row.split()[:2] for row in rows] == [
        ["first", "done"],
        ["stopped", "stopped"],
        ["killed", "unfinished"],
    ]


def test_a_gap_is_read_as_what_it_is(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["stopped"])
    chart = browser.chart("Loss")
    press(browser, chart, "END")
    assert chart.find_element("css selector", ".readout").text == "step 31: training nan"
    assert "nan at step 31" in chart.find_element("css selector", ".legend").text


def test_names_with_html_are_text(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"])
    assert browser.driver.title == "demo/a<b>&c"
    assert "<script>alert(1)</script>" in browser.find("main").text
    press(browser, browser.find_all(".chart")[1], "END")
    browser.check_silent()


def test_times_are_in_the_readers_zone(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(WIDTH, zone="Asia/Tokyo")
    browser.open(pages["dpo"])
    began = browser.find("h4 time")
    assert "GMT+9" in began.text
    assert "UTC" in began.get_attribute("title") or "+" in began.get_attribute("title")


def test_a_long_run_opens_at_once(browser: Browser, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo" / "long")
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for step in range(1, 20_001):
            file.write(f'{{"step": {step}, "loss": {99.5 if step == 12_345 else 2 + step % 7}}}\n')
    page = tmp_path / "long.html"
    page.write_text(render_runs([Run(folder)]), encoding="utf-8")
    browser.open(page)
    chart = browser.chart("Loss")
    move_to(browser, chart, 12_344 / 19_999)
    press(browser, chart, "+", "+", "+", "+", "+")
    first, last = scale(browser, chart, "x")
    move_to(browser, chart, (12_345 - first) / (last - first))
    assert last - first < 1000
    steps = browser.run(
        "return JSON.parse(document.getElementById('data').textContent)[0].lines[0].steps"
    )
    assert 12_345 in steps
    assert readout(chart) == (12_345, {"training": 99.5})


@pytest.mark.parametrize("width", [WIDTH, PHONE])
def test_the_steps_of_a_very_long_run_are_legible(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    folder = write_run(tmp_path / "demo" / "long")
    steps = [{"step": step, "loss": 2.0 + step % 7} for step in range(50_000, 10_000_001, 50_000)]
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(step) + "\n" for step in steps), encoding="utf-8"
    )
    page = tmp_path / "long.html"
    page.write_text(render_runs([Run(folder)]), encoding="utf-8")
    browser.show(width)
    browser.open(page)
    labels = browser.run(TICKS, browser.chart("Loss"))
    assert labels[-1]["text"] == "10,000,000"
    assert all(before["right"] < after["left"] for before, after in itertools.pairwise(labels))
    assert labels[-1]["right"] <= labels[-1]["width"]


def test_a_finger_zooms_and_a_tap_reads(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(PHONE)
    browser.open(pages["dpo"])
    chart = browser.chart("Loss")
    over = chart.find_element("css selector", ".over")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", over)
    left, top, width = browser.run(
        "const b = arguments[0].getBoundingClientRect(); return [b.left, b.top, b.width]", over
    )

    def touch(kind: str, *shares: float) -> None:
        points = [{"x": left + share * width, "y": top + 40} for share in shares]
        browser.driver.execute_cdp_cmd(
            "Input.dispatchTouchEvent", {"type": kind, "touchPoints": points}
        )

    browser.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        touch("touchStart", 0.2)
        for step in range(1, 6):
            touch("touchMove", 0.2 + 0.06 * step)
        wait_for(lambda: abs(readout(chart)[0] - (1 + 0.5 * 119)) < 2)
        touch("touchEnd")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    assert scale(browser, chart, "x") == [
        pytest.approx(1 + share * 119, abs=2) for share in (0.2, 0.5)
    ]
    browser.check_silent()


def test_the_colours_follow_the_theme_and_paper_is_light(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["dpo"])
    chart = browser.chart("Rewards")
    assert count_pixels(browser, chart, 0) > 100
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    for media in ("", "print"):
        light = browser.run(
            "return getComputedStyle(document.documentElement).getPropertyValue('--c0')"
        )
        browser.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": media, "features": [dark]}
        )
        wait_for(lambda: count_pixels(browser, chart, 0) > 100)
        assert (
            browser.run(
                "return getComputedStyle(document.documentElement).getPropertyValue('--c0')"
            )
            != light
        )


def test_the_table_of_a_chart_has_its_values(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["dpo"])
    chart = browser.chart("Loss")
    steps = recorded(pages["dpo"], "demo_dpo/first")
    chart.find_element("css selector", ".values summary").click()
    heads = [cell.text for cell in chart.find_elements("css selector", ".values thead th")]
    cells = [cell.text for cell in chart.find_elements("css selector", ".values tbody td")]
    assert heads == [
        "curve",
        "step 1",
        "step 24",
        "step 48",
        "step 72",
        "step 96",
        "step 120",
        "lowest",
        "highest",
    ]
    for head, cell in zip(heads[1:7], cells[:6], strict=True):
        assert float(cell) == pytest.approx(
            steps[int(head.removeprefix("step "))]["loss"], abs=1e-4
        )
    assert cells[7] == f"{steps[77]['loss']:.4g} (step 77)"


HUGE = {"1e308": [1e308, -1e308, 1e308], "equal": [3.0] * 4, "tiny": [1e-300, 3e-300]}


@pytest.mark.parametrize("values", HUGE.values(), ids=HUGE)
def test_every_range_of_values_is_drawn(
    values: list[float], browser: Browser, tmp_path: Path
) -> None:
    browser.open(write_page(tmp_path, [{"loss": value} for value in values]))
    chart = browser.chart("Loss")
    press(browser, chart, "END", "+", "HOME", "-", "ESCAPE", "END")
    assert readout(chart) == (len(values), {"training": values[-1]})
    assert count_pixels(browser, chart, 0) > 5
    browser.check_silent()


def test_a_value_between_gaps_is_a_dot(browser: Browser, tmp_path: Path) -> None:
    losses = [2.0 if step == 300 else float("nan") for step in range(600)]
    browser.open(write_page(tmp_path, [{"loss": loss, "lr": 1.0} for loss in losses]))
    assert count_pixels(browser, browser.chart("Loss"), 0) > 5


RANGES = [
    *[
        (0, 1),
        (-1, 1),
        (-2.6, 4.1),
        (1e6, 1e6 + 1),
        (0, 1.8e-5),
        (3e-7, 4e-7),
        (0, 3.1e7),
        (-5e12, 9e11),
        (99.1, 99.2),
    ],
    *[
        (0.00123, 0.00124),
        (-1e308, 1e308),
        (1e-300, 3e-300),
        (0, 0),
        (7, 7),
        (-3, -3),
        (12345, 98765),
        (1e-320, 0),
    ],
    *[(2e-4, 5e-4), (0, 9e-4), (5e-4, 2e-3), (9.3e6, 9.6e6), (9.3e6, 1.2e7)],
]


def test_the_script_labels_the_axis_as_the_page_is_written(
    browser: Browser, tmp_path: Path
) -> None:
    steps = [
        {f"m{index:02}": ends[at % 2] for index, ends in enumerate(RANGES)} for at in range(40)
    ]
    page = write_page(tmp_path, steps)
    read = """
    const read = (text) => [text.textContent, Number(text.getAttribute("y"))];
    return [...document.querySelectorAll(".chart")].map((chart) => (
      [...chart.querySelectorAll("strong, .value-labels text")].map(read)
    ));
    """
    with without_scripts(browser):
        browser.open(page)
        written_labels = browser.run(read)
    browser.open(page)
    assert browser.run(read) == [
        [[text, pytest.approx(y, abs=0.11)] for text, y in chart] for chart in written_labels
    ]
    assert len(written_labels) >= len(RANGES)


@pytest.mark.parametrize("width", [WIDTH, PHONE])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_without_a_script_the_curves_are_there(
    browser: Browser, pages: dict[str, Path], width: int, dark: bool
) -> None:
    browser.show(width, dark=dark)
    with without_scripts(browser):
        browser.open(pages["dpo"])
        chart = browser.chart("Rewards")
        plot = chart.find_element("css selector", ".plot").rect
        area = chart.find_element("css selector", ".grid line").rect
        assert 0.84 * plot["width"] < area["width"]
        assert area["x"] + area["width"] < plot["x"] + plot["width"]
        texts = [
            text
            for text in chart.find_elements("css selector", ".plot text")
            if text.is_displayed()
        ]
        assert {"-1.0", "0", "1.0", "20", "120"} <= {text.text for text in texts}
        for text in texts:
            assert text.value_of_css_property("font-size") == "11px"
            assert (
                plot["x"] <= text.rect["x"]
                and text.rect["x"] + text.rect["width"] <= plot["x"] + plot["width"]
            )
        labels = browser.run(TICKS, chart)
        assert all(before["right"] < after["left"] for before, after in itertools.pairwise(labels))
        assert "1.2" in chart.find_element("css selector", ".legend").text
        assert not chart.find_element("css selector", ".log").is_displayed()
        picture = chart.find_element("css selector", ".plot").screenshot_as_base64
    assert min(count_pixels(browser, chart, line, picture) for line in (0, 1)) > 100


def test_a_chart_copied_out_of_the_page_is_a_picture(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    text = pages["dpo"].read_text(encoding="utf-8")
    svg = next(
        part for part in text.split("<svg xmlns")[1:] if ">Rewards, by step<" in part
    ).partition("\n</svg>\n")[0]
    (tmp_path / "chart.svg").write_text(f"<svg xmlns{svg}\n</svg>\n", encoding="utf-8")
    slide = tmp_path / "slide.html"
    slide.write_text(
        '<body style="background: #222"><img src="chart.svg" width="700">', encoding="utf-8"
    )
    browser.show(WIDTH, dark=True)
    browser.driver.get(slide.as_uri())
    picture = browser.find("img").screenshot_as_base64
    assert browser.find("img").rect["width"] == 700
    browser.show(WIDTH)
    browser.open(pages["dpo"])
    assert (
        min(count_pixels(browser, browser.chart("Rewards"), line, picture) for line in (0, 1)) > 100
    )


def test_the_pointer_moves_in_all_charts(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["dpo"])
    move_to(browser, browser.chart("Rewards"), 0.5)
    assert {readout(chart)[0] for chart in browser.find_all(".chart")} in ({60}, {61})
    for chart in browser.find_all(".chart"):
        cursor, area = (
            chart.find_element("css selector", name).rect for name in (".cursor", ".over")
        )
        assert cursor["x"] - area["x"] == pytest.approx(area["width"] / 2, abs=2)
        points = [
            point.rect
            for point in chart.find_elements("css selector", ".point")
            if point.is_displayed()
        ]
        assert len(points) == len(chart.find_elements("css selector", ".legend li"))
    browser.driver.execute_cdp_cmd(
        "Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 1, "y": 1}
    )
    wait_for(lambda: not browser.find(".cursor").is_displayed())
    assert readout(browser.chart("Loss"))[0] in (60, 61)


def test_a_logarithmic_axis(browser: Browser, tmp_path: Path) -> None:
    steps = [
        {"loss": 10.0 ** (-step / 10), "lr": float(step - 30), "grad_norm": -1.0 - step}
        for step in range(61)
    ]
    browser.open(write_page(tmp_path, steps))
    loss, rate, norm = (
        browser.chart(title) for title in ("Loss", "Learning rate", "Gradient norm")
    )

    def curve(chart: Any) -> list[float]:
        text = (
            chart.find_element("css selector", ".curves path").get_attribute("d").removeprefix("M")
        )
        return [float(number) for number in text.replace("M", " ").split()]

    press(browser, loss, "l")
    button = loss.find_element("css selector", ".log")
    assert (button.get_attribute("aria-pressed"), button.text) == ("true", "log scale")
    labels = [text.text for text in loss.find_elements("css selector", ".value-labels text")]
    assert labels == ["1e-6", "1e-5", "0.0001", "0.001", "0.01", "0.1", "1"]
    tops = curve(loss)[1::2]
    steps_down = [after - before for before, after in itertools.pairwise(tops)]
    # an exponential is a straight line
    assert steps_down == [pytest.approx(steps_down[0], abs=0.21)] * 60
    press(browser, loss, "END")
    assert readout(loss) == (61, {"training": 1e-6})
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert "0.2" in [text.text for text in loss.find_elements("css selector", ".value-labels text")]

    rate.find_element("css selector", ".log").click()
    assert (
        rate.find_element("css selector", ".log").text == "log scale, without values at or below 0"
    )
    assert len(curve(rate)) == 2 * 30
    press(browser, rate, "HOME")
    assert readout(rate) == (1, {"learning rate": -30})
    assert not norm.find_element("css selector", ".log").is_enabled()
    before = scale(browser, norm, "y")
    press(browser, norm, "l")
    assert scale(browser, norm, "y") == before
    browser.check_silent()


def test_a_zoom_between_two_values_shows_the_line_between_them(
    browser: Browser, tmp_path: Path
) -> None:
    steps = [
        {"loss": 1.0, **({"eval_loss": 3.0 + step / 100} if step % 50 == 0 else {})}
        for step in range(201)
    ]
    browser.open(write_page(tmp_path, steps))
    chart = browser.chart("Loss")
    press(browser, chart, "HOME", *["ARROW_RIGHT"] * 75, "+", "+", "+", "+")
    first, last = scale(browser, chart, "x")
    assert 51 < first < last < 101
    assert count_pixels(browser, chart, 1) > 200
    hide = chart.find_elements("css selector", ".legend button")[0]
    hide.click()
    low, high = scale(browser, chart, "y")
    assert low < 3 + (first - 1) / 100 < 3 + (last - 1) / 100 < high
    assert high - low < 0.3
    assert readout(chart)[0] in (51, 101)
    press(browser, chart, "END")  # no step is in view
    assert readout(chart)[0] in (51, 101)
    press(browser, chart, "ESCAPE")
    assert scale(browser, chart, "x") == [1, 201]


def test_a_window_that_changes_its_width_is_filled(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["dpo"])
    chart = browser.chart("Loss")
    browser.show(PHONE)
    plot = chart.find_element("css selector", ".plot")
    wait_for(lambda: browser.run("return arguments[0].chart.width", chart) == plot.size["width"])
    assert plot.size["width"] < PHONE
    over, line = (chart.find_element("css selector", name).rect for name in (".over", ".grid line"))
    assert over["x"] == pytest.approx(line["x"], abs=1)
    assert over["width"] == pytest.approx(line["width"], abs=1)
