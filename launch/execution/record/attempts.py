"""The attempts of a run: attempts.jsonl, and the steps that a resumed attempt logs again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.execution.record.checkpoints import Checkpoint, Layout, checkpoint_step, layout_of
from launch.execution.record.outcome import Outcome
from launch.execution.record.steps import read_steps
from launch.files import append_json, read_json_lines, write_json_lines
from launch.planning.plan import Plan
from launch.worker.json_codec import versioned

ATTEMPTS = "attempts.jsonl"
SUPERSEDED = "metrics.superseded.jsonl"


def begin_attempt(
    folder: Path,
    chosen: Checkpoint | None,
    incomplete: Sequence[Checkpoint],
    plan: Plan | None = None,
) -> int:
    """Record that an attempt begins, at the width of `plan`, and return its number, from 1.

    Steps that were logged after the checkpoint that it resumes from (`chosen`) will be logged
    again: they move from metrics.jsonl to metrics.superseded.jsonl.
    """
    number = latest_attempt(folder) + 1
    attempt: dict[str, Any] = {
        "attempt": number,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "resumed_from": chosen.path.name if chosen else None,
        "set_aside": [checkpoint.path.name for checkpoint in incomplete],
    }
    if plan is not None:
        layout = layout_of(plan)
        attempt |= {
            "width": str(plan.parallel.width),
            "mode": plan.parallel.mode,
            "ranks": layout.world_size,
            "zero_stage": layout.zero_stage,
        }
    append_json(folder / ATTEMPTS, versioned(attempt))
    if chosen is not None and chosen.unit == "step":
        supersede_steps(folder / "metrics.jsonl", chosen.number)
    return number


def latest_attempt(folder: Path) -> int:
    """Return the number of the last attempt that began; 0 before the first."""
    numbers = [entry.get("attempt") for entry in read_json_lines(folder / ATTEMPTS)]
    return max((number for number in numbers if isinstance(number, int)), default=0)


def attempt_layouts(folder: Path, layout: Layout) -> dict[int, Layout]:
    """Return the layout of the checkpoints of each attempt that recorded its width, by number.

    `layout` has what is the same in all attempts.
    """
    layouts = {}
    for entry in read_json_lines(folder / ATTEMPTS):
        number = entry.get("attempt")
        ranks = entry.get("ranks")
        if isinstance(number, int) and isinstance(ranks, int):
            layouts[number] = replace(layout, world_size=ranks, zero_stage=entry.get("zero_stage"))
    return layouts


def find_resumes(
    attempts: Sequence[Mapping[str, Any]], steps_before: Mapping[int, int]
) -> list[tuple[int, str]]:
    """Return the steps after which a run was resumed, each with what changed: `cpu1 to cpu2` of
    another width or parallel mode, else `resumed`.

    `steps_before`: the steps that were done before an attempt, by its number, as its trainer has
    reported them; a checkpoint that is named after an epoch has them in no name.
    """
    changes = []
    before: tuple[str, str] | None = None
    for attempt in attempts:
        if "width" not in attempt:
            continue
        now = (str(attempt["width"]), str(attempt.get("mode")))
        step = checkpoint_step(attempt.get("resumed_from"))
        if step is None:
            step = steps_before.get(attempt.get("attempt", 0))
        if before is not None and step:
            differing = 0 if now[0] != before[0] else 1
            is_changed = now != before
            text = f"{before[differing]} to {now[differing]}" if is_changed else "resumed"
            changes.append((step, text))
        before = now
    return changes


def has_several_widths(folder: Path) -> bool:
    """Return whether attempts of a run had different widths or ZeRO stages. An attempt that does not
    tell its ranks is passed over.
    """
    widths = {
        (entry["ranks"], entry.get("zero_stage"))
        for entry in read_json_lines(folder / ATTEMPTS)
        if "ranks" in entry
    }
    return len(widths) > 1


def supersede_steps(metrics: Path, step: int) -> None:
    """Keep the steps up to `step`, in order and each once; move the others to
    metrics.superseded.jsonl.
    """
    kept: dict[int, Mapping[str, Any]] = {}
    superseded = []
    for entry in read_steps(metrics):
        if entry["step"] <= step:
            kept[entry["step"]] = entry
        else:
            superseded.append(entry)
    write_json_lines(metrics, [kept[number] for number in sorted(kept)])
    if superseded:
        append_json(metrics.with_name(SUPERSEDED), *superseded)


def earlier_losses(folder: Path) -> dict[int, float]:
    """Return the loss of each step that earlier attempts of a resumed run logged.

    It is empty for an attempt that begins at the first step.
    """
    attempts = read_json_lines(folder / ATTEMPTS)
    if not attempts or attempts[-1].get("resumed_from") is None:
        return {}
    losses = {}
    for entry in [*read_steps(folder / SUPERSEDED), *read_steps(folder / "metrics.jsonl")]:
        loss = entry.get("loss")
        if isinstance(loss, (int, float)):
            losses[entry["step"]] = float(loss)
    return losses


def resumed_step(folder: Path) -> int | None:
    """Return the step of the checkpoint that the latest attempt resumed from.

    None is returned without such a checkpoint, and for one that is named after an epoch.
    """
    attempts = read_json_lines(folder / ATTEMPTS)
    return checkpoint_step(attempts[-1].get("resumed_from")) if attempts else None


def drop_repeated_steps(metrics: Path) -> None:
    """Remove the steps that a later attempt logged again.

    When an attempt resumes from a checkpoint that is named after an epoch, its first step is not
    known before it is logged.
    """
    entries = read_steps(metrics)
    kept: list[Mapping[str, Any]] = []
    for entry in entries:
        while kept and kept[-1]["step"] >= entry["step"]:
            kept.pop()
        kept.append(entry)
    if len(kept) != len(entries):
        write_json_lines(metrics, kept)


def add_earlier_steps(outcome: Outcome, metrics: Path) -> Outcome:
    """Return the outcome with the last step of the whole run.

    A resumed attempt may have had no step left to log.
    """
    entries = read_steps(metrics)
    if not entries or outcome.steps >= entries[-1]["step"]:
        return outcome
    return replace(outcome, steps=entries[-1]["step"], last_loss=entries[-1].get("loss"))
