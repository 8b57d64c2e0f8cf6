"""The drawing of a chart: round labels for every range, curves that lose no extreme, a picture that
stands alone.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launch.execution.record.run import Run
from launch.execution.record.steps import Curve
from launch.execution.report.charts import Chart, Line
from launch.execution.report.drawing import Drawing, choose_ticks, thin, value_range
from launch.execution.report.page import render_runs
from tests.execution.report.folders import write_run
from tests.execution.report.test_page import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def drawing(*curves: Sequence[float], title: str = "Gradient norm") -> Drawing:
    """The drawing of these curves, whose steps are 0, 1, 2, ..."""
    lines = []
    for values in curves:
        curve = Curve()
        for step, value in reversed([*enumerate(values)]):
            curve.add(step, value)
        lines.append(Line("a curve", curve, 1.0, 0, 0))
    return Drawing(Chart(title, "", lines, (0, max(map(len, curves)) - 1)))


def parts(path: str) -> list[list[tuple[float, float]]]:
    """The places of a path's parts."""
    numbers = [
        [float(number) for number in part.removesuffix("h0").split()]
        for part in path.split("M")[1:]
    ]
    return [list(zip(part[::2], part[1::2], strict=True)) for part in numbers]


def read_label(label: str) -> float:
    return float(label.replace(",", ""))


@given(FLOATS, FLOATS, st.integers(2, 12))
@example(-5181819500000000.0, -8818199499999840.0, 2)  # between two multiples of the usual step
def test_labels_are_round_and_inside_of_their_axis(one: float, other: float, most: int) -> None:
    # the page's values have seven digits
    low, high = value_range(*sorted(float(f"{value:.7g}") for value in (one, other)))
    ticks = choose_ticks(low, high, most)
    values = [value for value, _ in ticks]
    slack = (high / 2 - low / 2) * 1e-6
    assert 1 <= len(ticks) <= most + 1
    assert all(low - slack <= value <= high + slack for value in values)
    assert [read_label(label) for _, label in ticks] == pytest.approx(values, rel=1e-9, abs=0)
    assert len({label for _, label in ticks}) == len(ticks)
    if len(values) > 1:
        mantissa = f"{values[1] - values[0]:e}"[:3]
        assert mantissa in ("1.0", "2.0", "5.0", "9.9", "1.9", "4.9")


@given(st.integers(0, 10**12), st.integers(1, 10**12), st.integers(2, 16))
def test_the_labels_of_steps_are_whole(first: int, width: int, most: int) -> None:
    ticks = choose_ticks(first, first + width, most, is_whole=True)
    assert len(ticks) <= most + 1
    assert [int(label.replace(",", "")) for _, label in ticks] == [value for value, _ in ticks]


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 1, ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (-2.6, 4.1, ["-2", "0", "2", "4"]),
        (0, 1.8e-5, ["0", "5e-6", "1e-5", "1.5e-5"]),
        (
            1e6,
            1e6 + 1,
            [
                "1,000,000.0",
                "1,000,000.2",
                "1,000,000.4",
                "1,000,000.6",
                "1,000,000.8",
                "1,000,001.0",
            ],
        ),
        (0, 3.1e7, ["0", "1e7", "2e7", "3e7"]),
        (-1.7e308, 1.7e308, ["-1e308", "0", "1e308"]),
    ],
)
def test_labels(low: float, high: float, labels: list[str]) -> None:
    assert [label for _, label in choose_ticks(low, high, 5)] == labels


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0, 1e-300, 1e308, -1e308, 5e-324])
def test_a_constant_curve_is_within_its_axis(value: float) -> None:
    low, high = value_range(value, value)
    assert low < value < high
    assert math.isfinite(low) and math.isfinite(high)


def test_a_thinned_curve_keeps_its_ends_in_every_column() -> None:
    source = random.Random(0)
    places = [(index / 50, source.gauss(0, 1)) for index in range(10_000)]
    kept = thin(places)
    assert set(kept) <= set(places) and kept == sorted(kept)
    for column in range(200):
        heights = [top for left, top in places if int(left) == column]
        shown = [(left, top) for left, top in kept if int(left) == column]
        assert len(shown) <= 4
        assert {min(heights), max(heights), heights[0], heights[-1]} <= {top for _, top in shown}


def test_a_value_that_is_not_finite_interrupts_the_curve_and_one_alone_is_a_dot() -> None:
    values = [*[2.0] * 100, math.nan, 5.0, math.inf, *[3.0] * 100]
    ((_, curve, dots),) = drawing(values).paths
    first, second = parts(curve)
    assert (len(first), len(second)) == (100, 100)
    assert parts(dots) == [
        [(pytest.approx(101 / 202 * drawing(values).area_width, abs=0.1), pytest.approx(8, abs=1))]
    ]


def test_few_values_are_dots_too_and_many_are_not() -> None:
    assert [len(parts(drawing([1.0, 2.0] * half).paths[0][2])) for half in (1, 10, 100)] == [
        2,
        20,
        0,
    ]


@pytest.mark.parametrize(
    "values",
    [
        [1e308, -1e308, 1e308],
        [3.0] * 4,
        [1e-300, 3e-300],
        [0.0, 0.0],
        [math.nan, math.nan],
        [5e-324, 0.0],
    ],
)
def test_every_range_is_inside_of_the_picture(values: list[float]) -> None:
    shown = drawing(values)
    places = [place for part in parts(shown.paths[0][1]) for place in part]
    assert len(places) == sum(map(math.isfinite, values))
    assert all(
        0 <= left <= shown.area_width and 0 <= top <= shown.area_height for left, top in places
    )
    assert all(0 <= tick.place <= shown.area_height for tick in shown.value_ticks)
    assert len(shown.value_ticks) > 1


def pictures(page: str) -> list[ElementTree.Element]:
    """The charts of a page, each as a file of its own."""
    found = re.findall(r'<svg xmlns="http://www.w3.org/2000/svg".*?\n</svg>\n', page, re.DOTALL)
    return [ElementTree.fromstring(text) for text in found]


def test_a_chart_stands_alone_with_its_curve_axes_and_last_value(tmp_path: Path) -> None:
    steps = [{"loss": 5.0 - step / 100, "lr": 1e-5, HOSTILE: float(step)} for step in range(100)]
    shown = pictures(render_runs([Run(write_run(tmp_path / "demo" / "x", steps))]))
    assert len(shown) > 3
    for picture in shown:
        assert picture.get("role") == "img"
        assert picture.get("aria-labelledby") == picture.find(f"{SVG}title").get("id")
        assert picture.get("aria-describedby") == picture.find(f"{SVG}desc").get("id")
        for element in picture.iter():
            assert not set(element.attrib) & {"href", "src"}
        for group in picture.iter(f"{SVG}g"):
            assert re.fullmatch("#[0-9a-f]{3,6}", str(group.get("fill"))) or group.get(
                "stroke", ""
            ).startswith("#")
    ids = [
        element.get("id") for picture in shown for element in picture.iter() if element.get("id")
    ]
    assert len(ids) == len(set(ids))
    loss = next(picture for picture in shown if picture.findtext(f"{SVG}title") == "Loss, by step")
    texts = [element.text for element in loss.iter(f"{SVG}text")]
    assert {"4.0", "4.2", "5.0", "20", "100", "Loss, by step", "training: 4.01 at step 100"} <= set(
        texts
    )
    assert "training: 100 values, from 4.01 (step 100) to 5 (step 1)" in str(
        loss.findtext(f"{SVG}desc")
    )
    assert [path for path in loss.iter(f"{SVG}path") if len(str(path.get("d"))) > 500]
