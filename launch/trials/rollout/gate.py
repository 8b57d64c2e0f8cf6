"""`Gate`: a rule of a rollout with a stable id, which a width has to pass before the next one runs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from launch.config.kinds import KINDS, Kind
from launch.config.trials import GatesConfig
from launch.rules.code import CodeRule, summary_of
from launch.trials.measurement import Measurement
from launch.worker.finding import Finding

# The kinds of training whose loss shows progress.
LOSS_KINDS = tuple(kind for kind, row in KINDS.items() if row.loss_falls)


@dataclass(frozen=True)
class GateCase:
    """The measurements that a gate judges, and the limits of all gates."""

    now: Measurement  # the measurement of the width that is judged
    before: Measurement | None  # that of the previous width; None at the first width
    config: GatesConfig


GateFunction = Callable[[GateCase], Finding | None]


@dataclass(frozen=True, kw_only=True)
class Gate(CodeRule):
    """One rule that a width has to pass before the next one runs."""

    judge: GateFunction
    source: str  # the source of the rule, or of its limit
    kinds: tuple[Kind, ...]  # kinds of training that it judges
    early: bool  # whether it also judges a width that did not finish

    def apply(self, case: GateCase, allow: Collection[str]) -> Finding | None:
        """Return the gate's result; None where it does not apply to this width."""
        if case.now.plan.config.stage.kind not in self.kinds:
            return None
        if not (self.early or case.now.finished):
            return None
        result = self.judge(case)
        if result is None:
            return None
        return self.finish(result, allow)


def gate(
    id: str, source: str, *, kinds: tuple[Kind, ...] = tuple(Kind), early: bool = False
) -> Callable[[GateFunction], Gate]:
    """Make a gate of a function whose docstring is the gate's summary: why it exists.

    The function returns None if the gate does not apply: for another loss, or at the first width.
    Its name then stands for the gate and not for a function: `NAME.judge(case)` calls it.
    """

    def make(function: GateFunction) -> Gate:
        return Gate(
            id=id,
            summary=summary_of(function),
            judge=function,
            source=source,
            kinds=kinds,
            early=early,
        )

    return make


def passed(message: str, **numbers: Any) -> Finding:
    """Return the result of a gate that a width passes; `numbers` are recorded with it."""
    return Finding("", message, severity="pass", numbers=numbers)


def warned(message: str, **numbers: Any) -> Finding:
    """Return a result that the report shows, but that stops nothing."""
    return Finding("", message, severity="warn", numbers=numbers)


def failed(message: str, **numbers: Any) -> Finding:
    """Return a result that ends the rollout, unless `allow` has the gate's id."""
    return Finding("", message, numbers=numbers)
