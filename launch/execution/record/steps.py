"""Read the steps of metrics.jsonl, and their metrics as curves of a bounded number of points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from launch.files import iterate_json_lines, read_json_lines

Point = tuple[int, float]  # a step and a value, which may be NaN or infinite

_COMPLETE = 4096  # the curves of a run with fewer steps have all points
_GROUPS = 1024  # groups into which the steps of a longer run are put; its curves keep some of each
_MAX_CURVES = 120
_MAX_STEP = 1 << 53  # floats hold all whole numbers up to it


def is_step(entry: Mapping[str, Any] | None) -> bool:
    """Return whether a line of metrics.jsonl is a logged step.

    `entry` is None for a line that is truncated, or that is not an object.
    """
    if entry is None:
        return False
    step = entry.get("step")
    return type(step) is int and 0 <= step < _MAX_STEP


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Return the logged steps of a file, in its order; other lines are left out."""
    return [entry for entry in read_json_lines(path) if is_step(entry)]


def logged_number(entry: Mapping[str, Any], name: str) -> float | None:
    """Return the number that a step logged under a name, which may be NaN or infinite; else None.

    A value that is not finite is null in the file, with its text under `NAME_text`.
    """
    value = entry.get(name)
    if value is None:
        text = entry.get(f"{name}_text")
        if not isinstance(text, str):
            return None
        try:
            return float(text)
        except ValueError:
            return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # the whole number is too large for a float
        return None


class Curve:
    """One metric over the steps, which are added from the last one to the first, because the file is
    read from its end.

    The lowest and the highest value of each group of `width` steps are kept, and the first value
    that is not finite, so that memory is bounded and no spike is lost.
    """

    def __init__(self, width: int = 1) -> None:
        self.count = 0  # all values
        self.bad_count = 0  # values that are NaN or infinite
        self.total = 0.0  # sum of the finite values
        self.first_bad: Point | None = None  # the first point that is NaN or infinite
        self.last: Point | None = None
        self._first: Point | None = None
        self._width = width
        # {number of the group: {low, high and bad: point}}.
        self._groups: dict[int, dict[str, Point]] = {}

    def add(self, step: int, value: float) -> None:
        """Add a point, which comes before those that were added so far."""
        point = (step, value)
        self.count += 1
        if math.isfinite(value):
            self.total += value
        else:
            self.bad_count += 1
            self.first_bad = point
        self._first = point
        if self.last is None:
            self.last = point
        self._keep(point)

    def _keep(self, point: Point) -> None:
        step, value = point
        group = self._groups.setdefault(step // self._width, {})
        if not math.isfinite(value):
            group["bad"] = point
        elif "low" not in group:
            group["low"] = group["high"] = point
        elif value < group["low"][1]:
            group["low"] = point
        elif value > group["high"][1]:
            group["high"] = point

    def thin(self, most: int) -> None:
        """Reduce the curve to about `most` points."""
        points = self.points()
        while len(points) > most:
            self._width *= 4
            self._groups = {}
            for point in reversed(points):
                self._keep(point)
            points = self.points()

    def points(self) -> list[Point]:
        """Return the points that are kept, by step, the first and the last one included."""
        kept: set[Point] = set()
        for group in self._groups.values():
            kept.update(group.values())
        for point in (self._first, self.last):
            if point is not None:
                kept.add(point)
        return sorted(kept, key=itemgetter(0))

    @property
    def low(self) -> Point | None:
        return min(self._finite(), key=itemgetter(1), default=None)

    @property
    def high(self) -> Point | None:
        return max(self._finite(), key=itemgetter(1), default=None)

    def _finite(self) -> list[Point]:
        return [point for point in self.points() if math.isfinite(point[1])]


@dataclass
class MetricCurves:
    """The curves of metrics.jsonl."""

    curves: dict[str, Curve] = field(default_factory=dict)
    steps: int = 0  # logged steps
    last_step: int | None = None
    unreadable: int = 0  # lines that are not a logged step

    def total(self, name: str) -> float | None:
        """Return the sum of a metric over the logged steps; None if it was not logged, or if the sum
        is too large for a float.
        """
        if name not in self.curves:
            return None
        total = self.curves[name].total
        return total if math.isfinite(total) else None

    def thin(self, points: int) -> None:
        """Reduce all curves together to about `points` points."""
        for curve in self.curves.values():
            curve.thin(max(64, points // len(self.curves)))


def read_curves(path: Path) -> MetricCurves:
    """Read metrics.jsonl in one pass, from its end.

    A step that a resumed run repeated counts once, with the values that were logged last.
    """
    result = MetricCurves()
    curves: dict[str, Curve] = {}
    next_step = _MAX_STEP
    width = 1
    for entry in iterate_json_lines(path, backwards=True):
        if entry is None or not is_step(entry):
            result.unreadable += 1
            continue
        step = entry["step"]
        if step >= next_step:
            continue
        next_step = step
        if result.last_step is None:
            result.last_step = step
            width = 1 if step < _COMPLETE else 1 + step // _GROUPS
        _add_step(curves, entry, width)
    result.steps = max((curve.count for curve in curves.values()), default=0)
    by_first_step = sorted(curves.items(), key=lambda item: item[1].points()[0][0])
    result.curves = dict(by_first_step)
    return result


def _add_step(curves: dict[str, Curve], entry: Mapping[str, Any], width: int) -> None:
    """Add the metrics of a logged step to their curves; a new curve has groups of `width` steps."""
    for name, logged in entry.items():
        if name in ("schema_version", "step"):
            continue
        # Most values are floats, which may be NaN or infinite: json.loads accepts these words.
        value = logged if type(logged) is float else logged_number(entry, name)
        if value is None:
            continue
        if name not in curves:
            if len(curves) >= _MAX_CURVES:
                continue
            curves[name] = Curve(width)
        curves[name].add(entry["step"], value)
