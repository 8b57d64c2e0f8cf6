"""The guards of a live run: rules over the facts of launch/execution/facts.py.

A guard is a class here and its limits in launch/config/guards.py, in a field of GuardsConfig that
has the guard's id.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import replace
from itertools import pairwise

from launch.config import guards as limits
from launch.execution.facts import (
    DiskUsage,
    Fact,
    Fault,
    Guard,
    GuardFinding,
    LoggedStep,
    NewOutput,
    PhaseStarted,
    RankError,
    RankExited,
    Tick,
    TotalSteps,
)
from launch.table import format_bytes
from launch.terminal import format_ranks

_METRICS = {"loss": "loss", "grad_norm": "gradient norm"}
_MIN_NORMS = 10  # gradient norms that a meaningful median needs
_MIN_RATES = 20  # rates that a meaningful median needs
# the key of a phase in the limits where it has another name: `import` is a Python keyword
_CONFIG_KEYS = {"import": "importing"}
# seconds between two ticks; more means that the watcher was suspended (SIGSTOP, a sleeping machine)
_GAP = 30.0
# phases in which ranks may exit one by one, since only rank 0 has something to write
_ENDING = ("save", "push")


class NonFinite(Guard):
    """Detects a NaN or infinite loss or gradient norm, after which every later step and checkpoint
    is lost.

    Stops the run before the next checkpoint can rotate the last good one away.
    """

    id = "non_finite"
    _config: limits.NonFiniteLimits
    _last_good: LoggedStep | None = None

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        name = _find_non_finite_metric(step)
        if name is None:
            self._streak = 0
            self._last_good = step
            return None
        self._streak += 1
        if self._streak < self._config.steps:
            return None
        value = step.value(name)
        message = describe_non_finite(_METRICS[name], value, step.number)
        numbers: dict[str, float | int | str] = {"step": step.number, name: str(value)}
        if self._last_good is None:
            return self._fail(f"{message}, the first logged step", -math.inf, **numbers)
        numbers["last_good_step"] = self._last_good.number
        last_value = self._last_good.value(name)
        if last_value is not None:
            message += f" (it was {last_value:.4g} at step {self._last_good.number})"
            numbers[f"last_{name}"] = last_value
        return self._fail(message, self._last_good.time, **numbers)


def describe_non_finite(title: str, value: float | None, step: int) -> str:
    """Return the sentence about a metric that is NaN or infinite at a step."""
    return f"the {title} is {value} at step {step}"


def _find_non_finite_metric(step: LoggedStep) -> str | None:
    """Return the name of a metric that is NaN or infinite; None if there is none."""
    for name in _METRICS:
        value = step.value(name)
        if value is not None and not math.isfinite(value):
            return name
    return None


class Divergence(Guard):
    """Detects a loss far above the run's own recent best; medians make it ignore single spikes."""

    id = "divergence"
    _config: limits.DivergenceLimits

    def begin(self) -> None:
        # (median, step, time)
        self._medians: deque[tuple[float, int, float]] = deque(maxlen=self._config.memory)

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        loss = step.finite("loss")
        if loss is None:
            return None
        self._recent.append(loss)
        if len(self._recent) < self._config.window:
            return None
        median = statistics.median(self._recent)
        best, best_step, best_time = min(self._medians, default=(math.inf, 0, 0.0))
        self._medians.append((median, step.number, step.time))
        limit = max(best * self._config.factor, best + self._config.margin)
        if median <= limit:
            return None
        message = (
            f"the loss diverged: the median of the last {len(self._recent)} is {median:.4g} "
            f"at step {step.number}, the best was {best:.4g} at step {best_step} "
            f"(the limit is {limit:.4g})"
        )
        return self._fail(
            message,
            best_time,
            step=step.number,
            median=median,
            best=best,
            best_step=best_step,
            limit=limit,
        )


