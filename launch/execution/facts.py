"""`Guard`, and the facts that guards judge in a live run: steps, phases, output, ranks, free space.

The time of a fact is in seconds of one monotonic clock; only differences are meaningful.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from launch.config.ranges import is_number
from launch.worker.finding import Finding
from launch.worker.opened import UsedFile


@dataclass(frozen=True)
class Fact:
    """Something observed at `time`."""

    time: float


@dataclass(frozen=True)
class LoggedStep(Fact):
    """A logged step of the trainer."""

    number: int
    values: Mapping[str, Any] = field(default_factory=dict)  # the values in metrics.jsonl

    def value(self, name: str) -> float | None:
        """Return the number that was logged under `name`, which may be NaN or infinite; None
        without one.
        """
        value = self.values.get(name)
        return float(value) if is_number(value) else None

    def finite(self, name: str) -> float | None:
        """Return the number that was logged under `name`; None without one, and if it is not
        finite.
        """
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
class FileUsed(Fact):
    """The trainer or a verifier has used a file of the user's."""

    file: UsedFile


@dataclass(frozen=True)
class RankError(Fact):
    """A rank reported the error that ends it."""

    rank: int
    is_stop: bool = False  # whether it stops itself, as a requested setting is not in effect


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
    """Time has passed. It is sent at least once per second; a longer gap means that the watcher
    itself was suspended.
    """


@dataclass(frozen=True)
class GuardFinding(Finding):
    """A failure ends the run, a warning does not."""

    # Whether the run has already failed, so that the guard only shortens the wait for its end.
    failed: bool = False
    # The last time at which the run was known to be good; None means now. A finding about steps has
    # one: it counts even if the run finished before it could be stopped.
    good_until: float | None = None
    wants_stacks: bool = False  # whether the stacks of all ranks are dumped before the run is ended
    is_quiet: bool = False  # whether the run's own cause is printed, and the guard is not


@dataclass(frozen=True)
class GuardContext:
    """The facts of a run that guards know before it starts."""

    ranks: Sequence[int] = (0,)  # the global ranks of this node
    checkpoint_every: int | None = None  # optimizer steps; None means no checkpoint before the end
    total_steps: int | None = None  # None if the plan does not know it
    model: Path | None = None  # the folder of the weights that are loaded; None for a hub id
    # The losses that earlier attempts of a resumed run logged, by step.
    losses: Mapping[int, float] = field(default_factory=dict)
    # The step of the checkpoint; None if there is none, or it is unknown.
    resumed_step: int | None = None
    # Whether a repeated step has the same samples and the same sums: an RLVR run samples new ones,
    # and ranks of another number add up in another order.
    repeats: bool = True


Fault = tuple[str, dict[str, float]]  # a message, and the numbers behind it


class Guard:
    """A rule over the facts of a run, with a state.

    `id` is its stable name: the key under `guards:` and the id that `allow=[id]` takes. A guard of
    one `metric` has `find_fault`, and stops a run when as many logged steps in a row are at fault
    as the key `steps` of its limits allows.
    """

    id: ClassVar[str]
    metric: ClassVar[str]
    # Whether it runs on every node; other guards run on node 0, where the metrics are logged.
    on_every_node: ClassVar[bool] = False
    _streak = 0  # logged steps in a row with a fault, the current one included
    _good_until = -math.inf

    def __init__(self, config: Any, context: GuardContext | None = None) -> None:
        self._config = config
        self._context = context or GuardContext()
        self._total_steps = self._context.total_steps
        # The values of the last steps, for a guard that keeps them.
        self._recent: deque[float] = deque(maxlen=getattr(config, "window", None))
        self.begin()

    def begin(self) -> None:
        """Set up the state of the guard."""

    def judge(self, fact: Fact) -> GuardFinding | None:
        """Take a fact; return a finding if the run should stop."""
        return self.judge_step(fact) if isinstance(fact, LoggedStep) else None

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        """Judge a logged step, for a guard that needs no other fact."""
        value = step.finite(self.metric)
        if value is None:
            return None
        self._streak += 1
        fault = self.find_fault(step, value)
        if fault is None:
            self._streak = 0
            self._good_until = step.time
        if fault is None or self._streak < self._config.steps:
            return None
        message, numbers = fault
        return self._fail(
            message, self._good_until, step=step.number, **numbers, steps=self._streak
        )

    def find_fault(self, step: LoggedStep, value: float) -> Fault | None:
        """Return what is wrong with a step's value of the metric; None if nothing is."""
        return None

    def _fail(
        self, message: str, good_until: float | None = None, /, **numbers: float | int | str
    ) -> GuardFinding:
        return GuardFinding(self.id, message, numbers=numbers, good_until=good_until)
