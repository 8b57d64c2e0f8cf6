"""What a gate is, and its result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from launch.config.schema import Kind
from launch.config.trials import GatesConfig
from launch.trials.measurement import Measurement

ALL_KINDS = tuple(Kind)
LOSS_KINDS = (Kind.sft, Kind.dpo, Kind.rm)  # RLVR's loss is 0 by construction, and its data is sampled


class GateVerdict(StrEnum):
    passed = "pass"
    warn = "warn"
    fail = "fail"


@dataclass(frozen=True)
class GateResult:
    """The result of one gate for one width."""

    id: str
    verdict: GateVerdict
    message: str  # one sentence
    numbers: Mapping[str, Any] = field(default_factory=dict)  # behind the verdict
    reason: str = ""  # why the gate exists
    source: str = ""  # where the gate, or its limit, comes from
    allowed: bool = False  # it failed, and `allow=[id]` overrides that

    @property
    def stops(self) -> bool:
        return self.verdict == GateVerdict.fail and not self.allowed


@dataclass(frozen=True)
class GateCase:
    """What a gate judges."""

    now: Measurement
    before: Measurement | None  # of the width before, None at the first
    config: GatesConfig


GateFunction = Callable[[GateCase], GateResult | None]


@dataclass(frozen=True)
class Gate:
    """One rule."""

    id: str
    reason: str
    source: str
    kinds: tuple[Kind, ...]
    early: bool  # it also judges a width that did not finish
    judge: GateFunction


def gate(
    id: str, source: str, *, kinds: tuple[Kind, ...] = ALL_KINDS, early: bool = False
) -> Callable[[GateFunction], Gate]:
    """Make a gate of a function whose docstring is the reason. The function returns None where the gate does not apply:
    another kind of loss, no width before."""

    def make(function: GateFunction) -> Gate:
        return Gate(id, " ".join((function.__doc__ or "").split()), source, kinds, early, function)

    return make


def apply_gate(gate: Gate, case: GateCase, allow: Collection[str]) -> GateResult | None:
    """The gate's result; None where it does not apply to this width."""
    if case.now.plan.config.stage.kind not in gate.kinds or not (gate.early or case.now.finished):
        return None
    result = gate.judge(case)
    if result is None:
        return None
    allowed = result.verdict == GateVerdict.fail and gate.id in allow
    return replace(result, id=gate.id, reason=gate.reason, source=gate.source, allowed=allowed)


def passed(message: str, **numbers: Any) -> GateResult:
    return GateResult("", GateVerdict.passed, message, numbers)


def warned(message: str, **numbers: Any) -> GateResult:
    return GateResult("", GateVerdict.warn, message, numbers)


def failed(message: str, **numbers: Any) -> GateResult:
    return GateResult("", GateVerdict.fail, message, numbers)
