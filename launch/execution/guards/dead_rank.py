"""Detects a rank that failed or vanished while the others wait for it in a collective."""

from __future__ import annotations

from launch.config.guards import DeadRankGuard
from launch.execution.guards.facts import (
    Fact,
    LoggedStep,
    NewOutput,
    PhaseStarted,
    RankError,
    RankExited,
    Tick,
    TotalSteps,
)
from launch.execution.guards.guard import Guard, GuardContext, GuardVerdict

_ENDING = ("save", "push")  # phases in which ranks may exit one by one: only rank 0 has something to write


class DeadRank(Guard):
    """Ends the run some seconds after the first error of a rank, or when a rank's process vanished.

    torch elastic gives the other ranks 30 s; DeepSpeed's ranks took 66 s to die in a measurement. torch elastic does
    not notice a rank that exits early with status 0 (torch/distributed/elastic/multiprocessing/api.py, `_poll`).
    """

    id = "dead_rank"
    on_every_node = True

    def __init__(self, config: DeadRankGuard, context: GuardContext) -> None:
        self._config = config
        self._ranks = set(context.ranks)
        self._total = context.total_steps
        self._error: RankError | None = None
        self._exited: dict[int, float] = {}
        self._ending = False
        self._progress = 0.0

    def observe(self, fact: Fact) -> GuardVerdict | None:
        if isinstance(fact, RankError):
            self._error = self._error or fact
        elif isinstance(fact, RankExited):
            self._exited.setdefault(fact.rank, fact.time)
        elif isinstance(fact, TotalSteps):
            self._total = fact.steps
        elif isinstance(fact, PhaseStarted):
            self._ending = fact.phase in _ENDING
            self._progress = fact.time
        elif isinstance(fact, LoggedStep):
            self._ending = self._total is not None and fact.number >= self._total
            self._progress = fact.time
        elif isinstance(fact, NewOutput):
            self._progress = fact.time
        elif isinstance(fact, Tick):
            return self._check_error(fact.time) or self._check_exits(fact.time)
        return None

    def _check_error(self, now: float) -> GuardVerdict | None:
        if self._error is None or now - self._error.time <= self._config.after_error:
            return None
        seconds = round(now - self._error.time, 1)
        message = f"rank {self._error.rank} failed and the run did not end within {seconds:.0f} s"
        return GuardVerdict(self.id, message, {"rank": self._error.rank, "seconds": seconds}, failed=True)

    def _check_exits(self, now: float) -> GuardVerdict | None:
        waiting = self._ranks - set(self._exited)
        if not self._exited or not waiting or self._ending:
            return None
        rank, since = min(self._exited.items(), key=lambda item: item[1])
        silence = now - max(since, self._progress)
        if silence <= self._config.silent:
            return None
        noun = "rank" if len(waiting) == 1 else "ranks"
        others = ", ".join(str(number) for number in sorted(waiting))
        message = f"the process of rank {rank} exited without an error while {noun} {others} waited for {silence:.0f} s"
        return GuardVerdict(self.id, message, {"rank": rank, "seconds": round(silence, 1)}, wants_stacks=True)
