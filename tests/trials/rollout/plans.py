"""Plans and records of a rollout, and a run that is made up: it writes what a real one would into its folder."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.config.line import parse_line
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome
from launch.planning.plan import Plan, build_plan
from launch.trials.rollout.engine import plan_widths
from launch.trials.rollout.plan_differences import find_plan_differences
from launch.trials.rollout.record import RolloutRecord, WidthRun
from launch.trials.rollout.request import read_request
from launch.trials.trial import probe_line
from tests.conftest import composed, fixed_machine

Planned = tuple[Path, list[WidthRun]]
_composed = functools.cache(composed)  # composing is most of a test's time, and nothing changes what it gives


def planned(home: Path, *words: str) -> Planned:
    """What `rollout WORDS` plans in the folder `home`."""
    request = read_request(parse_line(["rollout", *words], ["rollout"]))
    machine = fixed_machine(cwd=home)
    return plan_widths(
        request,
        lambda ranks, mode: _composed(*probe_line(request.stage_line(ranks, mode)).argv),
        lambda composed: build_plan(composed, machine),
    )


def record_of(planned: Planned, steps: int = 3, price: float | None = None) -> RolloutRecord:
    folder, runs = planned
    differing = find_plan_differences([run.plan for run in runs])
    fresh = [replace(run) for run in runs]
    return RolloutRecord(folder, steps, "stop", price, skip=1, differences=differing, runs=fresh)


def steps(losses: Sequence[float], seconds: float = 1.0) -> list[dict[str, Any]]:
    """metrics.jsonl of a run, the same tokens in every step whatever the width."""
    return [
        {
            "schema_version": 1,
            "step": number,
            **({"loss": None, "loss_text": "nan"} if math.isnan(loss) else {"loss": loss}),
            "lr": 1e-3,
            "tokens": 1000 + number,
            "tokens_padded": 1500,
            "grad_norm": 1.0,
            "seconds": seconds,
        }
        for number, loss in enumerate(losses, 1)
    ]


def leave(width: WidthRun, outcome: Outcome, metrics: Sequence[Mapping[str, Any]], total_steps: int = 1000) -> Outcome:
    """What the run of a width leaves in its folder."""
    return leave_run(width.plan, outcome, metrics, total_steps)


def leave_run(plan: Plan, outcome: Outcome, metrics: Sequence[Mapping[str, Any]], total_steps: int = 1000) -> Outcome:
    """What a run of `plan` leaves in its folder."""
    folder = RunFolder(plan.folder)
    folder.create()
    folder.write_json("plan.json", plan.as_json())
    lines = [json.dumps(step) for step in metrics]
    folder.metrics.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    events: list[dict[str, Any]] = [
        {"kind": "phase", "time": 0.0, "rank": 0, "phase": "load"},
        {"kind": "total_steps", "time": 6.0, "rank": 0, "steps": total_steps},
        {"kind": "phase", "time": 6.0, "rank": 0, "phase": "training"},
    ]
    events += [
        {"kind": "evidence", "time": 7.0, "rank": rank, "what": "dtype", "value": "bf16"}
        for rank in range(plan.batch.width)
    ]
    folder.events.write_text("".join(f"{json.dumps(event)}\n" for event in events), encoding="utf-8")
    item = {"what": "dtype", "requested": "bf16", "found": "bf16", "verdict": "proven"}
    folder.write_json("evidence.json", {"schema_version": 1, "items": [item]})
    folder.finish(outcome)
    return outcome
