"""Detects peak GPU memory that keeps growing, which ends in an out-of-memory error sooner or later."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from launch.config.guards import MemoryCreepGuard
from launch.execution.guards.facts import Fact, LoggedStep
from launch.execution.guards.guard import Guard, GuardContext, GuardVerdict


class MemoryCreep(Guard):
    """Compares the peak at the end of each window of logged steps.

    With batches of varying length the peak grows too, but ever more rarely: without a leak the probability that each
    of `windows` consecutive windows sets a new peak is 1/(windows + 1)!.
    """

    id = "memory_creep"

    def __init__(self, config: MemoryCreepGuard, _: GuardContext | None = None) -> None:
        self._config = config
        self._peaks: deque[float] = deque(maxlen=config.windows + 1)  # GiB, at the end of each window
        self._steps = 0
        self._peak = 0.0

    def observe(self, fact: Fact) -> GuardVerdict | None:
        memory = fact.value("memory_gib") if isinstance(fact, LoggedStep) else None
        if not isinstance(fact, LoggedStep) or memory is None:
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
        return GuardVerdict(self.id, message, {"step": fact.number, "from_gib": first, "to_gib": last, "steps": steps})
