"""The guards of progress, processes and disk space."""

from __future__ import annotations

from launch.check.machine.units import format_bytes
from launch.config.guards import DeadRankGuard, DiskGuard, StallGuard
from launch.execution.guards.facts import (
    DiskUsage,
    Fact,
    LoggedStep,
    NewOutput,
    PhaseStarted,
    RankError,
    RankExited,
    Tick,
    TotalSteps,
)
from launch.execution.guards.guard import Guard, GuardContext, GuardFinding

_CONFIG_KEYS = {"import": "importing"}  # phase -> key where they differ: `import` is a Python keyword
_GAP = 30.0  # seconds between two ticks; more means that the watcher was suspended (SIGSTOP, a sleeping machine)
_ENDING = ("save", "push")  # phases in which ranks may exit one by one: only rank 0 has something to write


class Stall(Guard):
    """Detects a run that makes no progress within the patience of its current phase.

    Counts as progress: a new phase, a logged step and, until the first training step, a new line of output.

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

    def observe(self, fact: Fact) -> GuardFinding | None:
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

    def _check(self, now: float) -> GuardFinding | None:
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
        numbers["patience"] = self.patience
        return GuardFinding(self.id, "fail", message, numbers=numbers, wants_stacks=True)


class DeadRank(Guard):
    """Detects a rank that failed or vanished while the others wait for it in a collective.

    Ends the run some seconds after the first error of a rank, or when a rank's process vanished.

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

    def observe(self, fact: Fact) -> GuardFinding | None:
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

    def _check_error(self, now: float) -> GuardFinding | None:
        if self._error is None or now - self._error.time <= self._config.after_error:
            return None
        seconds = round(now - self._error.time, 1)
        message = f"rank {self._error.rank} failed and the run did not end within {seconds:.0f} s"
        numbers = {"rank": self._error.rank, "seconds": seconds}
        return GuardFinding(self.id, "fail", message, numbers=numbers, failed=True)

    def _check_exits(self, now: float) -> GuardFinding | None:
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
        numbers = {"rank": rank, "seconds": round(silence, 1)}
        return GuardFinding(self.id, "fail", message, numbers=numbers, wants_stacks=True)


class DiskSpace(Guard):
    """Detects a disk too full for what the trainer writes next: a checkpoint or the final model.

    Warns as soon as the free space is too small; stops shortly before the write would leave half a checkpoint.
    """

    id = "disk"

    def __init__(self, config: DiskGuard, context: GuardContext) -> None:
        self._config = config
        self._checkpoint_every = context.checkpoint_every
        self._total_steps = context.total_steps
        self._disk: DiskUsage | None = None
        self._first_step: LoggedStep | None = None
        self._last_step: LoggedStep | None = None

    def observe(self, fact: Fact) -> GuardFinding | None:
        if isinstance(fact, TotalSteps):
            self._total_steps = fact.steps
        elif isinstance(fact, LoggedStep):
            self._first_step, self._last_step = self._first_step or fact, fact
            return self._check()
        elif isinstance(fact, DiskUsage):
            self._disk = fact
            return self._check()
        return None

    def _check(self) -> GuardFinding | None:
        if self._disk is None:
            return None
        step = self._last_step.number if self._last_step else 0
        what, due, size = self._next_write(step)
        if size is None or self._disk.free >= size * self._config.margin:
            return None
        message = f"the disk has {format_bytes(self._disk.free)} free and {what} needs {format_bytes(size)}"
        numbers = {"free_bytes": self._disk.free, "needed_bytes": size, "step": step}
        left = self._estimate_seconds(due - step) if due is not None else None
        if due is None or left is None or left > self._config.ahead:
            when = f" (at step {due})" if due is not None else ""
            return GuardFinding(self.id, "warn", message + when, numbers=numbers)
        message = f"{message} at step {due}, {max(0, due - step)} steps from now"
        return GuardFinding(self.id, "fail", message, numbers=numbers)

    def _next_write(self, step: int) -> tuple[str, int | None, int | None]:
        """Return what is written next, at which step, and its size in bytes."""
        assert self._disk is not None
        due = step - step % self._checkpoint_every + self._checkpoint_every if self._checkpoint_every else None
        if due is not None and (self._total_steps is None or due <= self._total_steps):
            return "the next checkpoint", due, self._disk.checkpoint
        return "the model at the end", self._total_steps, self._disk.model

    def _estimate_seconds(self, steps: int) -> float | None:
        """Estimate the seconds that `steps` steps take; None before the pace is known."""
        if steps <= 1:
            return 0.0
        if not self._first_step or not self._last_step or self._last_step.number <= self._first_step.number:
            return None
        pace = (self._last_step.time - self._first_step.time) / (self._last_step.number - self._first_step.number)
        return steps * pace
