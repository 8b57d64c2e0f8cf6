"""Draw a chart as SVG: axes with round numbers, and curves with a few points per column of pixels.

The page shows this drawing without a script. charts.js draws it again at the size of the window and
for a zoom, by the same rules (drawing.js). Horizontal positions are given as shares of the width,
so that labels keep their size on a phone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import ClassVar

from launch.execution.record.steps import Point
from launch.execution.report.charts import Chart, Line, round_value
from launch.table import format_measurement

Pixel = tuple[float, float]  # pixels from the left and from the top

_SIZE = (560, 210)
_LARGE_SIZE = (840, 340)
_BOTTOM = 26  # pixels below the area of the curves, for the labels of the steps
_ROW = 18  # pixels; height of a line of text below the chart
DASHES = ("", "7 4", "2 4", "9 4 2 4")
_CHARACTER = 6.6  # pixels; greatest width of a digit at a font size of 11 pixels
_NARROW = 250  # pixels; width of the area on a phone, where the labels of the steps have to fit
_TICK_HEIGHT = 28  # pixels; least distance of the labels of values
_DOT_GAP = 12  # pixels; steps that are farther apart are drawn as dots
_LEAST_SPAN = 1e-305  # floats are too coarse for an axis with a smaller span


@dataclass(frozen=True)
class AxisTick:
    """A label of an axis."""

    place: float  # for values: pixels from the top; for steps: percent of the width from the left
    label: str


@dataclass(frozen=True)
class Drawing:
    """A chart at the size of a picture on a slide. The chart of the loss is larger than the others."""

    chart: Chart
    top: ClassVar[int] = 8  # pixels above the area of the curves

    @property
    def is_large(self) -> bool:
        return self.chart.title == "Loss"

    @property
    def _size(self) -> tuple[int, int]:
        return _LARGE_SIZE if self.is_large else _SIZE

    @property
    def width(self) -> int:
        return self._size[0]

    @property
    def height(self) -> int:
        return self._size[1]

    @property
    def full_height(self) -> int:
        """The height with the key, which only a saved picture has, since the page has a legend."""
        return self.row(len(self.chart.lines)) + _ROW // 2

    def row(self, index: int) -> int:
        """Return the base line of a line of text below the chart."""
        return self.height + _ROW * (index + 1)

    @property
    def area_width(self) -> int:
        return self.width - self.left - self.right

    @property
    def area_height(self) -> int:
        return self.height - self.top - _BOTTOM

    @property
    def share(self) -> float:
        """The part of the width that the curves take."""
        return round(self.area_width / self.width, 4)

    @cached_property
    def left(self) -> int:
        """The pixels on the left of the area of the curves, for the labels of the values."""
        longest = max((len(tick.label) for tick in self.value_ticks), default=0)
        return max(30, self.right, math.ceil(longest * _CHARACTER) + 10)

    @property
    def right(self) -> int:
        return max(12, math.ceil(len(f"{self.chart.steps[1]:,}") * _CHARACTER / 2))

    @property
    def title(self) -> str:
        """The title of the chart, with its unit."""
        unit = f", {self.chart.unit}" if self.chart.unit else ""
        return f"{self.chart.title}{unit}, by step"

    @property
    def description(self) -> str:
        """The curves in words, for readers who cannot see them."""
        return " ".join(_describe(line) for line in self.chart.lines)

    @property
    def key(self) -> list[str]:
        """Each curve's name and last value."""
        unit = f" {self.chart.unit.split(' ')[0]}" if self.chart.unit else ""
        return [f"{line.label}: {_describe_last(line, unit)}" for line in self.chart.lines]

    @cached_property
    def value_ticks(self) -> list[AxisTick]:
        low, high = self._range
        ticks = choose_ticks(low, high, max(2, self.area_height // _TICK_HEIGHT))
        return [AxisTick(round(self._y_of(value), 1), label) for value, label in ticks]

    @property
    def step_ticks(self) -> list[AxisTick]:
        first, last = self.chart.steps
        label_width = max(36.0, len(f"{last:,}") * _CHARACTER + 14)
        most = max(2, int(_NARROW / label_width))
        ticks = choose_ticks(first, last, most, is_whole=True)
        return [AxisTick(self._percent_of(step), label) for step, label in ticks]

    @property
    def marks(self) -> list[AxisTick]:
        """The marks of the chart that are among its steps."""
        first, last = self.chart.steps
        marks = [mark for mark in self.chart.marks if first <= mark[0] <= last]
        return [AxisTick(self._percent_of(step), label) for step, label in marks]

    def _percent_of(self, step: float) -> float:
        """Return the place of a step, in percent of the width from the left."""
        first, last = self.chart.steps
        return round(100 * (step - first) / (last - first), 2)

    @property
    def paths(self) -> list[tuple[Line, str, str]]:
        """Each line with the SVG path of its curve and the path of its dots."""
        paths = []
        for line in self.chart.lines:
            segments = self._place_segments(line)
            paths.append((line, _curve_path(segments), _dots_path(segments)))
        return paths

    @cached_property
    def _range(self) -> tuple[float, float]:
        """The lowest and the highest value of the axis."""
        values = [value for line in self.chart.lines for _, value in _finite_points(line)]
        return value_range(min(values), max(values)) if values else (0.0, 1.0)

    def _y_of(self, value: float) -> float:
        """Return the pixels of a value from the top. Halves do not overflow at the largest float."""
        low, high = self._range
        return self.area_height * (1 - (value / 2 - low / 2) / (high / 2 - low / 2))

    def _place_segments(self, line: Line) -> list[list[Pixel]]:
        """Return the places of a curve's points. A value that is not finite ends a segment."""
        first, last = self.chart.steps
        pixels_per_step = self.area_width / (last - first)
        segments: list[list[Pixel]] = [[]]
        for step, value in line.points:
            rounded = round_value(value)
            if isinstance(rounded, str):
                segments.append([])
                continue
            left = pixels_per_step * (step - first)
            segments[-1].append((left, self._y_of(rounded)))
        return segments


def _curve_path(segments: Sequence[Sequence[Pixel]]) -> str:
    """Return the SVG path of the segments that have more than one point."""
    path = ""
    for segment in segments:
        if len(segment) > 1:
            path += f"M{_write_places(thin(segment))}"
    return path


def _dots_path(segments: Sequence[Sequence[Pixel]]) -> str:
    """Return the SVG path of the dots: all points if they are sparse, else the points that stand
    alone.
    """
    places = [place for segment in segments for place in segment]
    is_sparse = True
    if len(places) > 1:
        distance = (places[-1][0] - places[0][0]) / (len(places) - 1)
        is_sparse = distance > _DOT_GAP
    dots = places
    if not is_sparse:
        dots = [segment[0] for segment in segments if len(segment) == 1]
    path = ""
    for dot in dots:
        path += f"M{_write_places([dot])}h0"
    return path


def value_range(low: float, high: float) -> tuple[float, float]:
    """Return the ends of the axis for values from `low` to `high`: these and a margin."""
    half_span = high / 2 - low / 2
    margin = half_span / 10 if half_span > _LEAST_SPAN else abs(high) / 20
    if margin <= _LEAST_SPAN:
        margin = 1.0
    largest = sys.float_info.max
    return max(-largest, low - margin), min(largest, high + margin)


def choose_ticks(
    low: float, high: float, most: int, *, is_whole: bool = False
) -> list[tuple[float, str]]:
    """Return up to about `most` round values from `low` to `high`, with the label of each.

    Their distance is 1, 2 or 5 times a power of ten.
    """
    distance = (high / 2 - low / 2) / most * 2
    mantissa, _, exponent = f"{distance:e}".partition("e")
    factor = next(factor for factor in (1, 2, 5, 10) if factor >= float(mantissa))
    power = int(exponent)
    if factor == 10:
        factor = 1
        power += 1
    if is_whole and power < 0:
        factor = 1
        power = 0
    values = _multiples(low, high, factor, power)
    if not values:  # the axis is between two multiples; the next smaller distance has one on it
        if factor == 1:
            power -= 1
        factor = {1: 5, 2: 1, 5: 2}[factor]
        values = _multiples(low, high, factor, power)
    size = max(map(abs, values), default=0.0)
    is_scientific = not is_whole and (size >= 1e7 or size < 1e-3)
    return [(value, _label(value, power, is_scientific)) for value in values]


def _multiples(low: float, high: float, factor: int, power: int) -> list[float]:
    """Return the multiples of `factor` x 10^`power` from `low` to `high`."""
    step = float(f"{factor}e{power}")
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{index * factor}e{power}") for index in range(first, last + 1)]


def _label(value: float, power: int, is_scientific: bool) -> str:
    """Return a value as text, with no more digits than a multiple of 10^`power` needs."""
    if not value:
        return "0"
    if not is_scientific:
        return f"{value:,.{max(0, -power)}f}"
    size = int(f"{value:e}".partition("e")[2])
    mantissa, _, exponent = f"{value:.{max(0, size - power)}e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def thin(places: Sequence[Pixel]) -> list[Pixel]:
    """Return a curve with at most four places in each column of pixels: the first, the highest, the
    lowest, and the last.
    """
    kept: list[Pixel] = []
    for _, group in groupby(places, key=lambda place: int(place[0])):
        column = list(group)
        tops = [top for _, top in column]
        indices = {0, tops.index(min(tops)), tops.index(max(tops)), len(column) - 1}
        kept += [column[index] for index in sorted(indices)]
    return kept


def _write_places(places: Sequence[Pixel]) -> str:
    """Return places in the syntax of an SVG path, with tenths of a pixel."""
    return " ".join(f"{round(left, 1):g} {round(top, 1):g}" for left, top in places)


def _finite_points(line: Line) -> list[Point]:
    rounded = [(step, round_value(value)) for step, value in line.points]
    return [(step, value) for step, value in rounded if not isinstance(value, str)]


def _describe_last(line: Line, unit: str) -> str:
    if not line.points:
        return "no value"
    step, value = line.points[-1]
    return f"{format_measurement(value)}{unit} at step {step:,}"


def _describe(line: Line) -> str:
    low, high = line.describe_extremes()
    extremes = f", from {low} to {high}" if low else ""
    return f"{line.label}: {line.curve.count:,} values{extremes}, last {_describe_last(line, '')}."
