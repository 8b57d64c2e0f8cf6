"""Detects throughput that collapsed and stays low: a throttled GPU, a faulty network, a starved data loader."""

from __future__ import annotations

import statistics
from collections import deque

from launch.config.guards import ThroughputGuard
from launch.execution.guards.facts import Fact, LoggedStep
from launch.execution.guards.guard import Guard, GuardContext, GuardVerdict

_MIN_RATES = 20  # needed for a meaningful median


class Throughput(Guard):
    """Compares the rate of each logged step (tokens/s, else steps/s) with the run's own median."""

    id = "throughput"

    def __init__(self, config: ThroughputGuard, _: GuardContext | None = None) -> None:
        self._config = config
        self._rates: deque[float] = deque(maxlen=config.window)
        self._slow_steps = 0
        self._slow_since = 0.0
        self._previous: LoggedStep | None = None

    def observe(self, fact: Fact) -> GuardVerdict | None:
        if not isinstance(fact, LoggedStep):
            return None
        previous, self._previous = self._previous, fact
        rate, unit = self._rate_of(fact)
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
        seconds = fact.time - self._slow_since
        if self._slow_steps < self._config.steps or seconds < self._config.seconds:
            return None
        message = (
            f"the rate collapsed: {rate:,.4g} {unit} at step {fact.number}, below {self._config.share:.0%} of the "
            f"run's median {median:,.4g} for {self._slow_steps} logged steps ({seconds:.0f} s)"
        )
        numbers = {
            "step": fact.number,
            "rate": rate,
            "median": median,
            "steps": self._slow_steps,
            "seconds": round(seconds),
        }
        return GuardVerdict(self.id, message, numbers)

    @staticmethod
    def _rate_of(step: LoggedStep) -> tuple[float | None, str]:
        tokens, seconds = step.value("tokens_per_second"), step.value("seconds")
        if tokens is not None:
            return tokens, "tokens/s"
        return (1 / seconds if seconds else None), "steps/s"
