"""The guards that judge the logged steps."""

from __future__ import annotations

import math
import statistics
from collections import deque
from itertools import pairwise

from launch.config.guards import DivergenceGuard, GradNormGuard, MemoryCreepGuard, NonFiniteGuard, ThroughputGuard
from launch.execution.guards.facts import LoggedStep
from launch.execution.guards.guard import Guard, GuardContext, GuardFinding
from launch.execution.record.metrics import MetricName

_METRICS: dict[MetricName, str] = {"loss": "loss", "grad_norm": "gradient norm"}
_MIN_NORMS, _MIN_RATES = 10, 20  # needed for a meaningful median


class NonFinite(Guard):
    """Detects a NaN or infinite loss or gradient norm, after which every later step and checkpoint is lost.

    Stops the run before the next checkpoint can rotate the last good one away.
    """

    id = "non_finite"

    def __init__(self, config: NonFiniteGuard, _: GuardContext | None = None) -> None:
        self._config = config
        self._streak = 0
        self._last_good: LoggedStep | None = None

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        bad = {name: value for name in _METRICS if (value := step.value(name)) is not None and not math.isfinite(value)}
        if not bad:
            self._streak, self._last_good = 0, step
            return None
        self._streak += 1
        if self._streak < self._config.steps:
            return None
        name, value = next(iter(bad.items()))
        message = f"the {_METRICS[name]} is {value} at step {step.number}"
        numbers: dict[str, float | int | str] = {"step": step.number, name: str(value)}
        if self._last_good is None:
            message, good_until = f"{message}, the first logged step", -math.inf
        else:
            numbers["last_good_step"], good_until = self._last_good.number, self._last_good.time
            last = self._last_good.value(name)
            if last is not None:
                message += f" (it was {last:.4g} at step {self._last_good.number})"
                numbers[f"last_{name}"] = last
        return GuardFinding(self.id, "fail", message, numbers=numbers, good_until=good_until)


class Divergence(Guard):
    """Detects a loss far above the run's own recent best; medians make it ignore single spikes.

    Compares the median of the last losses with the best recent median.
    """

    id = "divergence"

    def __init__(self, config: DivergenceGuard, _: GuardContext | None = None) -> None:
        self._config = config
        self._losses: deque[float] = deque(maxlen=config.window)
        self._medians: deque[tuple[float, int, float]] = deque(maxlen=config.memory)  # (median, step, time)

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        loss = step.value("loss")
        if loss is None or not math.isfinite(loss):
            return None
        self._losses.append(loss)
        if len(self._losses) < self._config.window:
            return None
        median = statistics.median(self._losses)
        finding = self._compare(median, step) if self._medians else None
        self._medians.append((median, step.number, step.time))
        return finding

    def _compare(self, median: float, step: LoggedStep) -> GuardFinding | None:
        best, best_step, best_time = min(self._medians)
        limit = max(best * self._config.factor, best + self._config.margin)
        if median <= limit:
            return None
        message = (
            f"the loss diverged: the median of the last {len(self._losses)} is {median:.4g} at step {step.number}, "
            f"the best was {best:.4g} at step {best_step} (the limit is {limit:.4g})"
        )
        numbers = {"step": step.number, "median": median, "best": best, "best_step": best_step, "limit": limit}
        return GuardFinding(self.id, "fail", message, numbers=numbers, good_until=best_time)


