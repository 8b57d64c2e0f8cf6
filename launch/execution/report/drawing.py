"""A chart as SVG: axes with round numbers, and curves reduced to what a column of pixels can show.

The page shows this drawing without a script; charts.js draws it again at the size of the window and
for a zoom, by the same rules (drawing.js). What depends on the width is in shares of it, so that
labels keep their size on a phone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import ClassVar

from launch.execution.record.steps import Point
from launch.execution.report.charts import Chart, Line, format_value, round_value

Place = tuple[float, float]  # pixels from the left and from the top

_SIZE = (560, 210)
_LARGE_SIZE = (840, 340)
_BOTTOM = 26  # pixels below the area of the curves, for the labels of the steps
_ROW = 18  # pixels of a line of text below the chart
DASHES = ("", "7 4", "2 4", "9 4 2 4")
_CHARACTER = 6.6  # pixels of a digit at 11 px, at most
_NARROW = 250  # pixels of the area on a phone, where the labels of the steps have to fit too
_TICK_HEIGHT = 28  # pixels between the labels of values, at least
_DOT_GAP = 12  # pixels between two steps from which on each one is a dot
_LEAST_SPAN = 1e-305  # floats are too coarse for an axis below it


@dataclass(frozen=True)
class AxisTick:
    """A label of an axis."""

    place: float  # of values pixels from the top, of steps percent of the width
    label: str


@dataclass(frozen=True)
class Drawing:
    """A chart at the size of a slide's picture. The loss is larger than the others."""

    chart: Chart
    top: ClassVar[int] = 8  # pixels above the area of the curves

    @property
    def is_large(self) -> bool:
        return self.chart.title == "Loss"

    @property
    def width(self) -> int:
        return (_LARGE_SIZE if self.is_large else _SIZE)[0]

    @property
    def height(self) -> int:
        return (_LARGE_SIZE if self.is_large else _SIZE)[1]

    @property
    def full_height(self) -> int:
        """The height with the key, which the page does not show: it has a legend."""
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
        """The pixels beside the area of the curves, for the labels of the values."""
        longest = max((len(tick.label) for tick in self.value_ticks), default=0)
        return max(30, self.right, math.ceil(longest * _CHARACTER) + 10)

    @property
    def right(self) -> int:
        return max(12, math.ceil(len(f"{self.chart.steps[1]:,}") * _CHARACTER / 2))

    @property
    def title(self) -> str:
        """What the chart shows, in words."""
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
        return [AxisTick(round(self._top_of(value), 1), label) for value, label in ticks]

    @property
    def step_ticks(self) -> list[AxisTick]:
        first, last = self.chart.steps
        space = max(36.0, len(f"{last:,}") * _CHARACTER + 14)
        ticks = choose_ticks(first, last, max(2, int(_NARROW / space)), is_whole=True)
        return [
            AxisTick(round(100 * (step - first) / (last - first), 2), label)
            for step, label in ticks
        ]

    @property
    def paths(self) -> list[tuple[Line, str, str]]:
        """Each line with the path of its curve and that of its dots."""
        return [(line, *self._trace(line)) for line in self.chart.lines]

    @cached_property
    def _range(self) -> tuple[float, float]:
        values = [value for line in self.chart.lines for _, value in _finite(line)]
        return value_range(min(values), max(values)) if values else (0.0, 1.0)

    def _top_of(self, value: float) -> float:
        low, high = self._range
        return self.area_height * (1 - (value / 2 - low / 2) / (high / 2 - low / 2))

    def _trace(self, line: Line) -> tuple[str, str]:
        """Return the path of the curve, which a value that is not finite interrupts, and that of
        its dots.
        """
        first, last = self.chart.steps
        scale = self.area_width / (last - first)
        parts: list[list[Place]] = [[]]
        for step, value in line.points:
            shown = round_value(value)
            if isinstance(shown, str):
                parts.append([])
            else:
                parts[-1].append((scale * (step - first), self._top_of(shown)))
        places = [place for part in parts for place in part]
        is_sparse = len(places) < 2 or (places[-1][0] - places[0][0]) / (len(places) - 1) > _DOT_GAP
        dots = places if is_sparse else [part[0] for part in parts if len(part) == 1]
        curve = "".join(f"M{_write(thin(part))}" for part in parts if len(part) > 1)
        return curve, "".join(f"M{_write([dot])}h0" for dot in dots)


def value_range(low: float, high: float) -> tuple[float, float]:
    """Return the ends of the axis of these values: they and a margin."""
    span = high / 2 - low / 2
    margin = span / 10 if span > _LEAST_SPAN else abs(high) / 20
    if margin <= _LEAST_SPAN:
        margin = 1.0
    most = sys.float_info.max
    return max(-most, low - margin), min(most, high + margin)


def choose_ticks(
    low: float, high: float, most: int, *, is_whole: bool = False
) -> list[tuple[float, str]]:
    """Return up to about `most` round values from `low` to `high`, with the label of each."""
    mantissa, _, exponent = f"{(high / 2 - low / 2) / most * 2:e}".partition("e")
    factor = next(factor for factor in (1, 2, 5, 10) if factor >= float(mantissa))
    power = int(exponent)
    if factor == 10:
        factor = 1
        power += 1
    if is_whole and power < 0:
        factor = 1
        power = 0
    values = _multiples(low, high, factor, power)
    if not values:  # the axis lies between two of them
        factor, power = {1: (5, power - 1), 2: (1, power), 5: (2, power)}[factor]
        values = _multiples(low, high, factor, power)
    size = max(map(abs, values), default=0.0)
    is_scientific = not is_whole and (size >= 1e7 or size < 1e-3)
    return [(value, _label(value, power, is_scientific)) for value in values]


def _multiples(low: float, high: float, factor: int, power: int) -> list[float]:
    """Return the multiples of `factor` x 10^`power` from `low` to `high`."""
    step = float(f"{factor}e{power}")
    indices = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [float(f"{index * factor}e{power}") for index in indices]


def _label(value: float, power: int, is_scientific: bool) -> str:
    if not value or not is_scientific:
        return f"{value:,.{max(0, -power)}f}" if value else "0"
    size = int(f"{value:e}".partition("e")[2])
    mantissa, _, exponent = f"{value:.{max(0, size - power)}e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def thin(places: Sequence[Place]) -> list[Place]:
    """Return a curve with at most four places in each column of pixels: the first, the ends, and
    the last.
    """
    return [
        place
        for _, column in groupby(places, key=lambda place: int(place[0]))
        for place in _ends(list(column))
    ]


def _ends(column: Sequence[Place]) -> Iterator[Place]:
    heights = [height for _, height in column]
    kept = {0, heights.index(min(heights)), heights.index(max(heights)), len(column) - 1}
    return (column[index] for index in sorted(kept))


def _write(places: Sequence[Place]) -> str:
    return " ".join(f"{round(left, 1):g} {round(top, 1):g}" for left, top in places)


def _finite(line: Line) -> list[Point]:
    rounded = [(step, round_value(value)) for step, value in line.points]
    return [(step, value) for step, value in rounded if not isinstance(value, str)]


def _describe_last(line: Line, unit: str) -> str:
    if not line.points:
        return "no value"
    step, value = line.points[-1]
    return f"{format_value(value)}{unit} at step {step:,}"


def _describe(line: Line) -> str:
    low, high = line.describe_extremes()
    extremes = f", from {low} to {high}" if low else ""
    return f"{line.label}: {line.curve.count:,} values{extremes}, last {_describe_last(line, '')}."
