"""The guards of the values that a live run logs at its steps, and the list of all guards.

A guard is a class, and its limits are in launch/config/guards.py, in a field of GuardsConfig that
has the guard's id. `GUARDS` lists all of them. The facts that a guard judges are in
launch/execution/facts.py.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from launch.config import guards as limits
from launch.execution import process_guards, reward_guards
from launch.execution.facts import Fault, Guard, GuardContext, GuardFinding, LoggedStep
from launch.planning.finite_weights import find_non_finite_weight
from launch.rules.code import CodeRule, summary_of
from launch.worker.wording import count_of

_METRICS = {"loss": "loss", "grad_norm": "gradient norm"}
_MIN_NORMS = 10  # gradient norms that a meaningful median needs
_MIN_RATES = 20  # rates that a meaningful median needs


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
            message += ", the first logged step"
            weight = self._context.model and find_non_finite_weight(self._context.model)
            if weight:
                message += f": the weights that were loaded hold a NaN or infinity, {weight}"
            return self._fail(message, -math.inf, **numbers)
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
        # Each entry is (median, step, time).
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
            f"for {count_of(self._streak, 'logged step')} (its median was {median:.4g})"
        )
        return message, {"grad_norm": value, "limit": limit, "median": median}


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
        # The peak memory at the end of each window, in GiB.
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
        first = self._peaks[0]
        last = self._peaks[-1]
        grew = all(later > earlier for earlier, later in pairwise(self._peaks))
        if not grew or last < first * (1 + self._config.share):
            return None
        steps = self._config.window * self._config.windows
        message = (
            f"GPU memory keeps growing: {first:.1f} GiB to {last:.1f} GiB over the last "
            f"{steps} logged steps"
        )
        return self._fail(message, step=step.number, from_gib=first, to_gib=last, steps=steps)


class Continuity(Guard):
    """Detects a resumed run that has other weights or other data than the previous attempt.

    A repeated step has the same batch, so it has the loss that the previous attempt logged for it,
    except for rounding. The loss of a new step must be near the last losses: between the lowest and
    the highest of them, or farther by at most their spread.
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
        if self._is_repeated(step.number):
            slack = self._config.repeat * max(1.0, abs(high))
        if math.isnan(low) or low - slack <= loss <= high + slack:
            return None
        before = f"{low:.4g}" if low == high else f"between {low:.4g} and {high:.4g}"
        message = (
            f"the loss is {loss:.4g} at step {step.number}, the first after the resume, and was "
            f"{before} before: the weights or the data differ from those of the previous attempt"
        )
        return self._fail(message, -math.inf, step=step.number, loss=loss, low=low, high=high)

    def _is_repeated(self, step: int) -> bool:
        """Return whether an attempt logged the same steps with this one: those after the checkpoint.

        A logged loss is the mean over the steps since the one that was logged before.
        """
        losses = self._context.losses
        previous = max((number for number in losses if number < step), default=0)
        is_same_mean = previous == self._context.resumed_step
        return self._context.repeats and step in losses and is_same_mean

    def _expected_range(self, step: int) -> tuple[float, float]:
        """Return the range of a step's loss by the earlier attempts; NaN if they do not show it."""
        losses = self._context.losses
        repeated = losses.get(step, math.nan)
        earlier_steps = [number for number in sorted(losses) if number < step]
        if not math.isnan(repeated) or len(earlier_steps) < 2:
            return repeated, repeated
        last_losses = [losses[number] for number in earlier_steps[-_MIN_RATES:]]
        lowest = min(last_losses)
        highest = max(last_losses)
        spread = highest - lowest
        return lowest - spread, highest + spread


class Throughput(Guard):
    """Detects throughput that collapsed and stays low: a throttled GPU, a faulty network, a starved
    data loader.

    Compares the rate of each logged step (tokens/s, else steps/s) with the run's own median.
    """

    id = "throughput"
    _config: limits.ThroughputLimits
    _is_warm = False  # whether the first step is done

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
            f"for {count_of(self._streak, 'logged step')} ({slow:.0f} s)"
        )
        return self._fail(
            message,
            step=step.number,
            rate=rate,
            median=median,
            steps=self._streak,
            seconds=round(slow),
        )


@dataclass(frozen=True, kw_only=True)
class GuardRule(CodeRule):
    """A guard as an entry of GUARDS: the class judges a run, with a state for each run."""

    judge: type[Guard]


def _as_rule(guard: type[Guard]) -> GuardRule:
    return GuardRule(id=guard.id, summary=summary_of(guard), judge=guard)


_CLASSES: tuple[type[Guard], ...] = (
    NonFinite,
    Divergence,
    GradNorm,
    process_guards.Stall,
    process_guards.DeadRank,
    MemoryCreep,
    process_guards.DiskSpace,
    Continuity,
    Throughput,
    reward_guards.Verifier,
    reward_guards.RewardVariance,
    reward_guards.RewardCollapse,
    reward_guards.KLDivergence,
    reward_guards.EntropyCollapse,
    reward_guards.LengthLimit,
    reward_guards.SamplerMismatch,
)
# All guards, in the order in which they judge a fact.
GUARDS: tuple[GuardRule, ...] = tuple(map(_as_rule, _CLASSES))


def build_guards(config: limits.GuardsConfig | None, context: GuardContext) -> list[Guard]:
    """Build the guards that the configuration enables."""
    built: list[Guard] = []
    for guard in GUARDS:
        guard_limits = getattr(config, guard.id) if config else None
        if guard_limits is not None:
            built.append(guard.judge(guard_limits, context))
    return built
