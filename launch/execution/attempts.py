"""Keep a run's record over its attempts: metrics.jsonl with each step once, and a line for each start."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.execution.record.folder import Outcome
from launch.execution.resume import AttemptStart
from launch.files import append_json, read_json_lines, write_json_lines

ATTEMPTS = "attempts.jsonl"
SUPERSEDED = "metrics.superseded.jsonl"


def begin_attempt(folder: Path, start: AttemptStart) -> int:
    """Record that an attempt begins and return its number, from 1.

    Steps that were logged after the checkpoint it resumes from will be logged again: they move from metrics.jsonl to
    metrics.superseded.jsonl.
    """
    number = len(read_json_lines(folder / ATTEMPTS)) + 1
    chosen = start.checkpoint
    attempt = {
        "schema_version": 1,
        "attempt": number,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "resumed_from": chosen.path.name if chosen else None,
        "set_aside": [checkpoint.path.name for checkpoint in start.incomplete],
    }
    append_json(folder / ATTEMPTS, attempt)
    if chosen is not None and chosen.unit == "step":
        supersede_steps(folder / "metrics.jsonl", chosen.number)
    return number


def supersede_steps(metrics: Path, step: int) -> None:
    """Keep the steps up to `step`, one object each, in order; move the others to metrics.superseded.jsonl."""
    kept: dict[int, Mapping[str, Any]] = {}
    superseded = []
    for entry in read_json_lines(metrics):
        number = entry.get("step")
        if isinstance(number, int) and number <= step:
            kept[number] = entry
        else:
            superseded.append(entry)
    write_json_lines(metrics, [kept[number] for number in sorted(kept)])
    if superseded:
        append_json(metrics.with_name(SUPERSEDED), *superseded)


def drop_repeated_steps(metrics: Path) -> None:
    """Leave one object a step, in order, where a later attempt began at a step not known in advance (an epoch's)."""
    entries = read_json_lines(metrics)
    kept: list[Mapping[str, Any]] = []
    for entry in entries:
        while kept and kept[-1]["step"] >= entry["step"]:
            kept.pop()
        kept.append(entry)
    if len(kept) != len(entries):
        write_json_lines(metrics, kept)


def add_earlier_steps(outcome: Outcome, metrics: Path) -> Outcome:
    """Return the outcome with the run's last step, for a resumed attempt that had no step left to log."""
    entries = read_json_lines(metrics)
    if not entries or outcome.steps >= entries[-1]["step"]:
        return outcome
    return replace(outcome, steps=entries[-1]["step"], last_loss=entries[-1].get("loss"))
