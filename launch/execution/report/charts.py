"""The charts of a page: which curves each shows, and how their values are printed."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from launch.execution.record.steps import Curve, MetricCurves, Point
from launch.table import format_measurement
from launch.terminal import printable

COLOURS = 6  # colours in page.css; further curves repeat them with another dash
_TABLE_STEPS = 6


@dataclass(frozen=True)
class Line:
    """One curve of a chart."""

    label: str
    curve: Curve
    scale: float  # factor from the recorded value to the chart's unit
    colour: int  # index, below COLOURS
    dash: int  # index of a pattern in drawing.py's DASHES
    run: str = ""  # label of the run
    start: int = 0  # steps of the runs before it, behind which it is drawn

    @cached_property
    def points(self) -> list[Point]:
        return [(self.start + step, value * self.scale) for step, value in self.curve.points()]

    def describe_at(self, step: int) -> str:
        """Return the value at `step`, or the value before it together with its step.

        The text is empty outside the curve.
        """
        index = bisect_right(self.points, step, key=lambda point: point[0]) - 1
        if index < 0 or step > self.points[-1][0]:
            return ""
        point_step, value = self.points[index]
        if point_step == step:
            return format_measurement(value)
        return f"{format_measurement(value)} (step {point_step:,})"

    def describe_extremes(self) -> tuple[str, str]:
        """Return the lowest and the highest value with their steps."""
        return self._describe_point(self.curve.low), self._describe_point(self.curve.high)

    def _describe_point(self, point: Point | None) -> str:
        if point is None:
            return ""
        step, value = point
        return f"{format_measurement(value * self.scale)} (step {self.start + step:,})"


@dataclass(frozen=True)
class Chart:
    """Curves with one unit."""

    title: str
    unit: str
    lines: Sequence[Line]
    # The first and the last step of the axis, the same for all charts of a page.
    steps: tuple[int, int]
    # Steps after which something about a run changed, and what it was.
    marks: Sequence[tuple[int, str]] = ()

    @property
    def is_drawn(self) -> bool:
        """Whether any curve has more than one point; single values are shown as numbers."""
        return any(len(line.points) > 1 for line in self.lines)

    @property
    def is_always_0(self) -> bool:
        """Whether all its curves stay at 0."""
        return not any(value for line in self.lines for _, value in line.points)

    def json_fields(self) -> dict[str, Any]:
        """Return what charts.js reads: the points, a value that is not finite as text."""
        lines = []
        for line in self.lines:
            steps = [step for step, _ in line.points]
            values = [round_value(value) for _, value in line.points]
            lines.append({"label": line.label, "steps": steps, "values": values})
        content: dict[str, Any] = {"steps": self.steps, "unit": self.unit, "lines": lines}
        if self.marks:
            content["marks"] = self.marks
        return content

    def table(self) -> list[list[str]]:
        """Return the chart as text: each curve's values at a few steps, its lowest and its highest.

        The first row is the head.
        """
        shown_steps = self._choose_table_steps()
        step_heads = [f"step {step:,}" for step in shown_steps]
        rows = [["curve", *step_heads, "lowest", "highest"]]
        for line in self.lines:
            values = [line.describe_at(step) for step in shown_steps]
            rows.append([line.label, *values, *line.describe_extremes()])
        return rows

    def _choose_table_steps(self) -> list[int]:
        """Return at most _TABLE_STEPS of the logged steps, evenly spaced among them."""
        steps = sorted({step for line in self.lines for step, _ in line.points})
        last = len(steps) - 1
        chosen = {steps[last * index // (_TABLE_STEPS - 1)] for index in range(_TABLE_STEPS)}
        return sorted(chosen)


@dataclass(frozen=True)
class ChartKind:
    """Which metrics a chart shows."""

    title: str
    unit: str
    pattern: str  # regular expression that matches a metric's whole name
    scale: float = 1.0  # factor from the recorded value to the unit


_LABELS = {
    "loss": "training",
    "mean_token_accuracy": "training",
    "eval_mean_token_accuracy": "validation",
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
    "reward": "mean of a step",
    "reward_std": "standard deviation of a step's answers",
    "frac_reward_zero_std": "share of the step's prompts",
    "verifier_failures": "share of the answers",
    "kl": "KL divergence from the starting model",
    "kl_answer": "from the starting model, of mismatched answers",
    "eval_kl": "on held-out rows",
    "entropy": "entropy",
    "step_time": "measured by TRL",
    "seconds": "between two logged steps",
    "completions/clipped_ratio": "share of the answers",
}
# Labels of metrics that a trainer names by their parts; the first group is shown as well.
_LABEL_PATTERNS = (
    (r"rewards/(.*)/mean", "{}"),
    (r"rewards/(.*)/std", "{}, standard deviation"),
    (r"completions/(mean|min|max)_length", "{} of all"),
    (r"completions/(mean|min|max)_terminated_length", "{} of those that end"),
    (r"(\w+)_seconds", "{}"),
    (r"clip_ratio/(low|high|region)_(?:mean|min|max)", "{}"),
    (r"sampling/.*/(mean|min|max)", "{}"),
)
# The first kind that matches a metric shows it. A metric that none matches has a chart of its own,
# after the others.
_REWARD = ChartKind("Reward", "", r"reward")
_LOSS = ChartKind("Loss", "", r"loss|(eval|val|validation|test)[_/](.*[_/])?loss(/.+)?")
_BY_VERIFIER = ChartKind("Reward by verifier", "", r"rewards/.*/(mean|std)")
_DEVIATION = ChartKind("Standard deviation of the reward", "", r"reward_std")
_KL = ChartKind("KL divergence and entropy", "nats a token", r"kl|entropy")
_KINDS = (
    _REWARD,  # only RLVR logs it
    _LOSS,
    ChartKind("Reward margin", "", r".*margins?"),
    ChartKind("Reward accuracy", "%", r".*rewards?[_/]accurac(y|ies)", 100),
    ChartKind("Token accuracy", "%", r"(eval_)?(mean_)?token_accuracy(/.+)?", 100),
    _BY_VERIFIER,
    _DEVIATION,
    ChartKind("Prompts whose answers all earn the same", "%", r"frac_reward_zero_std", 100),
    ChartKind("Answers on which a verifier fails", "%", r"verifier_failures", 100),
    ChartKind("Rewards", "", r".*rewards?[_/].*"),
    ChartKind("Length of the answers", "tokens", r"completions/.*length"),
    ChartKind("Answers without an end", "%", r"completions/clipped_ratio", 100),
    _KL,
    ChartKind("KL divergence of an answer", "nats", r"kl_answer|eval_kl(/.+)?"),
    ChartKind("Clipped probability ratios", "% of tokens", r"clip_ratio/.*", 100),
    ChartKind("Sampler and trainer apart", "nats a token", r"sampling/.*logp_difference/.*"),
    ChartKind("Probability ratio of trainer and sampler", "", r"sampling/.*ratio/.*"),
    ChartKind(
        "Where a step's time goes",
        "s",
        r"(generation|verifier|training|weights|logprobs)_seconds",
    ),
    ChartKind("Learning rate", "", r"lr"),
    ChartKind("Throughput", "tokens/s", r"tokens_per_second(_total)?"),
    ChartKind("Step time", "s", r"seconds|step_time"),
    ChartKind("Evaluation time", "s", r"eval_runtime(/.+)?"),
    ChartKind("Length of the sampled answers", "tokens", r"sample_tokens"),
    ChartKind("Sampled answers that end", "%", r"sample_ended", 100),
    ChartKind("Sampling time", "s", r"sample_seconds"),
    ChartKind("Padding", "% of tokens", r"padding_share", 100),
    ChartKind("Peak GPU memory of rank 0", "GiB", r"memory(_reserved)?_gib"),
    ChartKind("Gradient norm", "", r"grad_norm"),
    ChartKind("Passes over the data", "", r"epoch"),
    ChartKind("Tokens of a step", "tokens", r"tokens(_padded)?"),
    ChartKind("Log-probabilities", "", r".*logps?([_/].*)?"),
    ChartKind("Logits", "", r".*logits?([_/].*)?"),
    ChartKind("Load of the slowest rank", "x the mean", r"imbalance(_upstream)?"),
    ChartKind("Utilisation", "% of the data sheet", r"mfu"),
)


def build_charts(
    runs: Mapping[str, MetricCurves],
    kinds: Mapping[str, str] | None = None,
    starts: Mapping[str, int] | None = None,
) -> list[Chart]:
    """Return the charts of one or several runs, which are given by label.

    The curves of one run differ in colour. With several runs, each run has one colour. `kinds` has
    the kinds of their stages: the losses of two kinds are different quantities, so each has a chart.
    `starts` has the steps of the stages before a run of a pipeline, which is drawn behind them.
    """
    steps = _find_step_range(runs, starts or {})
    if steps is None:
        return []
    starts = starts or {}
    names_by_kind: dict[ChartKind, list[str]] = {kind: [] for kind in _KINDS}
    for metrics in runs.values():
        for name in metrics.curves:
            names = names_by_kind.setdefault(_find_kind(name), [])
            if name not in names:
                names.append(name)
    _join_single_verifier(names_by_kind)
    if names_by_kind[_REWARD]:  # the loss of RLVR means little
        names_by_kind[_LOSS] = names_by_kind.pop(_LOSS)
    charts: list[Chart] = []
    for kind, names in names_by_kind.items():
        lines = _build_lines(runs, kind, names, starts)
        if kind == _LOSS and len(set((kinds or {}).values())) > 1:
            charts += _split_by_kind(lines, kinds or {}, steps)
        elif lines:
            title = "Entropy" if kind == _KL and "kl" not in names else kind.title
            charts.append(Chart(title, kind.unit, lines, steps))
    return charts


def _join_single_verifier(names_by_kind: dict[ChartKind, list[str]]) -> None:
    """Put the deviation of the reward beside it if one verifier gives it all, whose own curves are
    the same.
    """
    of_verifiers = names_by_kind[_BY_VERIFIER]
    verifiers = {name.rpartition("/")[0] for name in of_verifiers}
    if len(verifiers) == 1 and names_by_kind[_REWARD]:
        names_by_kind[_REWARD] += names_by_kind[_DEVIATION]
        names_by_kind[_BY_VERIFIER] = []
        names_by_kind[_DEVIATION] = []


def _split_by_kind(
    lines: Sequence[Line], kinds: Mapping[str, str], steps: tuple[int, int]
) -> Iterator[Chart]:
    """Yield a chart of the losses of each kind of stage."""
    for kind in dict.fromkeys(kinds.values()):
        of_kind = [line for line in lines if kinds[line.run] == kind]
        if of_kind:
            yield Chart(f"{_LOSS.title} of {kind.upper()}", _LOSS.unit, of_kind, steps)


def _find_kind(name: str) -> ChartKind:
    """Return the chart that shows a metric: one of _KINDS, else a chart of its own."""
    for kind in _KINDS:
        if re.fullmatch(kind.pattern, name):
            return kind
    return ChartKind(name.removeprefix("eval_").capitalize(), "", "")


def _build_lines(
    runs: Mapping[str, MetricCurves],
    kind: ChartKind,
    names: Sequence[str],
    starts: Mapping[str, int],
) -> list[Line]:
    """Return the curves of a chart, which shows the metrics `names` of each run."""
    lines = []
    for run_index, (run, metrics) in enumerate(runs.items()):
        logged_names = [name for name in names if name in metrics.curves]
        for name_index, name in enumerate(logged_names):
            label = _describe_metric(name)
            colour = name_index
            dash = 0
            if len(runs) > 1:
                label = f"{run}: {label}" if len(names) > 1 else run
                colour = run_index
                dash = name_index
            line = Line(
                label=printable(label),
                curve=metrics.curves[name],
                scale=kind.scale,
                colour=colour % COLOURS,
                dash=(dash + colour // COLOURS) % 4,
                run=run,
                start=starts.get(run, 0),
            )
            lines.append(line)
    return lines


def _describe_metric(name: str) -> str:
    label = _find_label(name)
    if label is not None:
        return label
    if not name.startswith("eval_"):
        return name
    of_training = name.removeprefix("eval_")
    metric, _, validation_set = name.partition("/")
    if validation_set and _find_label(of_training) is None:
        return f"{_describe_metric(metric)}: {validation_set}"
    return f"{_describe_metric(of_training)}, validation"


def _find_label(name: str) -> str | None:
    """Return the label of a metric; None for one that no label is written for."""
    if name in _LABELS:
        return _LABELS[name]
    for pattern, label in _LABEL_PATTERNS:
        match = re.fullmatch(pattern, name)
        if match is not None:
            return label.format(match[1])
    return None


def _find_step_range(
    runs: Mapping[str, MetricCurves], starts: Mapping[str, int]
) -> tuple[int, int] | None:
    """Return the first and the last step of all curves; None without a curve."""
    steps = []
    for run, metrics in runs.items():
        start = starts.get(run, 0)
        for curve in metrics.curves.values():
            points = curve.points()
            if points:
                steps += [start + points[0][0], start + points[-1][0]]
    if not steps:
        return None
    return min(steps), max(steps)


def round_value(value: float) -> float | str:
    """Return a value with seven significant digits, and NaN or an infinity as text."""
    return float(f"{value:.7g}") if math.isfinite(value) else str(value)
