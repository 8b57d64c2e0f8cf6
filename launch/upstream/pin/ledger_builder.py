"""Extends the rename ledger to another pin: the changes between the locked schemas and those captured there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.upstream.pin.commit import Commit, ancestors, find_commit, last_change
from launch.upstream.pin.compare import FlagChange


def extend_ledger(
    content: Mapping[str, Any],
    repo: Path,
    tip: str,
    changes: Mapping[str, Sequence[FlagChange]],
    hints: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the ledger's JSON with another tip.

    changes: {trainer: its changes from the lock}. Entries of commits that are not the tip's ancestors are left out. A
    change belongs to the last commit between that added or removed the flag's name, else to the tip.
    """
    commit = find_commit(repo, tip)
    kept = ancestors(repo, commit.id)
    entries = {_key(entry): entry for entry in content["entries"] if entry["commit"] in kept}
    commits = {id: record for id, record in content["commits"].items() if id in kept}
    if content["tip"] in kept:
        for trainer, found in changes.items():
            for change in found:
                made_by = _find_change(repo, change, content["tip"], commit)
                values = {"renamed_to": change.renamed_to, "old": change.old, "new": change.new}
                entry: dict[str, Any] = {"kind": change.kind, "flag": change.flag}
                entry |= {name: value for name, value in values.items() if value is not None}
                entry |= {"commit": made_by.id, "trainers": []}
                entry |= _note(change, hints)
                shared = entries.setdefault(_key(entry), entry)
                shared["trainers"] = [*shared["trainers"], trainer]
                record = {"date": made_by.date, "pull_request": made_by.pull_request, "subject": made_by.subject}
                commits.setdefault(made_by.id, record)
    born = {name: id for name, id in content["born"].items() if id in kept}
    moved = {"tip": commit.id, "commits": commits, "born": born, "entries": list(entries.values())}
    return {**content, **moved}


def _key(entry: Mapping[str, Any]) -> str:
    return json.dumps(
        {name: value for name, value in entry.items() if name not in ("trainers", "note")}, sort_keys=True
    )


def _find_change(repo: Path, change: FlagChange, base: str, tip: Commit) -> Commit:
    names_changed = change.kind in ("added", "removed", "renamed")
    found = last_change(repo, change.renamed_to or change.flag, base, tip.id) if names_changed else None
    return found or tip


def _note(change: FlagChange, hints: Mapping[str, Any]) -> dict[str, str]:
    """Return what the hints say about a rename or removal."""
    if change.kind == "removed" and change.flag in hints["removed"]:
        return {"note": hints["removed"][change.flag]}
    renames = [hint for hint in hints["renames"] if (hint["old"], hint["new"]) == (change.flag, change.renamed_to)]
    notes = [hint["note"] for hint in renames if "note" in hint]
    return {"note": notes[0]} if notes else {}
