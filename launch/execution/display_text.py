"""The texts that show a run's events: steps, the time left, evaluations and a curve in one line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from launch.execution.record.events import Event
from launch.table import format_duration
from launch.worker.wording import count_of

_BLOCKS = "▁▂▃▄▅▆▇█"  # characters of the sparkline, by value
_NOT_FINITE = "!"  # character of the sparkline for a NaN or an infinity
PHASE_NAMES = {
    "import": "importing the trainer",
    "tokenize": "tokenizing",
    "load": "loading the model",
    "reference_logprobs": "reference log-probs",
    "first_step": "running a first batch, for which kernels are compiled",
    "training": "training",
    "evaluate": "evaluating",
    "checkpoint": "writing a checkpoint",
    "save": "saving the model",
    "push": "pushing to the hub",
}


class Pace:
    """Estimates the time left from the mean time per step since the first step seen."""

    def __init__(self, total: int | None = None) -> None:
        self.total = total
        self.step: int | None = None
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None

    def add(self, step: int, time: float) -> None:
        """Add a step that ended at `time` (unix seconds)."""
        self.step = step
        self._last = (step, time)
        if self._first is None:
            self._first = (step, time)

    def seconds_left(self) -> float | None:
        """Return the estimate in seconds; None while it is unknown."""
        if not self.total or self._first is None or self._last is None:
            return None
        first_step, first_time = self._first
        last_step, last_time = self._last
        if last_step <= first_step:
            return None
        seconds_per_step = (last_time - first_time) / (last_step - first_step)
        return max(0.0, (self.total - last_step) * seconds_per_step)


def headline_metric(step: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the name and the value of the metric that stands for a step; None without one.

    It is the loss, or the reward for RLVR, because the loss of GRPO is 0 by construction.
    """
    for name in ("reward", "loss"):
        value = step.get(name)
        if isinstance(value, (int, float)):
            return name, value
    return None


def step_parts(event: Event, pace: Pace) -> dict[str, str]:
    """Return the texts that show a step, by name: `step`, `metric` (the loss, or the reward for
    RLVR), `rate`, `left`.
    """
    total = f"/{pace.total}" if pace.total else ""
    parts = {"step": f"step {pace.step}{total}"}
    metric = headline_metric(event.data)
    if metric is not None:
        name, value = metric
        parts["metric"] = f"{name} {value:.4f}"
    rate = event.data.get("tokens_per_second")
    if isinstance(rate, (int, float)):
        parts["rate"] = f"{rate:,.0f} tokens/s"
    seconds_left = pace.seconds_left()
    if seconds_left is not None:
        parts["left"] = f"{format_duration(seconds_left)} left"
    return parts


def describe_evaluation(event: Event) -> str:
    """Describe a measurement on the validation data."""
    loss = event.data.get("eval_loss")
    value = event.data.get("eval_loss_text", "unknown")
    if isinstance(loss, (int, float)):
        value = f"{loss:.4f}"
    return f"evaluation at step {event.data['step']}: eval_loss {value}"


def describe_early_stop(event: Event) -> str:
    """Describe why a run ends before its last step."""
    data = event.data
    evaluations = count_of(data["evaluations"], "evaluation")
    loss = "its best"
    if isinstance(data.get("best_loss"), (int, float)):
        loss = f"{data['best_loss']:.4f}"
    best = f"an eval_loss below {loss} (step {data['best_step']})"
    return f"stopped early at step {data['step']}: {evaluations} without {best}"


def describe_step(event: Event, pace: Pace) -> str:
    """Return one line for a step: `step 5/50  loss 5.8501  1,234 tokens/s  41 s left`."""
    return "  ".join(step_parts(event, pace).values())


def describe_count(pace: Pace) -> str:
    """Describe what a progress bar counts: `24 of 200, 9.9 a second, 18 s left`."""
    text = f"{pace.step:,} of {pace.total:,}"
    seconds_left = pace.seconds_left()
    if seconds_left and pace.total and pace.step is not None:
        rate = (pace.total - pace.step) / seconds_left
        text += f", {rate:.3g} a second, {format_duration(seconds_left)} left"
    return text


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values in at most `width` characters, each of which shows the mean of an equal part.

    The lowest mean is the lowest block, a NaN or an infinity is `!`.

    >>> sparkline((8.0, 4.0, 2.0, 1.0), 4)
    '█▄▂▁'
    """
    count = min(width, len(values))
    if count <= 0:
        return ""
    ends = [len(values) * part // count for part in range(count + 1)]
    means = []
    for start, end in pairwise(ends):
        total = sum(values[start:end])  # statistics.fmean refuses infinities
        means.append(total / (end - start))
    finite = [mean for mean in means if math.isfinite(mean)]
    low = min(finite, default=0.0)
    high = max(finite, default=0.0)
    return "".join(_choose_block(mean, low, high) for mean in means)


def _choose_block(value: float, low: float, high: float) -> str:
    """Return the character of the sparkline for a value between `low` and `high`."""
    if not math.isfinite(value):
        return _NOT_FINITE
    height = (value - low) / (high - low) if high > low else 0.0
    return _BLOCKS[round(height * (len(_BLOCKS) - 1))]