class GradNorm(Guard):
    """Detects a gradient norm that stays far above the run's own median.

    Counts consecutive logged steps whose norm (before clipping, as trainers log it) is above the
    limit.
    """

    id = metric = "grad_norm"
    _config: limits.GradNormLimits

    def find_fault(self, step: LoggedStep, value: float) -> Fault | None:
        median = statistics.median(self._recent) if len(self._recent) >= _MIN_NORMS else math.inf
        limit = max(median * self._config.factor, self._config.floor)
        if value <= limit:
            self._recent.append(value)
            return None
        message = (
            f"the gradient norm exploded: {value:.4g} at step {step.number}, above {limit:.4g} "
            f"for {self._streak} logged steps (its median was {median:.4g})"
        )
        return message, {"grad_norm": value, "limit": limit, "median": median}


class Stall(Guard):
    """Detects a run that makes no progress within the patience of its current phase.

    A new phase and a logged step are progress and, until the first training step, a new line of
    output. Training is checked only on the node of rank 0, the rank that logs steps.
    """

    id = "stall"
    _config: limits.StallLimits
    _phase = "import"
    _last_progress: float | None = None
    _last_tick: float | None = None
    _last_step: LoggedStep | None = None
    _last_step_time: float | None = None  # of the last logged step, or the start of training
    _longest_step = 0.0  # seconds between two logged steps

    def observe(self, fact: Fact) -> GuardFinding | None:
        if isinstance(fact, Tick):
            return self._check(fact.time)
        if isinstance(fact, PhaseStarted):
            self._phase = fact.phase
            self._last_progress = fact.time
            if fact.phase == "training" and self._last_step_time is None:
                self._last_step_time = fact.time
        elif isinstance(fact, LoggedStep):
            if self._last_step_time is not None:
                self._longest_step = max(self._longest_step, fact.time - self._last_step_time)
            self._phase = "training"
            self._last_step = fact
            self._last_step_time = fact.time
            self._last_progress = fact.time
        elif isinstance(fact, NewOutput):
            has_trained = self._phase == "training" and self._last_step is not None
            if not has_trained:
                self._last_progress = fact.time
        return None

    @property
    def patience(self) -> float:
        """Seconds without progress that the current phase allows."""
        if self._phase != "training":
            key = _CONFIG_KEYS.get(self._phase, self._phase)
            return float(getattr(self._config, key))
        if self._last_step is None:
            return self._config.first_step
        return max(self._config.training, self._config.factor * self._longest_step)

    def _check(self, now: float) -> GuardFinding | None:
        previous_tick = self._last_tick
        self._last_tick = now
        if self._last_progress is None or previous_tick is None or now - previous_tick > _GAP:
            self._last_progress = now  # progress before this tick was not observed
        waited = now - self._last_progress
        if waited <= self.patience:
            return None
        if self._phase == "training" and 0 not in self._context.ranks:
            return None
        where = self._phase
        if self._phase == "training" and self._last_step is None:
            where = "training, before the first step"
        message = f"no progress for {waited:.0f} s in {where} (patience {self.patience:.0f} s)"
        numbers: dict[str, float | int | str] = {"phase": self._phase, "seconds": round(waited, 1)}
        if self._last_step is not None:
            message += f"; the last logged step was {self._last_step.number}"
            numbers["step"] = self._last_step.number
        numbers["patience"] = self.patience
        return replace(self._fail(message, **numbers), wants_stacks=True)


