"""The charts of a page: which curves each shows, and how their values are printed."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from launch.execution.record.steps import Curve, MetricCurves, Point
from launch.terminal import printable

COLOURS = 6  # of page.css; curves beyond them repeat the colours with another dash
_TABLE_STEPS = 6


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
    """MetricCurves with one unit."""

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


def build_charts(runs: Mapping[str, MetricCurves]) -> list[Chart]:
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


def _lines(runs: Mapping[str, MetricCurves], kind: ChartKind, names: Sequence[str]) -> list[Line]:
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


def _ends(metrics: MetricCurves) -> list[int]:
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
