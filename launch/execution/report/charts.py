"""The charts of a page: the curves of metrics.jsonl, thinned as they are read, and what each chart
shows.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

from launch.execution.record.reader import number
from launch.files import iterate_json_lines
from launch.terminal import printable

Point = tuple[int, float]  # a step and a value, which may be NaN or infinite

COLOURS = 6  # of page.css; curves beyond them repeat the colours with another dash
_TABLE_STEPS = 6
_COMPLETE = 4096  # steps of a run whose curves are complete
_GROUPS = 1024  # of steps that the curves of a longer run are thinned to
_MAX_CURVES = 120
_MAX_STEP = 1 << 53


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
class Metrics:
    """What metrics.jsonl holds."""

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


def read_metrics(path: Path) -> Metrics:
    """Read metrics.jsonl in one pass, from its end: a step that a resumed run repeats counts once,
    as logged last.
    """
    metrics, curves, next_step, width = Metrics(), dict[str, Curve](), _MAX_STEP, 1
    for entry in iterate_json_lines(path, backwards=True):
        step = entry.get("step") if entry is not None else None
        if (
            entry is None
            or isinstance(step, bool)
            or not isinstance(step, int)
            or not 0 <= step < _MAX_STEP
        ):
            metrics.unreadable += 1
            continue
        if step >= next_step:
            continue
        next_step = step
        if metrics.last_step is None:
            metrics.last_step = step
            width = 1 if step < _COMPLETE else 1 + step // _GROUPS
        for name, logged in entry.items():
            # most are floats; json.loads also takes NaN and Infinity
            if (value := logged if type(logged) is float else _convert(entry, name)) is None:
                continue
            if (curve := curves.get(name)) is None:
                if len(curves) >= _MAX_CURVES:
                    continue
                curve = curves[name] = Curve(width)
            curve.add(step, value)
    metrics.steps = max((curve.count for curve in curves.values()), default=0)
    # in the order of the log
    metrics.curves = dict(sorted(curves.items(), key=lambda item: item[1].points()[0][0]))
    return metrics


def _convert(entry: Mapping[str, Any], name: str) -> float | None:
    """Return a value that is not a float as one; None if it is not a metric."""
    if entry[name] is not None:
        return None if name in ("schema_version", "step") else number(entry[name])
    text = entry.get(f"{name}_text")  # which value a null stands for
    try:
        return float(text) if isinstance(text, str) else None
    except ValueError:
        return math.nan


@dataclass(frozen=True)
class Line:
    """One curve of a chart."""

    label: str
    curve: Curve
    scale: float  # from the recorded value to the chart's unit
    colour: int
    dash: int

    @cached_property
    def points(self) -> list[Point]:
        return [(step, value * self.scale) for step, value in self.curve.points()]

    def describe_at(self, step: int) -> str:
        """Return the value at `step`, or the one before it with its own step; "" outside of the
        curve.
        """
        index = bisect_right(self.points, step, key=lambda point: point[0]) - 1
        if index < 0 or step > self.points[-1][0]:
            return ""
        own, value = self.points[index]
        return format_value(value) + ("" if own == step else f" (step {own:,})")

    def describe_extremes(self) -> list[str]:
        """Return the lowest and the highest value with their steps."""
        ends = (self.curve.low, self.curve.high)
        return [
            f"{format_value(end[1] * self.scale)} (step {end[0]:,})" if end else "" for end in ends
        ]


@dataclass(frozen=True)
class Chart:
    """Curves with one unit."""

    title: str
    unit: str
    lines: Sequence[Line]
    steps: tuple[int, int]  # of the horizontal axis, the same for all charts of a page

    @property
    def is_drawn(self) -> bool:
        """Whether any curve has more than one point; single values are shown as numbers."""
        return any(len(line.points) > 1 for line in self.lines)

    def as_json(self) -> dict[str, object]:
        """Return what charts.js reads: the points, a value that is not finite as text."""
        return {
            "steps": self.steps,
            "unit": self.unit,
            "lines": [
                {
                    "label": line.label,
                    "steps": [step for step, _ in line.points],
                    "values": [round_value(value) for _, value in line.points],
                }
                for line in self.lines
            ],
        }

    def table(self) -> list[list[str]]:
        """Return each curve's values at a few steps, its lowest and its highest, below a head: the
        chart as text.
        """
        steps = sorted({step for line in self.lines for step, _ in line.points})
        last = len(steps) - 1
        shown = sorted({steps[last * index // (_TABLE_STEPS - 1)] for index in range(_TABLE_STEPS)})
        rows = [
            [line.label, *(line.describe_at(step) for step in shown), *line.describe_extremes()]
            for line in self.lines
        ]
        return [["curve", *(f"step {step:,}" for step in shown), "lowest", "highest"], *rows]


@dataclass(frozen=True)
class ChartKind:
    """Which metrics a chart shows."""

    title: str
    unit: str
    pattern: str  # of the metrics' names, matched as a whole
    scale: float = 1.0  # from the recorded value to the unit


_LABELS = {
    "loss": "training",
    "eval_loss": "validation",
    "padding_share": "padding",
    "memory_gib": "used by tensors",
    "memory_reserved_gib": "reserved by torch",
    "tokens_per_second": "since the previous step",
    "tokens_per_second_total": "since training began",
    "lr": "learning rate",
    "grad_norm": "before clipping",
    "tokens": "without padding",
    "tokens_padded": "with padding",
}
# the first kind that matches a metric shows it; what none matches has a chart of its own at the end
_KINDS = (
    ChartKind("Loss", "", r"loss|(eval|val|validation|test)[_/](.*[_/])?loss"),
    ChartKind("Reward margin", "", r".*margins?"),
    ChartKind("Reward accuracy", "%", r".*rewards?[_/]accurac(y|ies)", 100),
    ChartKind("Token accuracy", "%", r"(eval_)?(mean_)?token_accuracy", 100),
    ChartKind("Rewards", "", r"reward|.*rewards?[_/].*"),
    ChartKind("Length of the completions", "tokens", r"completions/.*length"),
    ChartKind("Completions without an end", "%", r"completions/clipped_ratio", 100),
    ChartKind("KL divergence and entropy", "nats a token", r"kl|entropy"),
    ChartKind("Where a step's time goes", "s", r"(generation|verifier|training)_seconds"),
    ChartKind("Learning rate", "", r"lr"),
    ChartKind("Throughput", "tokens/s", r"tokens_per_second(_total)?"),
    ChartKind("Step time", "s", r"seconds"),
    ChartKind("Evaluation time", "s", r"eval_runtime"),
    ChartKind("Length of the sampled answers", "tokens", r"sample_tokens"),
    ChartKind("Sampled answers that end", "%", r"sample_ended", 100),
    ChartKind("Sampling time", "s", r"sample_seconds"),
    ChartKind("Padding", "% of tokens", r"padding_share", 100),
    ChartKind("Peak GPU memory of rank 0", "GiB", r"memory(_reserved)?_gib"),
    ChartKind("Gradient norm", "", r"grad_norm"),
    ChartKind("Tokens of a step", "tokens", r"tokens(_padded)?"),
    ChartKind("Log-probabilities", "", r".*logps?([_/].*)?"),
    ChartKind("Logits", "", r".*logits?([_/].*)?"),
    ChartKind("Load of the slowest rank", "x the mean", r"imbalance(_upstream)?"),
    ChartKind("Utilisation", "% of the data sheet", r"mfu"),
)


def build_charts(runs: Mapping[str, Metrics]) -> list[Chart]:
    """Return the charts of one or several runs, by label: one run's curves differ in colour,
    several runs do.
    """
    names = list(dict.fromkeys(name for metrics in runs.values() for name in metrics.curves))
    ends = [step for metrics in runs.values() for step in _ends(metrics)]
    if not ends:
        return []
    steps = (min(ends), max(ends))
    groups: dict[ChartKind, list[str]] = {kind: [] for kind in _KINDS}
    for name in names:
        own = ChartKind(name.removeprefix("eval_").capitalize(), "", "")
        kind = next((kind for kind in _KINDS if re.fullmatch(kind.pattern, name)), own)
        groups.setdefault(kind, []).append(name)
    charts = [
        Chart(kind.title, kind.unit, _lines(runs, kind, members), steps)
        for kind, members in groups.items()
    ]
    return [chart for chart in charts if chart.lines]


def _lines(runs: Mapping[str, Metrics], kind: ChartKind, names: Sequence[str]) -> list[Line]:
    lines = []
    for run_index, (run, metrics) in enumerate(runs.items()):
        for name_index, name in enumerate(name for name in names if name in metrics.curves):
            label = _describe_metric(name)
            index, dash = name_index, 0
            if len(runs) > 1:
                label, index, dash = (
                    (f"{run}: {label}" if len(names) > 1 else run),
                    run_index,
                    name_index,
                )
            dash += index // COLOURS
            lines.append(
                Line(printable(label), metrics.curves[name], kind.scale, index % COLOURS, dash % 4)
            )
    return lines


def _describe_metric(name: str) -> str:
    if name not in _LABELS and name.startswith("eval_"):
        return f"{_describe_metric(name.removeprefix('eval_'))}, validation"
    return _LABELS.get(name, name)


def _ends(metrics: Metrics) -> list[int]:
    points = [curve.points() for curve in metrics.curves.values()]
    return [step for curve in points if curve for step in (curve[0][0], curve[-1][0])]


def round_value(value: float) -> float | str:
    """Return a value with seven significant digits, and NaN or an infinity as text."""
    return float(f"{value:.7g}") if math.isfinite(value) else str(value)


def format_value(value: float) -> str:
    """Format a number for a label: `12,345`, `0.1235`, `2e-05`."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e7:
        return f"{value:.4g}"
    return (
        f"{value:,.0f}" if abs(value) >= 1000 else f"{float(f'{value:.4g}'):,}".removesuffix(".0")
    )
