"""Widths as they would have been measured, made up number by number."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from launch.config.kinds import Kind
from launch.config.recipe_keys import Precision
from launch.config.schema import Device, Family, Mode
from launch.config.trials import GatesConfig
from launch.execution.record.outcome import Outcome
from launch.planning.build import build_plan
from launch.planning.parallel import Parallel, Width
from launch.planning.plan import Plan
from launch.trials.measurement import Measurement
from launch.trials.rollout.gate import GateCase
from launch.trials.rollout.gates_across import GATES
from launch.worker.evidence import Evidence
from launch.worker.finding import Finding
from tests.conftest import composed, fixed_machine

DONE = Outcome(exit_code=0, seconds=60.0, steps=10, last_loss=1.0)
PROVEN = {"what": "packing", "requested": "none", "found": "none", "verdict": "proven"}


@functools.cache
def _base() -> Plan:
    return build_plan(composed("stage=sft", "gpus=1"), fixed_machine())


def plan_of(
    ranks: int = 1,
    *,
    device: Device = Device.cuda,
    kind: Kind = Kind.sft,
    family: Family = Family.open_instruct,
    trainer: str = "finetune",
    precision: Precision = Precision.bf16,
    zero_stage: int | None = None,
    loss: str | None = None,
    allow: Sequence[str] = (),
) -> Plan:
    """The plan of a width, of which only what the gates read is that of a real one."""
    base = _base()
    config = replace(
        base.config,
        stage=replace(base.config.stage, kind=kind),
        trainer=replace(base.config.trainer, name=trainer, family=family),
        recipe=replace(base.config.recipe, loss=loss, learning_rate=1e-3),
        allow=list(allow),
    )
    mode = Mode(f"zero{zero_stage}") if zero_stage else Mode.single if ranks == 1 else Mode.ddp
    parallel = Parallel(mode, Width(device, ranks), precision)
    return replace(
        base, config=config, parallel=parallel, batch=replace(base.batch, global_=16, width=ranks)
    )


def falling(count: int = 10, start: float = 3.0, by: float = 0.1) -> list[float]:
    return [start - by * index for index in range(count)]


def measured(
    losses: Sequence[float | None] | None = None,
    *,
    first_step: int = 1,
    ranks: int = 1,
    outcome: Outcome = DONE,
    columns: dict[str, Sequence[float]] | None = None,
    evidence: Sequence[dict[str, Any]] = (PROVEN,),
    inspected_ranks: Sequence[int] | None = None,
    total_steps: int | None = 1000,
    card_gib: float | None = None,
    phases: dict[str, float] | None = None,
    requested: int | None = None,
    **plan: Any,
) -> Measurement:
    """A width of `ranks` with a loss a step, None where it is not logged, and `columns` of other
    numbers beside it.
    """
    losses = falling() if losses is None else losses
    columns = columns or {}
    steps = tuple(
        {
            "step": number + first_step,
            **({} if loss is None else {"loss": loss}),
            **{name: row[number] for name, row in columns.items()},
        }
        for number, loss in enumerate(losses)
    )
    return Measurement(
        plan=plan_of(ranks, **plan),
        requested_steps=max(1, len(losses)) if requested is None else requested,
        outcome=outcome,
        steps=steps,
        evidence=tuple(map(Evidence.read, evidence)),
        inspected_ranks=frozenset(range(ranks) if inspected_ranks is None else inspected_ranks),
        phases=phases or {},
        total_steps=total_steps,
        card_gib=card_gib,
    )


def gate_result(
    id: str,
    now: Measurement,
    before: Measurement | None = None,
    allow: Sequence[str] = (),
    **numbers: Any,
) -> Finding | None:
    """What the gate `id` says; `numbers` replace those of its node in the configuration."""
    config = GatesConfig()
    if numbers:
        setattr(config, id, replace(getattr(config, id), **numbers))
    gate = next(gate for gate in GATES if gate.id == id)
    return gate.apply(GateCase(now, before, config), allow)


def verdict(
    id: str, now: Measurement, before: Measurement | None = None, **numbers: Any
) -> str | None:
    result = gate_result(id, now, before, **numbers)
    return None if result is None else result.severity
