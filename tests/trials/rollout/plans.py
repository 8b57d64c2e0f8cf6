"""Plans and records of a rollout, and a run that is made up: it writes what a real one would into
its folder.
"""

from __future__ import annotations

import functools
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.config.line import parse_line
from launch.execution.display import PlainDisplay
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome
from launch.planning.build import build_plan
from launch.planning.plan import Plan
from launch.trials.measurement import archive_earlier_try
from launch.trials.rollout.engine import plan_rollout, run_widths
from launch.trials.rollout.record import RolloutRecord, WidthRun
from launch.trials.rollout.request import SubmitMode, read_rollout_request
from launch.trials.trial import Runner, probe_line
from launch.worker.json_codec import versioned
from tests.conftest import composed, fixed_machine
from tests.execution.record.records import event

# composing is most of a test's time, and nothing changes what it gives
_composed = functools.cache(composed)


def planned(home: Path, *words: str) -> RolloutRecord:
    """What `rollout WORDS` plans in the folder `home`."""
    request = read_rollout_request(parse_line(["rollout", *words], ["rollout"]))
    machine = fixed_machine(cwd=home)
    return plan_rollout(
        request,
        lambda line: _composed(*line.argv).config.rollout,
        lambda line: build_plan(_composed(*probe_line(line).argv), machine),
    )


def record_of(
    planned: RolloutRecord, steps: int = 3, price: float | None = None, allow: Sequence[str] = ()
) -> RolloutRecord:
    """Another call of the same rollout, with these options; one step does not count."""
    own = planned.plan.config
    gates = replace(own.gates, throughput_steady=replace(own.gates.throughput_steady, skip=1))
    options = replace(own.rollout, steps=steps, price_per_gpu_hour=price)
    runs = []
    for run in planned.runs:
        config = replace(run.plan.config, rollout=options, gates=gates, allow=list(allow))
        runs.append(replace(run, plan=replace(run.plan, config=config)))
    return replace(planned, plan=runs[0].plan, steps=steps, warmup=1, runs=runs)


Ran = Callable[[WidthRun], object]


def go(
    record: RolloutRecord,
    run: Ran,
    *,
    cards: int = 8,
    submit: SubmitMode = SubmitMode.none,
    nodes: int = 1,
    **more: Any,
) -> int:
    """Run a rollout whose widths `run` makes up, and return its exit code."""

    def start(width: WidthRun, seconds: float | None) -> None:
        archive_earlier_try(width.plan)
        run(width)

    runner = Runner(record, PlainDisplay(io.StringIO()), start)
    return run_widths(runner, cards=cards, nodes=nodes, submit=submit, **more)


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


def leave(
    width: WidthRun, outcome: Outcome, metrics: Sequence[Mapping[str, Any]], total_steps: int = 1000
) -> Outcome:
    """What the run of a width leaves in its folder."""
    return leave_run(width.plan, outcome, metrics, total_steps)


def leave_run(
    plan: Plan, outcome: Outcome, metrics: Sequence[Mapping[str, Any]], total_steps: int = 1000
) -> Outcome:
    """What a run of `plan` leaves in its folder."""
    folder = RunFolder(plan.folder)
    folder.create()
    folder.write_json("plan.json", versioned(plan))
    lines = [json.dumps(step) for step in metrics]
    folder.metrics.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    events = [
        event("phase", 0.0, phase="load"),
        event("total_steps", 6.0, steps=total_steps),
        event("phase", 6.0, phase="training"),
        *(
            event("evidence", 7.0, rank=rank, what="dtype", value="bf16")
            for rank in range(plan.batch.width)
        ),
    ]
    folder.events.write_text(
        "".join(f"{json.dumps(versioned(line))}\n" for line in events), encoding="utf-8"
    )
    item = {"what": "dtype", "requested": "bf16", "found": "bf16", "verdict": "proven"}
    folder.write_json("evidence.json", {"schema_version": 1, "items": [item]})
    folder.finish(outcome)
    return outcome
