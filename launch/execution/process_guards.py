"""The guards of a run's phases, processes and disk, which judge more than the values of a step.

Their limits are in launch/config/guards.py, and launch/execution/guards.py lists them.
"""

from __future__ import annotations

from dataclasses import replace

from launch.config import guards as limits
from launch.execution.facts import (
    DiskUsage,
    Fact,
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
from launch.worker.wording import count_of

# {phase: its key in the limits}, where the two differ: `import` is a Python keyword.
_CONFIG_KEYS = {"import": "importing"}
# Seconds between two ticks above which the watcher was suspended (SIGSTOP, a sleeping machine).
_GAP = 30.0
# The phases in which ranks may exit one by one, since only rank 0 has something to write.
_ENDING = ("save", "push")


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
    # The time of the last logged step, or of the start of training.
    _last_step_time: float | None = None
    _longest_step = 0.0  # seconds between two logged steps

    def judge(self, fact: Fact) -> GuardFinding | None:
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

    def judge(self, fact: Fact) -> GuardFinding | None:
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
        found = self._fail(message, rank=self._error.rank, seconds=seconds)
        return replace(found, failed=True, is_quiet=self._error.is_stop)

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

    def judge(self, fact: Fact) -> GuardFinding | None:
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
        message = f"{message} at step {due}, {count_of(max(0, due - step), 'step')} from now"
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
