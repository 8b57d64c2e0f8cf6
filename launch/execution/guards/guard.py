"""The interface of a guard, its finding, and what it knows of the run in advance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from launch.execution.guards.facts import Fact, LoggedStep
from launch.worker.finding import Finding


@dataclass(frozen=True)
class GuardFinding(Finding):
    """A failure ends the run, a warning does not."""

    failed: bool = False  # the run has failed by itself; the guard only shortens the wait for its end
    # the last time at which the run was known to be good; None means now. A guard that gives one judges steps: its
    # finding counts even if the run finished before it could be stopped
    good_until: float | None = None
    wants_stacks: bool = False  # dump the stacks of all ranks before the run is ended

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "message": self.message, "numbers": dict(self.numbers)}


@dataclass(frozen=True)
class GuardContext:
    """What is known of a run before it starts."""

    ranks: Sequence[int] = (0,)  # the global ranks of this node
    checkpoint_every: int | None = None  # optimizer steps; None means no checkpoint before the end
    total_steps: int | None = None  # None if the plan does not know it


class Guard(Protocol):
    """A stateful rule. `id` is its stable name: the key under `guards:` and the id that `allow=[id]` takes."""

    id: ClassVar[str]
    on_every_node: ClassVar[bool] = False  # the other guards run where the metrics are logged, on node 0

    def __init__(self, config: Any, context: GuardContext) -> None: ...

    def observe(self, fact: Fact) -> GuardFinding | None:
        """Take a fact; return what it shows, if anything."""
        return self.judge_step(fact) if isinstance(fact, LoggedStep) else None

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        """Judge a logged step, for a guard of nothing but steps."""
        return None
