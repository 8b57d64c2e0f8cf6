"""Moves the pin: gitlink, lock and ledger together, or nothing at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.errors import Problem, UserError
from launch.files import load_json, write_exact
from launch.upstream.pin.checkout import SUBMODULE
from launch.upstream.pin.commit import ancestors, find_commit, last_change, run_git
from launch.upstream.pin.compare import FlagChange
from launch.upstream.pin.impact import Impact
from launch.upstream.pin.ledger import HINTS_FILE, LEDGER_FILE
from launch.upstream.pin.relock import build_lock, json_text
from launch.upstream.trainers import OPEN_INSTRUCT


def plan_move(checkout: Path, impact: Impact, python: str) -> dict[Path, str]:
    """Build the files ({path: text}) of the pin at the commit of `impact`; nothing is written yet.

    Raises UserError: why a trainer has not been captured there; rename_unconfirmed;
    library_unreadable (a key that is kept by hand has left DeepSpeed's source).
    """
    problems = [trainer.problem for trainer in impact.trainers if trainer.problem]
    proposed = {
        (c.flag, c.renamed_to): t.trainer for t in impact.trainers for c in t.changes if c.proposed
    }
    for (old, new), trainer in proposed.items():
        message = f"'{old}' of {trainer} may be '{new}' now: their names or help texts are alike"
        cure = f"confirm it with --rename {old}={new}, or, if it was removed, write --rename {old}="
        problems.append(Problem("rename_unconfirmed", message, cure=cure))
    if problems:
        raise UserError(problems)
    schemas = {trainer.trainer: trainer.schema for trainer in impact.trainers if trainer.schema}
    changes = {t.trainer: t.changes for t in impact.trainers if t.trainer in OPEN_INSTRUCT}
    ledger = extend_ledger(
        load_json(LEDGER_FILE), checkout, impact.commit, changes, load_json(HINTS_FILE)
    )
    return {**build_lock(impact.commit, schemas, python), LEDGER_FILE: json_text(ledger) + "\n"}


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
    notes = {("renamed", hint["old"], hint["new"]): hint.get("note") for hint in hints["renames"]}
    notes |= {("removed", flag, None): note for flag, note in hints["removed"].items()}
    found = [
        (trainer, change) for trainer, its_changes in changes.items() for change in its_changes
    ]
    for trainer, change in found if content["tip"] in kept else ():
        made_by = commit
        if change.kind in ("added", "removed", "renamed"):
            made_by = (
                last_change(repo, change.renamed_to or change.flag, content["tip"], commit.id)
                or commit
            )
        made = {"commit": made_by.id, "date": made_by.date, "pull_request": made_by.pull_request}
        entry = {**change.as_json(), **made, "trainers": []}
        if note := notes.get((change.kind, change.flag, change.renamed_to)):
            entry["note"] = note
        shared = entries.setdefault(_key(entry), entry)
        shared["trainers"] = [*shared["trainers"], trainer]
    return {**content, "tip": commit.id, "entries": list(entries.values())}


def _key(entry: Mapping[str, Any]) -> str:
    """Identify a change, which several trainers may share."""
    return json.dumps({**entry, "trainers": None, "note": None}, sort_keys=True)


def apply_move(files: Mapping[Path, str], commit: str, project: Path, checkout: Path) -> list[str]:
    """Write the files and move the gitlink; return a description of each step. If one fails,
    everything is restored.

    Raises UserError: git_failed, git_missing.
    """
    before = {path: path.read_bytes() for path in files}
    steps = [f"wrote {len(files)} files of the lock and the ledger"]
    try:
        for path, text in files.items():
            write_exact(path, text)
        if checkout.resolve() == (project / SUBMODULE).resolve():
            run_git(checkout, "checkout", "--quiet", "--detach", commit)
            steps.append(f"checked out {commit[:9]} in {SUBMODULE}")
        run_git(project, "update-index", "--add", "--cacheinfo", f"160000,{commit},{SUBMODULE}")
    except BaseException:
        for path, content in before.items():
            path.write_bytes(content)
        raise
    return [*steps, f"staged the gitlink {SUBMODULE} at {commit[:9]}"]


def read_gitlink(project: Path) -> str | None:
    """Read the submodule's commit from the project's git index; None without such an index."""
    try:
        mode, _, rest = run_git(project, "ls-files", "--stage", "--", SUBMODULE).partition(" ")
    except UserError:
        return None
    return rest.split()[0] if mode == "160000" else None