class DeadRank(Guard):
    """Detects a rank that failed or vanished while the others wait for it in a collective.

    Ends the run some seconds after the first error of a rank, or when a rank's process vanished.
    torch elastic gives the other ranks 30 s; DeepSpeed's ranks took 66 s to die in a measurement.
    torch elastic does not notice a rank that exits early with status 0
    (torch/distributed/elastic/multiprocessing/api.py, `_poll`).
    """

    id = "dead_rank"
    on_every_node = True
    _config: limits.DeadRankLimits
    _error: RankError | None = None
    _ending = False
    _progress = 0.0

    def begin(self) -> None:
        self._exited: dict[int, float] = {}

    def observe(self, fact: Fact) -> GuardFinding | None:
        if isinstance(fact, RankError):
            self._error = self._error or fact
        elif isinstance(fact, RankExited):
            self._exited.setdefault(fact.rank, fact.time)
        elif isinstance(fact, TotalSteps):
            self._total_steps = fact.steps
        elif isinstance(fact, PhaseStarted):
            self._ending = fact.phase in _ENDING
            self._progress = fact.time
        elif isinstance(fact, LoggedStep):
            self._ending = self._total_steps is not None and fact.number >= self._total_steps
            self._progress = fact.time
        elif isinstance(fact, NewOutput):
            self._progress = fact.time
        elif isinstance(fact, Tick):
            return self._check_error(fact.time) or self._check_exits(fact.time)
        return None

    def _check_error(self, now: float) -> GuardFinding | None:
        if self._error is None or now - self._error.time <= self._config.after_error:
            return None
        seconds = round(now - self._error.time, 1)
        message = f"rank {self._error.rank} failed and the run did not end within {seconds:.0f} s"
        return replace(self._fail(message, rank=self._error.rank, seconds=seconds), failed=True)

    def _check_exits(self, now: float) -> GuardFinding | None:
        waiting = set(self._context.ranks) - set(self._exited)
        if not self._exited or not waiting or self._ending:
            return None
        rank, since = min(self._exited.items(), key=lambda item: item[1])
        silence = now - max(since, self._progress)
        if silence <= self._config.silent:
            return None
        others = format_ranks(sorted(waiting))
        message = (
            f"the process of rank {rank} exited without an error while {others} waited for "
            f"{silence:.0f} s"
        )
        return replace(self._fail(message, rank=rank, seconds=round(silence, 1)), wants_stacks=True)


class MemoryCreep(Guard):
    """Detects peak GPU memory that keeps growing, which ends in an out-of-memory error sooner or
    later.

    Compares the peak at the end of each window of logged steps. With batches of varying length the
    peak grows without a leak too, but more and more rarely: the probability that each of `windows`
    consecutive windows sets a new peak is 1/(windows + 1)!.
    """

    id = "memory_creep"
    _config: limits.MemoryCreepLimits
    _steps = 0
    _peak = 0.0

    def begin(self) -> None:
        # GiB, at the end of each window
        self._peaks: deque[float] = deque(maxlen=self._config.windows + 1)

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        memory = step.value("memory_gib")
        if memory is None:
            return None
        self._steps += 1
        self._peak = max(self._peak, memory)
        if self._steps % self._config.window:
            return None
        self._peaks.append(self._peak)
        if len(self._peaks) <= self._config.windows:
            return None
        first, last = self._peaks[0], self._peaks[-1]
        grew = all(later > earlier for earlier, later in pairwise(self._peaks))
        if not grew or last < first * (1 + self._config.share):
            return None
        steps = self._config.window * self._config.windows
        message = (
            f"GPU memory keeps growing: {first:.1f} GiB to {last:.1f} GiB over the last "
            f"{steps} logged steps"
        )
        return self._fail(message, step=step.number, from_gib=first, to_gib=last, steps=steps)


class DiskSpace(Guard):
    """Detects a disk too full for what the trainer writes next: a checkpoint or the final model.

    Warns as soon as the free space is too small, and stops the run shortly before the write that
    would leave half a checkpoint. Nothing is measured while the trainer writes: an old checkpoint
    is removed only after the new one is complete.
    """

    id = "disk"
    _config: limits.DiskLimits
    _disk: DiskUsage | None = None
    _is_writing = False
    _first_step: LoggedStep | None = None
    _last_step: LoggedStep | None = None

    def observe(self, fact: Fact) -> GuardFinding | None:
        if isinstance(fact, TotalSteps):
            self._total_steps = fact.steps
        elif isinstance(fact, PhaseStarted):
            self._is_writing = fact.phase in ("checkpoint", "save")
        elif isinstance(fact, LoggedStep):
            self._first_step = self._first_step or fact
            self._last_step = fact
        elif isinstance(fact, DiskUsage) and not self._is_writing:
            self._disk = fact
        if self._disk is None or self._is_writing or not isinstance(fact, LoggedStep | DiskUsage):
            return None
        return self._check(self._disk)

    def _check(self, disk: DiskUsage) -> GuardFinding | None:
        step = self._last_step.number if self._last_step else 0
        due = self._next_checkpoint(step)
        what = "the next checkpoint"
        size = disk.checkpoint
        if due is None:
            due = self._total_steps
            what = "the model at the end"
            size = disk.model
        if size is None or disk.free >= size * self._config.margin:
            return None
        message = (
            f"the disk has {format_bytes(disk.free)} free and {what} needs {format_bytes(size)}"
        )
        numbers = {"free_bytes": disk.free, "needed_bytes": size, "step": step}
        seconds_left = None if due is None else self._estimate_seconds(due - step)
        if due is None or seconds_left is None or seconds_left > self._config.ahead:
            when = f" (at step {due})" if due is not None else ""
            return GuardFinding(self.id, message + when, severity="warn", numbers=numbers)
        message = f"{message} at step {due}, {max(0, due - step)} steps from now"
        return self._fail(message, **numbers)

    def _next_checkpoint(self, step: int) -> int | None:
        """Return the step of the next checkpoint; None if none comes before the model at the end."""
        every = self._context.checkpoint_every
        if not every:
            return None
        next_step = step - step % every + every
        if self._total_steps is not None and next_step > self._total_steps:
            return None
        return next_step

    def _estimate_seconds(self, steps: int) -> float | None:
        """Estimate the seconds that `steps` steps take; None before the pace is known."""
        if steps <= 1:
            return 0.0
        if self._first_step is None or self._last_step is None:
            return None
        steps_done = self._last_step.number - self._first_step.number
        if steps_done <= 0:
            return None
        return steps * (self._last_step.time - self._first_step.time) / steps_done


