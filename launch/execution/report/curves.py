"""The curves of metrics.jsonl, thinned as they are read: memory is bounded, and no spike is lost.

A curve is kept in buckets of equal width in steps. Of each bucket the first, lowest, highest and last point remain (M4:
Jugel et al., VLDB 2014), which draws the same picture as all points do at that resolution. The width doubles when there
are too many buckets, so a curve of few points is complete.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.execution.record.reader import number
from launch.files import iterate_json_lines

Point = tuple[int, float]  # a step and a value, which may be NaN or infinite

_MAX_BUCKETS = 1024
_MAX_CURVES = 120
_MAX_STEP = 1 << 53
_NOT_CURVES = ("schema_version", "step")
_TEXT = "_text"  # the end of the key that keeps which value a null stands for


@dataclass
class _Bucket:
    first: Point
    low: Point
    high: Point
    last: Point
    bad: Point | None  # the first value in it that is not finite
    count: int  # of all values, and of those that are not finite
    bad_count: int
    total: float  # of the finite values

    @classmethod
    def of(cls, steps: Sequence[int], values: Sequence[float]) -> _Bucket:
        """Summarize the values at `steps`, of which there is at least one."""
        first, last = (steps[0], values[0]), (steps[-1], values[-1])
        total = sum(values)
        if math.isfinite(total):
            low, high = min(values), max(values)
            lowest, highest = (steps[values.index(low)], low), (steps[values.index(high)], high)
            return cls(first, lowest, highest, last, None, len(values), 0, total)
        finite = [(value, step) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
        bad = next((point for point in zip(steps, values, strict=True) if not math.isfinite(point[1])), None)
        low_value, low_step = min(finite, default=first[::-1])
        high_value, high_step = max(finite, default=first[::-1])
        lowest, highest = (int(low_step), float(low_value)), (int(high_step), float(high_value))
        total = sum(value for value, _ in finite)
        return cls(first, lowest, highest, last, bad, len(values), len(values) - len(finite), total)

    def merge(self, later: _Bucket) -> None:
        self.last, self.bad = later.last, self.bad or later.bad
        self.count, self.bad_count = self.count + later.count, self.bad_count + later.bad_count
        self.total += later.total
        for point in (later.low, later.high):
            if math.isfinite(point[1]):
                self.low = point if not point[1] >= self.low[1] else self.low
                self.high = point if not point[1] <= self.high[1] else self.high

    def points(self) -> list[Point]:
        kept = {point[0]: point for point in (self.first, self.low, self.high, self.last, self.bad) if point}
        return [kept[step] for step in sorted(kept)]


class Curve:
    """One metric over the steps."""

    def __init__(self) -> None:
        self._width = 1  # steps of a bucket
        self._closed: dict[int, _Bucket] = {}  # by step // width, increasing
        self._steps: list[int] = []  # of the last bucket, which is still open
        self._values: list[float] = []
        self._end = 0  # the first step after it

    def add(self, step: int, value: float) -> None:
        """Add the value at a step, which is greater than those before."""
        if step >= self._end:
            self._close()
            self._end = (step // self._width + 1) * self._width
        self._steps.append(step)
        self._values.append(value)

    def drop_from(self, step: int) -> None:
        """Drop what was logged at `step` and later: a resumed run logs these steps again."""
        buckets = self._buckets
        boundary = step // self._width
        while buckets and next(reversed(buckets)) >= boundary:
            key, bucket = buckets.popitem()
            kept = [point for point in bucket.points() if point[0] < step] if key == boundary else []
            if kept:
                buckets[key] = _Bucket.of([point[0] for point in kept], [point[1] for point in kept])
                break

    def thin(self, buckets: int) -> None:
        """Reduce the curve to at most `buckets` buckets of up to five points."""
        while len(self._buckets) > buckets:
            self._widen()

    def points(self) -> list[Point]:
        """Return the points that are left, by step."""
        return [point for bucket in self._buckets.values() for point in bucket.points()]

    @property
    def count(self) -> int:
        """How many values were logged."""
        return sum(bucket.count for bucket in self._buckets.values())

    @property
    def bad_count(self) -> int:
        """How many of them are NaN or infinite."""
        return sum(bucket.bad_count for bucket in self._buckets.values())

    @property
    def first_bad(self) -> Point | None:
        return next((bucket.bad for bucket in self._buckets.values() if bucket.bad), None)

    @property
    def total(self) -> float:
        """The sum of the finite values."""
        return sum(bucket.total for bucket in self._buckets.values())

    @property
    def last(self) -> Point | None:
        return self._buckets[next(reversed(self._buckets))].last if self._buckets else None

    @property
    def low(self) -> Point | None:
        return min(self._finite(), key=lambda point: point[1], default=None)

    @property
    def high(self) -> Point | None:
        return max(self._finite(), key=lambda point: point[1], default=None)

    def _finite(self) -> list[Point]:
        return [point for point in self.points() if math.isfinite(point[1])]

    @property
    def _buckets(self) -> dict[int, _Bucket]:
        """All buckets; the open one is closed first."""
        self._close()
        return self._closed

    def _close(self) -> None:
        """Close the open bucket. The next value opens another one, which may be the second part of the same steps."""
        if not self._steps:
            return
        key, bucket = self._steps[0] // self._width, _Bucket.of(self._steps, self._values)
        if key in self._closed:
            self._closed[key].merge(bucket)
        else:
            self._closed[key] = bucket
        self._steps, self._values, self._end = [], [], 0
        if len(self._closed) > _MAX_BUCKETS:
            self._widen()

    def _widen(self) -> None:
        self._width *= 2
        old, self._closed = self._closed, {}
        for key, bucket in old.items():
            if key // 2 in self._closed:
                self._closed[key // 2].merge(bucket)
            else:
                self._closed[key // 2] = bucket


@dataclass
class Metrics:
    """What metrics.jsonl holds."""

    curves: dict[str, Curve] = field(default_factory=dict)
    steps: int = 0  # logged steps
    last_step: int | None = None
    unreadable: int = 0  # lines that are not a logged step

    def total(self, name: str) -> float | None:
        """Return the sum of a metric over the logged steps; None where it was not logged."""
        return self.curves[name].total if name in self.curves else None

    def thin(self, points: int) -> None:
        """Reduce all curves together to about `points` points."""
        limit = max(16, points // (4 * max(1, len(self.curves))))
        for curve in self.curves.values():
            curve.thin(limit)


def read_metrics(path: Path) -> Metrics:
    """Read metrics.jsonl in one pass. A step that is repeated, as a resumed run does, counts once, as logged last."""
    metrics = Metrics()
    curves = metrics.curves
    for entry in iterate_json_lines(path):
        step = entry.get("step") if entry is not None else None
        if entry is None or isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < _MAX_STEP:
            metrics.unreadable += 1
            continue
        if metrics.last_step is not None and step <= metrics.last_step:
            for repeated in curves.values():
                repeated.drop_from(step)
        metrics.last_step = step
        for name, value in entry.items():
            if type(value) is not float:  # most are; json.loads also takes NaN and Infinity
                value = _convert(entry, name)  # noqa: PLW2901
                if value is None:
                    continue
            curve = curves.get(name)
            if curve is None:
                if len(curves) >= _MAX_CURVES:
                    continue
                curve = curves[name] = Curve()
            curve.add(step, value)
    metrics.steps = max((curve.count for curve in metrics.curves.values()), default=0)
    return metrics


def _convert(entry: Mapping[str, Any], name: str) -> float | None:
    """Return a value that is not a float as one; None if it is not a metric."""
    if entry[name] is None:
        text = entry.get(name + _TEXT)
        return _parse_float(text) if isinstance(text, str) else None
    return None if name in _NOT_CURVES else number(entry[name])


def _parse_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
