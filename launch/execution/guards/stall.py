"""Detects a run that makes no progress within the patience of its current phase."""

from __future__ import annotations

from launch.config.guards import StallGuard
from launch.execution.guards.facts import Fact, LoggedStep, NewOutput, PhaseStarted, Tick
from launch.execution.guards.guard import Guard, GuardContext, GuardVerdict

_CONFIG_KEYS = {"import": "importing"}  # phase -> key where they differ: `import` is a Python keyword
_GAP = 30.0  # seconds between two ticks; more means that the watcher was suspended (SIGSTOP, a sleeping machine)


class Stall(Guard):
    """Counts as progress: a new phase, a logged step and, until the first training step, a new line of output.

    Training is checked only on the node of rank 0, the rank that logs steps.
    """

    id = "stall"

    def __init__(self, config: StallGuard, context: GuardContext) -> None:
        self._config = config
        self._has_rank_0 = 0 in context.ranks
        self._phase = "import"
        self._last_progress: float | None = None
        self._last_tick: float | None = None
        self._last_step: LoggedStep | None = None
        self._last_step_time: float | None = None  # of the last logged step, or the start of training
        self._longest_step = 0.0  # seconds between two logged steps

    def observe(self, fact: Fact) -> GuardVerdict | None:
        if isinstance(fact, Tick):
            return self._check(fact.time)
        if isinstance(fact, PhaseStarted):
            self._phase, self._last_progress = fact.phase, fact.time
            if fact.phase == "training" and self._last_step_time is None:
                self._last_step_time = fact.time
        elif isinstance(fact, LoggedStep):
            if self._last_step_time is not None:
                self._longest_step = max(self._longest_step, fact.time - self._last_step_time)
            self._phase, self._last_step = "training", fact
            self._last_step_time = self._last_progress = fact.time
        elif isinstance(fact, NewOutput) and not (self._phase == "training" and self._last_step):
            self._last_progress = fact.time
        return None

    @property
    def patience(self) -> float:
        """Seconds without progress that the current phase allows."""
        if self._phase != "training":
            return float(getattr(self._config, _CONFIG_KEYS.get(self._phase, self._phase)))
        if self._last_step is None:
            return self._config.first_step
        return max(self._config.training, self._config.factor * self._longest_step)

    def _check(self, now: float) -> GuardVerdict | None:
        previous_tick, self._last_tick = self._last_tick, now
        if self._last_progress is None or previous_tick is None or now - previous_tick > _GAP:
            self._last_progress = now  # nobody was watching in between
        waited = now - self._last_progress
        if waited <= self.patience or (self._phase == "training" and not self._has_rank_0):
            return None
        where = self._phase if self._phase != "training" or self._last_step else "training, before the first step"
        message = f"no progress for {waited:.0f} s in {where} (patience {self.patience:.0f} s)"
        numbers: dict[str, float | int | str] = {"phase": self._phase, "seconds": round(waited, 1)}
        if self._last_step is not None:
            message += f"; the last logged step was {self._last_step.number}"
            numbers["step"] = self._last_step.number
        return GuardVerdict(self.id, message, numbers | {"patience": self.patience}, wants_stacks=True)
