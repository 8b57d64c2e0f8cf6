"""The steps of metrics.jsonl: which lines are steps, their numbers, and their curves, thinned as they
are read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from launch.files import iterate_json_lines, read_json_lines

Point = tuple[int, float]  # a step and a value, which may be NaN or infinite

_COMPLETE = 4096  # steps of a run whose curves are complete
_GROUPS = 1024  # of steps that the curves of a longer run are thinned to
_MAX_CURVES = 120
_MAX_STEP = 1 << 53  # that a float holds


def is_step(entry: Mapping[str, Any] | None) -> bool:
    """Return whether a line of metrics.jsonl is a logged step; None stands for a line that is cut
    off or not an object.
    """
    if entry is None:
        return False
    step = entry.get("step")
    return type(step) is int and 0 <= step < _MAX_STEP


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Return the logged steps of a file, in its order; other lines are left out."""
    return [entry for entry in read_json_lines(path) if is_step(entry)]


def logged_number(entry: Mapping[str, Any], name: str) -> float | None:
    """Return what a step logged under a name, which may be NaN or infinite; None without a number.

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
    except OverflowError:  # a whole number that no float holds
        return None


class Curve:
    """One metric over the steps, which are added from the last one to the first, as the file is
    read from its end.

    Of each `width` steps the lowest and the highest value remain, and the first one that is not
    finite: memory is bounded, and no spike is lost.
    """

    def __init__(self, width: int = 1) -> None:
        self.count = self.bad_count = 0  # of all values, and of those that are NaN or infinite
        self.total = 0.0  # of the others
        self.first_bad: Point | None = None
        self.last: Point | None = None
        self._first: Point | None = None
        self._width = width
        self._groups: dict[int, dict[str, Point]] = {}  # of steps

    def add(self, step: int, value: float) -> None:
        self.count += 1
        if math.isfinite(value):
            self.total += value
        else:
            self.bad_count += 1
            self.first_bad = step, value
        self._first = step, value
        self.last = self.last or self._first
        self._keep(self._first)

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
        while len(points := self.points()) > most:
            self._width, self._groups = self._width * 4, {}
            for point in reversed(points):
                self._keep(point)

    def points(self) -> list[Point]:
        """Return the points that are left, by step, the first and the last one included."""
        kept = {point for group in self._groups.values() for point in group.values()}
        return sorted(kept.union(filter(None, (self._first, self.last))), key=itemgetter(0))

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
        """Return the sum of a metric over the logged steps; None where it was not logged, or no
        float holds it.
        """
        total = self.curves[name].total if name in self.curves else math.inf
        return total if math.isfinite(total) else None

    def thin(self, points: int) -> None:
        """Reduce all curves together to about `points` points."""
        for curve in self.curves.values():
            curve.thin(max(64, points // len(self.curves)))


def read_curves(path: Path) -> MetricCurves:
    """Read metrics.jsonl in one pass, from its end: a step that a resumed run repeats counts once,
    as logged last.
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
        for name, logged in entry.items():
            if name in ("schema_version", "step"):
                continue
            # most are floats; json.loads also takes NaN and Infinity
            value = logged if type(logged) is float else logged_number(entry, name)
            if value is None:
                continue
            curve = curves.get(name)
            if curve is None:
                if len(curves) >= _MAX_CURVES:
                    continue
                curve = curves[name] = Curve(width)
            curve.add(step, value)
    result.steps = max((curve.count for curve in curves.values()), default=0)
    # in the order of the log
    result.curves = dict(sorted(curves.items(), key=lambda item: item[1].points()[0][0]))
    return result
