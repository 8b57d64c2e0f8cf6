"""The interface of a guard, its verdict, and what it knows of the run in advance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from launch.execution.guards.facts import Fact


@dataclass(frozen=True)
class GuardVerdict:
    """A guard's decision to end the run, or a warning."""

    guard: str  # the guard's id
    message: str
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)  # the measurements behind it
    stop: bool = True  # end the run; otherwise only warn
    failed: bool = False  # the run has failed by itself; the guard only shortens the wait for its end
    # the last time at which the run was known to be good; None means now. A guard that gives one judges steps: its
    # verdict counts even if the run finished before it could be stopped
    good_until: float | None = None
    wants_stacks: bool = False  # dump the stacks of all ranks before the run is ended

    def as_json(self) -> dict[str, Any]:
        return {"id": self.guard, "message": self.message, "numbers": dict(self.numbers)}


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

    def observe(self, fact: Fact) -> GuardVerdict | None: ...
