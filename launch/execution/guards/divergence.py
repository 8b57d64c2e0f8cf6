"""Detects a loss far above the run's own recent best; medians make it ignore single spikes."""

from __future__ import annotations

import math
import statistics
from collections import deque

from launch.config.guards import DivergenceGuard
from launch.execution.guards.facts import Fact, LoggedStep
from launch.execution.guards.guard import Guard, GuardContext, GuardVerdict


class Divergence(Guard):
    """Compares the median of the last losses with the best recent median."""

    id = "divergence"

    def __init__(self, config: DivergenceGuard, _: GuardContext | None = None) -> None:
        self._config = config
        self._losses: deque[float] = deque(maxlen=config.window)
        self._medians: deque[tuple[float, int, float]] = deque(maxlen=config.memory)  # (median, step, time)

    def observe(self, fact: Fact) -> GuardVerdict | None:
        loss = fact.value("loss") if isinstance(fact, LoggedStep) else None
        if not isinstance(fact, LoggedStep) or loss is None or not math.isfinite(loss):
            return None
        self._losses.append(loss)
        if len(self._losses) < self._config.window:
            return None
        median = statistics.median(self._losses)
        verdict = self._compare(median, fact) if self._medians else None
        self._medians.append((median, fact.number, fact.time))
        return verdict

    def _compare(self, median: float, step: LoggedStep) -> GuardVerdict | None:
        best, best_step, best_time = min(self._medians)
        limit = max(best * self._config.factor, best + self._config.margin)
        if median <= limit:
            return None
        message = (
            f"the loss diverged: the median of the last {len(self._losses)} is {median:.4g} at step {step.number}, "
            f"the best was {best:.4g} at step {best_step} (the limit is {limit:.4g})"
        )
        numbers = {"step": step.number, "median": median, "best": best, "best_step": best_step, "limit": limit}
        return GuardVerdict(self.id, message, numbers, good_until=best_time)
