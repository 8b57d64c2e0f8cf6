"""Detects a gradient norm that stays far above the run's own median."""

from __future__ import annotations

import math
import statistics
from collections import deque

from launch.config.guards import GradNormGuard
from launch.execution.guards.facts import Fact, LoggedStep
from launch.execution.guards.guard import Guard, GuardContext, GuardVerdict

_MIN_NORMS = 10  # needed for a meaningful median


class GradNorm(Guard):
    """Counts consecutive logged steps whose norm (before clipping, as trainers log it) is above the limit."""

    id = "grad_norm"

    def __init__(self, config: GradNormGuard, _: GuardContext | None = None) -> None:
        self._config = config
        self._norms: deque[float] = deque(maxlen=config.window)
        self._streak = 0
        self._good_until = -math.inf

    def observe(self, fact: Fact) -> GuardVerdict | None:
        norm = fact.value("grad_norm") if isinstance(fact, LoggedStep) else None
        if not isinstance(fact, LoggedStep) or norm is None or not math.isfinite(norm):
            return None
        median = statistics.median(self._norms) if len(self._norms) >= _MIN_NORMS else math.inf
        limit = max(median * self._config.factor, self._config.floor)
        if norm <= limit:
            self._norms.append(norm)
            self._streak, self._good_until = 0, fact.time
            return None
        self._streak += 1
        if self._streak < self._config.steps:
            return None
        message = (
            f"the gradient norm exploded: {norm:.4g} at step {fact.number}, above {limit:.4g} for {self._streak} "
            f"logged steps (its median was {median:.4g})"
        )
        numbers = {"step": fact.number, "grad_norm": norm, "limit": limit, "median": median, "steps": self._streak}
        return GuardVerdict(self.id, message, numbers, good_until=self._good_until)
