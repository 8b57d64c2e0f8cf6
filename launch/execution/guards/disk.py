"""Detects a disk too full for what the trainer writes next: a checkpoint or the final model."""

from __future__ import annotations

from launch.config.guards import DiskGuard
from launch.execution.guards.facts import DiskUsage, Fact, LoggedStep, TotalSteps
from launch.execution.guards.guard import Guard, GuardContext, GuardVerdict

_GIB = 2**30


class DiskSpace(Guard):
    """Warns as soon as the free space is too small; stops shortly before the write would leave half a checkpoint."""

    id = "disk"

    def __init__(self, config: DiskGuard, context: GuardContext) -> None:
        self._config = config
        self._checkpoint_every = context.checkpoint_every
        self._total_steps = context.total_steps
        self._disk: DiskUsage | None = None
        self._first_step: LoggedStep | None = None
        self._last_step: LoggedStep | None = None

    def observe(self, fact: Fact) -> GuardVerdict | None:
        if isinstance(fact, TotalSteps):
            self._total_steps = fact.steps
        elif isinstance(fact, LoggedStep):
            self._first_step, self._last_step = self._first_step or fact, fact
            return self._check()
        elif isinstance(fact, DiskUsage):
            self._disk = fact
            return self._check()
        return None

    def _check(self) -> GuardVerdict | None:
        if self._disk is None:
            return None
        step = self._last_step.number if self._last_step else 0
        what, due, size = self._next_write(step)
        if size is None or self._disk.free >= size * self._config.margin:
            return None
        message = f"the disk has {_format_size(self._disk.free)} free and {what} needs {_format_size(size)}"
        numbers = {"free_bytes": self._disk.free, "needed_bytes": size, "step": step}
        left = self._estimate_seconds(due - step) if due is not None else None
        if left is None or left > self._config.ahead:
            when = f" (at step {due})" if due is not None else ""
            return GuardVerdict(self.id, message + when, numbers, stop=False)
        return GuardVerdict(self.id, f"{message} at step {due}, {max(0, (due or 0) - step)} steps from now", numbers)

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


def _format_size(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / 2**20:.1f} MiB"
