"""What the guards of a live run observe: steps, phases, output, ranks, free space.

The time of a fact is in seconds of one monotonic clock; only differences are meaningful.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fact:
    """Something observed at `time`."""

    time: float


@dataclass(frozen=True)
class LoggedStep(Fact):
    """A logged step of the trainer."""

    number: int
    values: Mapping[str, Any] = field(default_factory=dict)  # as in metrics.jsonl

    def value(self, name: str) -> float | None:
        """Return the number under `name`, which may be NaN or infinite; None if the trainer did not log one."""
        value = self.values.get(name)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def finite(self, name: str) -> float | None:
        """Return the number under `name`; None too for a NaN or an infinity."""
        value = self.value(name)
        return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class PhaseStarted(Fact):
    """The run entered a phase."""

    phase: str


@dataclass(frozen=True)
class TotalSteps(Fact):
    """The trainer reported how many optimizer steps it will do."""

    steps: int


class NewOutput(Fact):
    """A rank printed a line that it had not printed recently."""


@dataclass(frozen=True)
class RankError(Fact):
    """A rank reported the error that ends it."""

    rank: int


@dataclass(frozen=True)
class RankExited(Fact):
    """The process of a rank no longer exists."""

    rank: int


@dataclass(frozen=True)
class DiskUsage(Fact):
    """Free space where the trainer writes, and the size of what it writes, in bytes."""

    free: int
    checkpoint: int | None = None  # None if unknown
    model: int | None = None  # None if unknown


class Tick(Fact):
    """Time has passed. Sent at least once per second; a longer gap means that the watcher itself was suspended."""
