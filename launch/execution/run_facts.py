"""FACTS: what `launch status`, the report and `launch compare` show of a run, in one table.

A row has the name of a fact, how it is read from a `Run`, and where it is shown. `status` lists all
runs, so the facts in it must be quick to read: from `Run.status`, the plan or the outcome, and not
from all of metrics.jsonl.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from launch.execution.record.run import Run, mapping
from launch.planning.flags import format_flag_value
from launch.table import format_duration, format_measurement
from launch.worker.wording import count_of, noun_for

# "report" is the top of a run's page, and the table of a page of several runs; "plan" is the
# section Plan of the page.
View = Literal["status", "report", "plan", "compare"]

_RECENT = 5  # logged steps whose mean reward is shown of a run that has not ended
_MARGIN_NAMES = ("rewards/margin", "rewards/margins")


@dataclass(frozen=True)
class Reading:
    """The value of a fact in one run."""

    value: str  # the value with its unit
    note: str = ""  # a remark that the report adds in small print
    step: int | None = None  # the step of the value, which the report adds to the heading


@dataclass(frozen=True)
class RunFact:
    """A fact of a run: its name, how it is read, and where it is shown."""

    heading: str
    # The function yields nothing for a run in which the fact is not known. A page shows all
    # readings, and a table the last one.
    read: Callable[[Run], Iterator[Reading]]
    shown_in: tuple[View, ...]
    optional: bool = False  # whether a table leaves it out if no run has it

    def describe(self, run: Run) -> str | None:
        """Return the value for a cell of a table; None where it is not known."""
        readings = list(self.read(run))
        return readings[-1].value if readings else None


def facts_in(view: View) -> list[RunFact]:
    """Return the facts that a view shows, in their order."""
    return [fact for fact in FACTS if view in fact.shown_in]


def _read_step(run: Run) -> Iterator[Reading]:
    """Yield the last step of all, or the phase of a run without a step."""
    status = run.status
    if status.step is None:
        if status.phase:
            yield Reading(status.phase)
    elif status.total_steps:
        yield Reading(f"{status.step}/{status.total_steps}")
    else:
        yield Reading(str(status.step))


def _read_recent_reward(run: Run) -> Iterator[Reading]:
    if run.outcome and run.outcome.reward:
        yield Reading(f"{run.outcome.reward.last:.4f}")
    elif run.status.reward is not None:
        yield Reading(f"{run.status.reward:.4f}")


def _read_recent_loss(run: Run) -> Iterator[Reading]:
    """Yield the last loss, except for RLVR, whose loss is 0 by construction."""
    if run.status.loss is not None and run.status.reward is None:
        yield Reading(f"{run.status.loss:.4f}")


def _read_recent_speed(run: Run) -> Iterator[Reading]:
    if run.status.tokens_per_second is not None:
        yield Reading(f"{run.status.tokens_per_second:,.0f}")


def _read_time_left(run: Run) -> Iterator[Reading]:
    if run.status.seconds_left is not None:
        yield Reading(format_duration(run.status.seconds_left))


def _read_validation(run: Run) -> Iterator[Reading]:
    """Yield the last validation loss, and the best one if that is another one."""
    validation = run.status.validation
    if validation is None:
        return
    text = f"{validation.eval_loss:.4f}"
    best = validation.best
    if best is not None and best.step != validation.step:
        text += f" (best {best.eval_loss:.4f} at {best.step})"
    text += "".join(f", {name} {loss:.4f}" for name, loss in validation.sets.items())
    yield Reading(text)


def _read_reward(run: Run) -> Iterator[Reading]:
    """Yield the mean reward of RLVR's last steps, and whether it rose.

    A single step has few prompts, so its reward says little.
    """
    reward = run.metrics.curves.get("reward")
    if reward is None or reward.last is None:
        return
    step, value = reward.last
    if run.outcome and run.outcome.reward:
        trend = run.outcome.reward
        note = f"it {trend.verdict}: {trend.describe()}"
        yield Reading(format_measurement(trend.last), note)
        return
    last = [value for _, value in reward.points()[-_RECENT:] if math.isfinite(value)]
    if len(last) == _RECENT:
        yield Reading(format_measurement(fmean(last)), f"mean of the last {_RECENT} logged values")
        return
    yield Reading(format_measurement(value), "", step)


def _read_loss(run: Run) -> Iterator[Reading]:
    """Yield the last training loss, except for RLVR, whose loss is 0 by construction."""
    loss = run.metrics.curves.get("loss")
    if loss is None or loss.last is None or "reward" in run.metrics.curves:
        return
    step, value = loss.last
    note = ""
    if loss.low:
        lowest_step, lowest = loss.low
        note = f"lowest {format_measurement(lowest)} at step {lowest_step:,}"
    yield Reading(format_measurement(value), note, step)


def _read_validation_losses(run: Run) -> Iterator[Reading]:
    """Yield the last loss on each validation data set."""
    for name, curve in run.metrics.curves.items():
        metric, _, _ = name.partition("/")  # with several sets, the set's name follows the slash
        if metric.startswith("eval") and metric.endswith("loss") and curve.last:
            step, value = curve.last
            yield Reading(format_measurement(value), name, step)


def _read_mean_throughput(run: Run) -> Iterator[Reading]:
    """Yield the speed that `compare` has: that after the first steps, which are slower."""
    progress = run.progress
    if progress.tokens and progress.speed:
        note = (
            f"after the first steps; {format_measurement(progress.tokens)} tokens without padding"
        )
        yield Reading(f"{progress.speed:,.4g} {progress.speed_unit}", note)


def _read_mean_step(run: Run) -> Iterator[Reading]:
    seconds = run.metrics.total("seconds")
    if seconds and run.metrics.steps:
        mean = seconds / run.metrics.curves["seconds"].count
        count = run.metrics.curves["seconds"].count
        yield Reading(f"{format_measurement(mean)} s", f"of {count_of(count, 'logged step')}")


def _read_padding(run: Run) -> Iterator[Reading]:
    tokens = run.metrics.total("tokens")
    padded = run.metrics.total("tokens_padded")
    if tokens is not None and padded:
        share = 1 - tokens / padded
        yield Reading(f"{format_measurement(100 * share)} %", "of all tokens")


def _read_peak_memory(run: Run) -> Iterator[Reading]:
    memory = run.metrics.curves.get("memory_gib")
    if memory and memory.high:
        _, highest = memory.high
        yield Reading(f"{format_measurement(highest)} GiB", "of rank 0, used by tensors")


def _read_reward_margin(run: Run) -> Iterator[Reading]:
    """Yield the last reward margin of a preference training."""
    for name in _MARGIN_NAMES:
        margin = run.metrics.curves.get(name)
        if margin and margin.last:
            step, value = margin.last
            yield Reading(format_measurement(value), step=step)


def _planned(key: str) -> Callable[[Run], Iterator[Reading]]:
    """Return a function that reads a key of plan.json."""

    def read(run: Run) -> Iterator[Reading]:
        if key in run.plan:
            yield Reading(str(run.plan[key]))

    return read


def _read_model(run: Run) -> Iterator[Reading]:
    model = format_flag_value(run.flags.get("model_name_or_path"))
    if model:
        yield Reading(model)


def _read_global_batch(run: Run) -> Iterator[Reading]:
    """Yield the global batch with its factors: ranks, samples per device, accumulation."""
    batch: dict[str, Any] = mapping(run.plan.get("batch"))
    if not batch:
        return
    width: Any = batch.get("width")
    ranks = f"{width} {noun_for(width, 'rank')}"
    per_device = f"{batch.get('per_device')} per device"
    accumulation = f"{batch.get('accumulation')} accumulation"
    yield Reading(f"{batch.get('global')} samples", f"{ranks} x {per_device} x {accumulation}")


def _read_parallel(run: Run) -> Iterator[Reading]:
    """Yield the parallel mode, the precision and the device."""
    parallel = mapping(run.plan.get("parallel"))
    if parallel:
        settings = [str(parallel.get(key)) for key in ("mode", "precision", "device")]
        yield Reading(", ".join(settings))


def _read_speed(run: Run) -> Iterator[Reading]:
    """Yield the speed after the warm-up, until the checkpoint that is compared."""
    progress = run.progress
    if progress.speed is not None:
        yield Reading(f"{progress.speed:,.4g} {progress.speed_unit}")


def _read_memory(run: Run) -> Iterator[Reading]:
    """Yield the peak memory of rank 0, until the checkpoint that is compared."""
    if run.progress.memory_gib is not None:
        yield Reading(f"{run.progress.memory_gib:.2f} GiB")


SPEED = RunFact("speed", _read_speed, ("compare",))  # `compare` has a verdict on it

FACTS: tuple[RunFact, ...] = (
    RunFact("step", _read_step, ("status",)),
    RunFact("loss", _read_recent_loss, ("status",)),
    RunFact("reward", _read_recent_reward, ("status",), optional=True),
    RunFact("tokens/s", _read_recent_speed, ("status",)),
    RunFact("left", _read_time_left, ("status",)),
    RunFact("eval_loss", _read_validation, ("status",), optional=True),
    RunFact("reward", _read_reward, ("report",)),
    RunFact("loss", _read_loss, ("report",)),
    RunFact("validation loss", _read_validation_losses, ("report",)),
    RunFact("mean throughput", _read_mean_throughput, ("report",)),
    RunFact("mean step", _read_mean_step, ("report",)),
    RunFact("padding", _read_padding, ("report",)),
    RunFact("peak memory", _read_peak_memory, ("report",)),
    RunFact("reward margin", _read_reward_margin, ("report",)),
    RunFact("stage", _planned("stage"), ("plan",)),
    RunFact("trainer", _planned("trainer"), ("plan",)),
    RunFact("model", _read_model, ("plan",)),
    RunFact("global batch", _read_global_batch, ("plan",)),
    RunFact("parallel", _read_parallel, ("plan",)),
    RunFact("plan identity", _planned("identity"), ("plan",)),
    SPEED,
    RunFact("memory", _read_memory, ("compare",), optional=True),
)