class Continuity(Guard):
    """Detects a resumed run that has other weights or other data than the previous attempt.

    A repeated step has the same batch, so it has the loss that the previous attempt logged for it.
    The loss of a new step has to be near the last losses: between the lowest and the highest of
    them, or farther by at most their spread.
    """

    id = "continuity"
    _is_judged = False

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        if self._is_judged:
            return None
        self._is_judged = True  # only the first step after the resume is judged
        loss = step.finite("loss")
        if loss is None:
            return None
        low, high = self._expected_range(step.number)
        slack = max(self._config.margin, self._config.share * abs(high))
        if math.isnan(low) or low - slack <= loss <= high + slack:
            return None
        before = f"{low:.4g}" if low == high else f"between {low:.4g} and {high:.4g}"
        message = (
            f"the loss is {loss:.4g} at step {step.number}, the first after the resume, and was "
            f"{before} before: the weights or the data differ from those of the previous attempt"
        )
        return self._fail(message, -math.inf, step=step.number, loss=loss, low=low, high=high)

    def _expected_range(self, step: int) -> tuple[float, float]:
        """Return the range of a step's loss by the earlier attempts; NaN if they do not show it."""
        losses = self._context.losses
        repeated = losses.get(step, math.nan)
        earlier_steps = [number for number in sorted(losses) if number < step]
        if not math.isnan(repeated) or len(earlier_steps) < 2:
            return repeated, repeated
        last_losses = [losses[number] for number in earlier_steps[-_MIN_RATES:]]
        lowest, highest = min(last_losses), max(last_losses)
        spread = highest - lowest
        return lowest - spread, highest + spread


class Throughput(Guard):
    """Detects throughput that collapsed and stays low: a throttled GPU, a faulty network, a starved
    data loader.

    Compares the rate of each logged step (tokens/s, else steps/s) with the run's own median.
    """

    id = "throughput"
    _config: limits.ThroughputLimits
    _is_warm = False  # after the first step

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        if not self._is_warm:
            self._is_warm = True  # the first step compiles and warms up
            return None
        rate = step.value("tokens_per_second")
        unit = "tokens/s"
        seconds = step.value("seconds")
        if rate is None and seconds:
            rate = 1 / seconds
            unit = "steps/s"
        if rate is None:
            return None
        median = statistics.median(self._recent) if len(self._recent) >= _MIN_RATES else 0.0
        if rate >= median * self._config.share:
            self._recent.append(rate)
            self._streak = 0
            self._good_until = step.time
            return None
        self._streak += 1
        slow = step.time - self._good_until
        if self._streak < self._config.steps or slow < self._config.seconds:
            return None
        message = (
            f"the rate collapsed: {rate:,.4g} {unit} at step {step.number}, "
            f"below {self._config.share:.0%} of the run's median {median:,.4g} "
            f"for {self._streak} logged steps ({slow:.0f} s)"
        )
        return self._fail(
            message,
            step=step.number,
            rate=rate,
            median=median,
            steps=self._streak,
            seconds=round(slow),
        )
