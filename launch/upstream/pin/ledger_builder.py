"""Builds the rename ledger from open-instruct's history: every flag change of every trainer, with its commit.

For `python -m launch.upstream.pin.relock` and `launch upstream bump`; no other command imports it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.errors import UserError
from launch.external import run_command
from launch.upstream.pin.compare import FlagChange, compare_schemas
from launch.upstream.reader.schema_reader import SchemaReader
from launch.upstream.reader.tree import GitTree, Tree
from launch.upstream.schema import Schema
from launch.upstream.trainers import OPEN_INSTRUCT

_PULL_REQUEST = re.compile(r"\(#(\d+)\)")


@dataclass(frozen=True)
class Commit:
    """A commit of upstream's main branch."""

    id: str
    date: str  # YYYY-MM-DD
    subject: str

    @property
    def pull_request(self) -> int | None:
        """The last `(#N)` of the subject."""
        numbers = _PULL_REQUEST.findall(self.subject)
        return int(numbers[-1]) if numbers else None


@dataclass(frozen=True)
class TrainerCommit:
    """The flag changes of one trainer by one commit."""

    trainer: str
    commit: Commit
    changes: tuple[FlagChange, ...]
    adds_script: bool = False


def build_ledger(
    repo: Path,
    base: str,
    tip: str,
    hints: Mapping[str, Any],
    *,
    packages: Tree | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Build the ledger of `base`..`tip` as JSON. Raises ValueError for a hint that history doesn't confirm."""
    content = _read_range(repo, base, tip, hints, packages=packages, report=report)
    unused = _add_notes(content["entries"], hints)
    if unused:
        raise ValueError(f"no commit {unused[0]}: the hint is wrong")
    return content


def move_ledger(
    content: Mapping[str, Any], repo: Path, tip: str, hints: Mapping[str, Any], packages: Tree | None = None
) -> dict[str, Any]:
    """Return the ledger up to another tip: the shared history is kept, and only the commits after it are read."""
    shared = _run_git(repo, "merge-base", content["tip"], tip).strip()
    kept_ids = set(_run_git(repo, "rev-list", "--first-parent", f"{content['base']}..{shared}").split())
    later = _read_range(repo, shared, tip, hints, packages=packages, report=lambda _: None)
    _add_notes(later["entries"], hints)
    return {
        **later,
        "base": content["base"],
        "commits": {id: c for id, c in content["commits"].items() if id in kept_ids} | later["commits"],
        "born": {name: id for name, id in content["born"].items() if id in kept_ids} | later["born"],
        "entries": [entry for entry in content["entries"] if entry["commit"] in kept_ids] + later["entries"],
    }


def _read_range(
    repo: Path, base: str, tip: str, hints: Mapping[str, Any], *, packages: Tree | None, report: Callable[[str], None]
) -> dict[str, Any]:
    """Return the ledger of `base`..`tip` as JSON, without the hints' notes."""
    entries: dict[str, dict[str, Any]] = {}
    commits: dict[str, Any] = {}
    born: dict[str, str] = {}
    known_renames = {hint["old"]: hint["new"] for hint in hints["renames"]}
    for found in walk_history(repo, base, tip, known_renames, packages=packages, report=report):
        commit = found.commit
        commits[commit.id] = {"date": commit.date, "pull_request": commit.pull_request, "subject": commit.subject}
        if found.adds_script:
            born[found.trainer] = commit.id
        for change in found.changes:
            values = {"renamed_to": change.renamed_to, "old": change.old, "new": change.new}
            entry = {"kind": change.kind, "flag": change.flag}
            entry |= {name: value for name, value in values.items() if value is not None}
            entry["commit"] = commit.id
            shared = entries.setdefault(json.dumps(entry, sort_keys=True), {**entry, "trainers": []})
            shared["trainers"].append(found.trainer)
    return {
        "schema_version": 1,
        "base": _run_git(repo, "rev-parse", f"{base}^{{commit}}").strip(),
        "tip": _run_git(repo, "rev-parse", f"{tip}^{{commit}}").strip(),
        "commits": commits,
        "born": born,
        "entries": list(entries.values()),
    }


def walk_history(
    repo: Path,
    base: str,
    tip: str,
    known_renames: Mapping[str, str],
    *,
    packages: Tree | None,
    report: Callable[[str], None],
) -> Iterator[TrainerCommit]:
    """Yield each trainer's schema changes at each first-parent commit of `base`..`tip`, oldest first.

    A commit at which a trainer can't be read is reported and skipped: its changes appear at the next readable one.
    """
    current: dict[str, Schema] = {}
    oldest: str | None = None
    for commit in _list_commits(repo, base, tip):
        oldest = oldest or commit.id
        blobs = _list_blobs(repo, commit.id)
        with GitTree(repo, commit.id) as tree:
            reader = SchemaReader(tree, packages)
            for trainer, entry in OPEN_INSTRUCT.items():
                old = current.get(trainer)
                if entry not in blobs:
                    current.pop(trainer, None)
                elif old is None or any(blobs.get(path) != blob for path, blob in old.files.items()):
                    try:
                        new = reader.read(entry)
                    except UserError as error:
                        report(f"{commit.date} {commit.id[:9]} {trainer}: {error}")
                        continue
                    changes = tuple(compare_schemas(old, new, known_renames)) if old else ()
                    adds_script = old is None and commit.id != oldest
                    current[trainer] = new
                    if changes or adds_script:
                        report(f"{commit.date} {commit.id[:9]} {trainer}: {len(changes)} changes")
                        yield TrainerCommit(trainer, commit, changes, adds_script)


def _list_commits(repo: Path, base: str, tip: str) -> Iterator[Commit]:
    """Yield `base`, then every first-parent commit after it that changes Python source of the package."""
    ranges = (["-1", base], ["--reverse", f"{base}..{tip}", "--", "open_instruct/*.py"])
    for arguments in ranges:
        for line in _run_git(repo, "log", "--first-parent", "--format=%H%x00%cs%x00%s", *arguments).splitlines():
            yield Commit(*line.split("\0"))


def _list_blobs(repo: Path, commit: str) -> dict[str, str]:
    lines = _run_git(repo, "ls-tree", "-r", commit, "open_instruct/").splitlines()
    return {path: meta.split()[2] for meta, path in (line.split("\t", 1) for line in lines)}


def _run_git(repo: Path, *arguments: str) -> str:
    command = ["git", "-C", str(repo), *arguments]
    return run_command(command, check=True).stdout


def _add_notes(entries: Sequence[dict[str, Any]], hints: Mapping[str, Any]) -> list[str]:
    """Add the hints' notes to their entries; return a description of each hint without an entry."""
    unused = []
    for hint in hints["renames"]:
        rename = ("renamed", hint["old"], hint["new"])
        matching = [entry for entry in entries if (entry["kind"], entry["flag"], entry.get("renamed_to")) == rename]
        if not matching:
            unused.append(f"renames {hint['old']} to {hint['new']}")
        for entry in matching:
            entry.update({"note": hint["note"]} if "note" in hint else {})
    for flag, note in hints["removed"].items():
        matching = [entry for entry in entries if (entry["kind"], entry["flag"]) == ("removed", flag)]
        if not matching:
            unused.append(f"removes {flag}")
        for entry in matching:
            entry["note"] = note
    return unused
