"""Extends the rename ledger by what changed between two captures; launch only reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.worker.json_codec import to_json
from maintain.commit import Commit, ancestors, find_commit, last_change
from maintain.compare import FlagChange


def extend_ledger(
    content: Mapping[str, Any],
    repo: Path,
    tip: str,
    changes: Mapping[str, Sequence[FlagChange]],
    hints: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the ledger's JSON with another tip.

    changes: {trainer: its changes from the lock}. Entries of commits that are not the tip's
    ancestors are left out. A change belongs to the last commit between that added or removed the
    flag's name, else to the tip.
    """
    commit = find_commit(repo, tip)
    kept = ancestors(repo, commit.id)
    entries = {_key(entry): entry for entry in content["entries"] if entry["commit"] in kept}
    if content["tip"] in kept:
        notes = _notes(hints)
        for trainer, change in _each_change(changes):
            made_by = _find_commit_of(repo, change, content["tip"], commit)
            entry = _new_entry(change, made_by, notes)
            shared = entries.setdefault(_key(entry), entry)
            shared["trainers"] = [*shared["trainers"], trainer]
    return {**content, "tip": commit.id, "entries": list(entries.values())}


def _each_change(
    changes: Mapping[str, Sequence[FlagChange]],
) -> Iterator[tuple[str, FlagChange]]:
    for trainer, its_changes in changes.items():
        for change in its_changes:
            yield trainer, change


def _notes(hints: Mapping[str, Any]) -> dict[tuple[str, str, str | None], str | None]:
    """Return what a person has noted, by the kind of a change, the flag and its new name."""
    notes: dict[tuple[str, str, str | None], str | None] = {}
    for hint in hints["renames"]:
        notes["renamed", hint["old"], hint["new"]] = hint.get("note")
    for flag, note in hints["removed"].items():
        notes["removed", flag, None] = note
    return notes


def _find_commit_of(repo: Path, change: FlagChange, base: str, tip: Commit) -> Commit:
    """Return the commit after `base` that made the change: the tip where git can't tell."""
    if change.kind not in ("added", "removed", "renamed"):
        return tip
    return last_change(repo, change.renamed_to or change.flag, base, tip.id) or tip


def _new_entry(
    change: FlagChange, made_by: Commit, notes: Mapping[tuple[str, str, str | None], str | None]
) -> dict[str, Any]:
    """Return the entry of a change, which has no trainers yet."""
    entry: dict[str, Any] = {
        **to_json(change),
        "commit": made_by.id,
        "date": made_by.date,
        "pull_request": made_by.pull_request,
        "trainers": [],
    }
    if note := notes.get((change.kind, change.flag, change.renamed_to)):
        entry["note"] = note
    return entry


def _key(entry: Mapping[str, Any]) -> str:
    """Identify a change, which several trainers may share."""
    return json.dumps({**entry, "trainers": None, "note": None}, sort_keys=True)
