"""Shows the comparison of a commit with the lock, as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

from launch.upstream.pin.lock import load_lock
from launch.worker.json_codec import versioned
from launch.worker.moves import path_at_pin
from launch.worker.wording import count_of
from maintain.compare import FlagChange
from maintain.impact import Impact, TrainerImpact

_MOST = 5  # commits of the pin that are named


def impact_json(impact: Impact) -> dict[str, Any]:
    """Return the comparison as JSON.

    `changes` are by trainer. `unreadable` has the reason for each trainer that could not be
    captured. `unknown_help` has the new and removed flags of a trainer whose help can't be read, so
    that one may be a rename of another.
    """
    changes = {}
    unknown_help = {}
    unreadable = {}
    for trainer in impact.trainers:
        if trainer.schema:
            changes[trainer.trainer] = trainer.changes
        if trainer.unknown_help:
            unknown_help[trainer.trainer] = trainer.unknown_help
        if trainer.problem:
            unreadable[trainer.trainer] = trainer.problem
    content = {
        "pin": load_lock().pin,
        "commit": impact.commit,
        "changes": changes,
        "unknown_help": unknown_help,
        "unreadable": unreadable,
        "moves": impact.moves,
        "breaks": impact.breaks,
        "lacks": [{"commit": commit.id, "subject": commit.subject} for commit in impact.lacks],
    }
    return versioned(content)


def describe_impact(impact: Impact) -> list[str]:
    """Describe the comparison in lines: trainers with equal changes together, then what would
    break.
    """
    lines = [f"open-instruct {impact.commit[:9]} compared with the pin {load_lock().pin[:9]}"]
    groups: dict[tuple[str, ...], list[str]] = {}
    for trainer in impact.trainers:
        changes = tuple(_change_lines(trainer))
        groups.setdefault(changes, []).append(trainer.trainer)
    for changes, names in groups.items():
        lines.append("")
        lines.append(f"{', '.join(names)}:{'' if changes else ' no change'}")
        lines += [f"  {change}" for change in changes]
    new_moves = {old: new for old, new in impact.moves.items() if path_at_pin(old) != new}
    if new_moves:
        lines += ["", "moved, with a shim at the old path that is followed:"]
        lines += [f"  {old} -> {new}" for old, new in new_moves.items()]
    if impact.lacks:
        lines += ["", *_describe_lacks(impact)]
    lines.append("")
    if not impact.breaks:
        return [*lines, "nothing in this project would break"]
    count = "1 thing" if len(impact.breaks) == 1 else f"{len(impact.breaks)} things"
    lines.append(f"{count} in this project would break:")
    return [*lines, *(f"  {problem}" for problem in impact.breaks)]


def _describe_lacks(impact: Impact) -> list[str]:
    """Name the commits of the pin that the commit does not contain: a patch for their lines does not
    fit it.
    """
    commits = [f"  {commit.id[:9]} {commit.date} {commit.subject}" for commit in impact.lacks]
    if len(commits) > _MOST:
        commits[_MOST:] = [f"  and {len(commits) - _MOST} more"]
    return [f"it lacks {count_of(len(impact.lacks), 'commit')} of the pin:", *commits]


def _change_lines(trainer: TrainerImpact) -> list[str]:
    """Describe what changes for one trainer, a line for each change."""
    if trainer.problem:
        return [f"! {trainer.problem.message} [{trainer.problem.id}]"]
    lines = [_change_line(change) for change in trainer.changes]
    if trainer.unknown_help:
        flags = ", ".join(trainer.unknown_help)
        lines.append(f"? the help of {flags} can't be read here: one may be a rename of another")
    return lines


def _change_line(change: FlagChange) -> str:
    """Describe one change of one flag."""
    if change.kind == "added":
        return f"+ {change.flag}"
    if change.kind == "removed":
        return f"- {change.flag}"
    if change.kind == "renamed":
        types = f" ({change.old} -> {change.new})" if change.old else ""
        proposed = " (proposed)" if change.proposed else ""
        return f"> {change.flag} -> {change.renamed_to}{types}{proposed}"
    if change.kind == "required":
        return f"~ {change.flag}: {'now required' if change.new else 'no longer required'}"
    return f"~ {change.flag}: {change.kind} {json.dumps(change.old)} -> {json.dumps(change.new)}"
