"""Faults put into the record of a second width: the rollout goes red there, and for the right
reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.execution.record.outcome import Outcome
from launch.trials.record import State
from launch.trials.rollout.record import WidthRun
from tests.trials.rollout.plans import go, leave, planned, record_of, steps

WORDS = ("stage=sft", "trainer=finetune", "gpus=1,2,4")
STEPS = 14
LOSSES = [3.0 - 0.05 * step for step in range(STEPS)]
DONE = Outcome(exit_code=0, seconds=60.0, steps=STEPS, last_loss=LOSSES[-1])
Fault = Callable[[WidthRun], Outcome]


def run(
    width: WidthRun, losses: list[float] = LOSSES, outcome: Outcome = DONE, **columns: Any
) -> Outcome:
    """A good run, with `columns` (a function of the step) in place of its own numbers."""
    metrics = steps(losses, seconds=2.0 / width.requested.ranks)
    for step in metrics:
        step.update({name: value(step["step"]) for name, value in columns.items()})
    return leave(width, outcome, metrics)


def out_of_memory(width: WidthRun) -> Outcome:
    cause = "rank 1: torch.OutOfMemoryError: CUDA out of memory"
    dead = replace(
        DONE, exit_code=1, steps=2, cause=cause, cause_id="out_of_memory", cure="say parallel=zero3"
    )
    return run(width, LOSSES[:2], dead)


def nan(width: WidthRun) -> Outcome:
    return run(width, [*LOSSES[:5], float("nan"), *LOSSES[6:]])


def guard(width: WidthRun) -> Outcome:
    return run(
        width,
        LOSSES[:6],
        replace(DONE, exit_code=3, steps=6, cause="the loss diverged", cause_id="divergence"),
    )


def killed(width: WidthRun) -> Outcome:
    return run(
        width,
        LOSSES[:3],
        replace(DONE, exit_code=1, steps=3, cause="rank 1: was killed by SIGKILL"),
    )


def diverging(width: WidthRun) -> Outcome:
    return run(width, [3.0 + 0.2 * step for step in range(STEPS)])


def exploding(width: WidthRun) -> Outcome:
    return run(width, grad_norm=lambda step: 10.0**step)


def evidence(width: WidthRun, what: str, requested: str, found: str) -> Outcome:
    outcome = run(width)
    item = {"what": what, "requested": requested, "found": found, "verdict": "refuted"}
    evidence_json = {"schema_version": 1, "items": [item]}
    (width.plan.folder / "evidence.json").write_text(json.dumps(evidence_json))
    return outcome


def liger(width: WidthRun) -> Outcome:
    return evidence(width, "liger", "rms_norm,rope,swiglu", "none")


def alone(width: WidthRun) -> Outcome:
    """Rank 1 never came to its first step."""
    outcome = run(width)
    path = width.plan.folder / "events.jsonl"
    path.write_text(
        "".join(line for line in path.read_text().splitlines(True) if '"rank": 1' not in line)
    )
    return outcome


def other_data(width: WidthRun) -> Outcome:
    return run(width, tokens=lambda step: 900 + step)


def other_rate(width: WidthRun) -> Outcome:
    return run(width, lr=lambda step: 2e-3)


def slower(width: WidthRun) -> Outcome:
    return run(width, seconds=lambda step: 6.0)


def collapsing(width: WidthRun) -> Outcome:
    return run(width, seconds=lambda step: 0.3 if step < 9 else 1.5)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (out_of_memory, ["finished_steps", "memory_room"]),
        (nan, ["loss_finite"]),
        (guard, ["finished_steps"]),
        (killed, ["finished_steps"]),
        (diverging, ["loss_falls", "loss_parity"]),
        (exploding, ["grad_norm_sane"]),
        (liger, ["evidence_complete"]),
        (alone, ["all_ranks_step"]),
        (other_data, ["same_data"]),
        (other_rate, ["same_schedule"]),
        (slower, ["scaling"]),
        (collapsing, ["throughput_steady"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_fault_fails_for_its_reason(fault: Fault, expected: list[str], tmp_path: Path) -> None:
    record = record_of(planned(tmp_path, *WORDS), steps=STEPS)
    faulty = {"gpu2": fault}
    assert go(record, lambda width: faulty.get(width.label, run)(width)) == 3
    first, second, third = record.runs
    assert (first.state, second.state, third.state) == (State.done, State.failed, State.planned)
    assert [result.id for result in second.failed_gates] == expected


def test_without_a_fault_it_is_green(tmp_path: Path) -> None:
    record = record_of(planned(tmp_path, *WORDS), steps=STEPS)
    assert go(record, run) == 0
