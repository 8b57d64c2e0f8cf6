"""Run folders as the launcher writes them, for the pages of runs that ended in every way."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.errors import EXIT_DONE
from launch.execution.record.events import Event, Metrics
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome

START = 1_790_000_000.0  # unix seconds
DONE = Outcome(EXIT_DONE, 60.0, 0, None)
PLAN = {
    "schema_version": 1,
    "stage": "demo",
    "trainer": "finetune",
    "identity": "0123abcd",
    "parallel": {"mode": "zero2", "precision": "bf16", "device": "cuda"},
    "batch": {"global": 128, "per_device": 4, "accumulation": 4, "width": 8},
    "flags": {
        "learning_rate": {
            "value": 5e-06,
            "origin": "recipe",
            "where": "configs/tulu/stage/demo.yaml:18",
        }
    },
    "warnings": [],
}


def write_run(
    folder: Path,
    steps: Sequence[Mapping[str, Any]] = (),
    outcome: Outcome | None = DONE,
    events: Sequence[Mapping[str, Any]] = (),
    plan: Mapping[str, Any] = PLAN,
) -> Path:
    """Write the folder of a run with these steps, as the trainer logs them. Without an outcome it
    is unfinished.
    """
    record = RunFolder(folder)
    record.create()
    record.write_json("plan.json", plan)
    record.write_config({"guards": {"divergence": {"factor": 2.0, "window": 10}, "stall": None}})
    record.write_command(
        ["accelerate", "launch", "finetune.py", "--learning_rate", "5e-06"], {"A": "b"}
    )
    metrics, last = Metrics(), None
    with record.metrics.open("a", encoding="utf-8") as file:
        for index, step in enumerate(steps, 1):
            last = metrics.add(Event("step", START + 20 + index, 0, {"step": index, **step}))
            file.write(json.dumps(last) + "\n")
    phases = [("import", 0), ("tokenize", 5), ("load", 12), ("training", 20), ("save", 50)]
    written = [
        {"kind": "phase", "phase": phase, "time": START + after, "rank": 0}
        for phase, after in phases
    ]
    with record.events.open("a", encoding="utf-8") as file:
        file.writelines(
            json.dumps({"schema_version": 1, **event}) + "\n" for event in [*written, *events]
        )
    if outcome is not None:
        record.finish(replace(outcome, steps=len(steps), last_loss=metrics.last_loss))
    return folder