class GradNorm(Guard):
    """Detects a gradient norm that stays far above the run's own median.

    Counts consecutive logged steps whose norm (before clipping, as trainers log it) is above the limit.
    """

    id = "grad_norm"

    def __init__(self, config: GradNormGuard, _: GuardContext | None = None) -> None:
        self._config = config
        self._norms: deque[float] = deque(maxlen=config.window)
        self._streak = 0
        self._good_until = -math.inf

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        norm = step.value("grad_norm")
        if norm is None or not math.isfinite(norm):
            return None
        median = statistics.median(self._norms) if len(self._norms) >= _MIN_NORMS else math.inf
        limit = max(median * self._config.factor, self._config.floor)
        if norm <= limit:
            self._norms.append(norm)
            self._streak, self._good_until = 0, step.time
            return None
        self._streak += 1
        if self._streak < self._config.steps:
            return None
        message = (
            f"the gradient norm exploded: {norm:.4g} at step {step.number}, above {limit:.4g} for {self._streak} "
            f"logged steps (its median was {median:.4g})"
        )
        numbers = {"step": step.number, "grad_norm": norm, "limit": limit, "median": median, "steps": self._streak}
        return GuardFinding(self.id, "fail", message, numbers=numbers, good_until=self._good_until)


class MemoryCreep(Guard):
    """Detects peak GPU memory that keeps growing, which ends in an out-of-memory error sooner or later.

    Compares the peak at the end of each window of logged steps.

    With batches of varying length the peak grows too, but ever more rarely: without a leak the probability that each
    of `windows` consecutive windows sets a new peak is 1/(windows + 1)!.
    """

    id = "memory_creep"

    def __init__(self, config: MemoryCreepGuard, _: GuardContext | None = None) -> None:
        self._config = config
        self._peaks: deque[float] = deque(maxlen=config.windows + 1)  # GiB, at the end of each window
        self._steps = 0
        self._peak = 0.0

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        memory = step.value("memory_gib")
        if memory is None:
            return None
        self._steps += 1
        self._peak = max(self._peak, memory)
        if self._steps % self._config.window:
            return None
        self._peaks.append(self._peak)
        first, last = self._peaks[0], self._peaks[-1]
        peaks = list(self._peaks)
        grew = all(later > earlier for earlier, later in pairwise(peaks))
        if len(peaks) <= self._config.windows or not grew or last < first * (1 + self._config.share):
            return None
        steps = self._config.window * self._config.windows
        message = f"GPU memory keeps growing: {first:.1f} GiB to {last:.1f} GiB over the last {steps} logged steps"
        numbers = {"step": step.number, "from_gib": first, "to_gib": last, "steps": steps}
        return GuardFinding(self.id, "fail", message, numbers=numbers)


class Throughput(Guard):
    """Detects throughput that collapsed and stays low: a throttled GPU, a faulty network, a starved data loader.

    Compares the rate of each logged step (tokens/s, else steps/s) with the run's own median.
    """

    id = "throughput"

    def __init__(self, config: ThroughputGuard, _: GuardContext | None = None) -> None:
        self._config = config
        self._rates: deque[float] = deque(maxlen=config.window)
        self._slow_steps = 0
        self._slow_since = 0.0
        self._previous: LoggedStep | None = None

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        previous, self._previous = self._previous, step
        rate, unit = self._rate_of(step)
        if previous is None or rate is None:
            return None  # the first step compiles and warms up
        median = statistics.median(self._rates) if len(self._rates) >= _MIN_RATES else 0.0
        if rate >= median * self._config.share:
            self._rates.append(rate)
            self._slow_steps = 0
            return None
        if self._slow_steps == 0:
            self._slow_since = previous.time
        self._slow_steps += 1
        seconds = step.time - self._slow_since
        if self._slow_steps < self._config.steps or seconds < self._config.seconds:
            return None
        message = (
            f"the rate collapsed: {rate:,.4g} {unit} at step {step.number}, below {self._config.share:.0%} of the "
            f"run's median {median:,.4g} for {self._slow_steps} logged steps ({seconds:.0f} s)"
        )
        numbers = {
            "step": step.number,
            "rate": rate,
            "median": median,
            "steps": self._slow_steps,
            "seconds": round(seconds),
        }
        return GuardFinding(self.id, "fail", message, numbers=numbers)

    @staticmethod
    def _rate_of(step: LoggedStep) -> tuple[float | None, str]:
        tokens, seconds = step.value("tokens_per_second"), step.value("seconds")
        if tokens is not None:
            return tokens, "tokens/s"
        return (1 / seconds if seconds else None), "steps/s"
