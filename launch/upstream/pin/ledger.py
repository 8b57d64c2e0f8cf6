"""Explains unknown flags from upstream's renames and removals, each with its pull request.

The data (`data/ledger.json`) is built from upstream's history by `ledger_builder.py`. Names that differ between
trainers at one commit follow from the same entries: where dpo_tune_cache renamed `dataset_mixer_list` to `mixer_list`,
finetune still has the old name.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

from launch.files import load_json
from launch.upstream.pin.lock import DATA, locked_schema
from launch.upstream.trainers import ENTRIES, trainer_name

LEDGER_FILE = DATA / "ledger.json"
HINTS_FILE = DATA / "hints.json"


@dataclass(frozen=True)
class LedgerEntry:
    """One change of one flag by one commit."""

    kind: str  # renamed, removed, added, type, default, choices or required
    flag: str  # the old name (for `added` the new one)
    trainers: tuple[str, ...]  # that it concerns
    commit: str
    date: str  # YYYY-MM-DD
    pull_request: int | None
    renamed_to: str | None = None
    old: Any = None  # the default, choices, type or requirement before, where `kind` is one of those
    new: Any = None
    note: str | None = None

    @property
    def change(self) -> str:
        """`#1567 (2026-03-30)`, with the commit instead where there was no pull request."""
        return f"{f'#{self.pull_request}' if self.pull_request else self.commit[:9]} ({self.date})"

    def as_json(self) -> dict[str, Any]:
        content = {"kind": self.kind, "flag": self.flag, "commit": self.commit, "date": self.date}
        optional = ("pull_request", "renamed_to", "old", "new", "note")
        return content | {name: getattr(self, name) for name in optional if getattr(self, name) is not None}


@dataclass(frozen=True)
class Ledger:
    """The flag changes of every trainer over a range of upstream's history."""

    base: str  # commit
    tip: str  # commit
    entries: tuple[LedgerEntry, ...]  # oldest first
    synonyms: tuple[tuple[str, ...], ...]  # groups of names that different trainers use for the same thing


@dataclass(frozen=True)
class Explanation:
    """Why a trainer doesn't have a flag."""

    message: str  # a clause, which continues a Problem's message
    use: str | None = None  # the name to use instead
    removed: bool = False

    @property
    def cure(self) -> str | None:
        """The name to write instead, or to delete the flag; None if neither applies."""
        if self.use:
            return f"write '{self.use}'"
        return "delete it" if self.removed else None


@cache
def load_ledger() -> Ledger:
    """Return the committed ledger (read once per process)."""
    content, hints = load_json(LEDGER_FILE), load_json(HINTS_FILE)
    entries = []
    for entry in content["entries"]:
        commit, trainers = content["commits"][entry["commit"]], tuple(entry["trainers"])
        named = {**entry, "trainers": trainers, "date": commit["date"], "pull_request": commit["pull_request"]}
        entries.append(LedgerEntry(**named))
    return Ledger(content["base"], content["tip"], tuple(entries), tuple(tuple(group) for group in hints["same"]))


def explain_unknown_flag(trainer: str, flag: str, known_flags: Collection[str]) -> Explanation | None:
    """Explain why a trainer whose schema has only `known_flags` lacks `flag`; None without an explanation.

    Only names in `known_flags` are suggested, so the answer fits whatever commit the schema was read from.
    """
    name = trainer_name(trainer)
    if name is None or flag in known_flags:
        return None
    return (
        _explain_by_own_history(name, flag, known_flags)
        or _explain_by_others_history(name, flag, known_flags)
        or _explain_by_others_names(name, flag, known_flags)
    )


def _explain_by_own_history(name: str, flag: str, known_flags: Collection[str]) -> Explanation | None:
    """Explain by the trainer's own history: renamed, removed, or (with an older checkout) not added yet."""
    seen = {flag}
    current, changes, notes = flag, [], []
    for entry in load_ledger().entries:
        if name not in entry.trainers or entry.flag != current or entry.kind not in ("renamed", "removed"):
            continue
        changes.append(entry)
        notes += [entry.note] if entry.note else []
        if entry.kind == "renamed" and entry.renamed_to not in seen:
            current = str(entry.renamed_to)
            seen.add(current)
    note = f": {'; '.join(notes)}" if notes else ""
    if changes and changes[-1].kind == "removed" and current not in known_flags:
        return Explanation(f"'{flag}' was removed upstream in {changes[-1].change}{note}", removed=True)
    if changes and current in known_flags:
        return Explanation(f"'{flag}' was renamed to '{current}' upstream in {changes[-1].change}{note}", current)
    return _explain_by_later_history(name, flag, known_flags)


def _explain_by_later_history(name: str, flag: str, known_flags: Collection[str]) -> Explanation | None:
    """Explain a flag that an older checkout has under its old name, or lacks."""
    earlier, added_by = flag, None
    for entry in reversed(load_ledger().entries):
        if name not in entry.trainers:
            continue
        if entry.kind == "renamed" and entry.renamed_to == earlier:
            added_by, earlier = entry, entry.flag
            if earlier in known_flags:
                return Explanation(f"'{flag}' is named '{earlier}' before {entry.change}", earlier)
        elif entry.kind == "added" and entry.flag == earlier:
            added_by = entry
    if added_by is None:
        return None
    return Explanation(f"'{flag}' was added upstream in {added_by.change}; this commit is older")


def _explain_by_others_history(name: str, flag: str, known_flags: Collection[str]) -> Explanation | None:
    """Explain by another trainer's rename from or to this flag (dpo began with dpo_tune_cache's new names)."""
    for entry in reversed(load_ledger().entries):
        if entry.kind != "renamed" or name in entry.trainers:
            continue
        if entry.flag == flag and entry.renamed_to in known_flags:
            use = str(entry.renamed_to)
            note = f" ({entry.note})" if entry.note else ""
            message = f"{_listed(entry.trainers)} used '{flag}' before {entry.change}; {name} uses '{use}'{note}"
            return Explanation(message, use)
        if entry.renamed_to == flag and entry.flag in known_flags:
            message = f"{_listed(entry.trainers, 'uses', 'use')} '{flag}'; {name} uses '{entry.flag}'"
            return Explanation(message, entry.flag)
    return None


def _explain_by_others_names(name: str, flag: str, known_flags: Collection[str]) -> Explanation | None:
    """Explain a flag that other trainers have at the pin, with this one's synonym where there is one."""
    owners = [other for other in ENTRIES if other != name and flag in locked_schema(other).fields]
    synonyms = [synonym for group in load_ledger().synonyms if flag in group for synonym in group]
    use = next((synonym for synonym in synonyms if synonym in known_flags), None)
    if use and owners:
        return Explanation(f"{_listed(owners, 'uses', 'use')} '{flag}'; {name} uses '{use}'", use)
    if use:
        return Explanation(f"{name} uses '{use}' instead of '{flag}'", use)
    removed = [e for e in load_ledger().entries if (e.kind, e.flag) == ("removed", flag) and name not in e.trainers]
    if removed and not owners:
        note = f": {removed[-1].note}" if removed[-1].note else ""
        others = _listed(removed[-1].trainers)
        message = f"{name} never had '{flag}'; it was removed from {others} in {removed[-1].change}{note}"
        return Explanation(message, removed=True)
    return Explanation(f"'{flag}' is a flag of {_listed(owners)}, not of {name}") if owners else None


def _listed(names: Collection[str], singular: str = "", plural: str = "") -> str:
    """Join names to `a, b and c`, followed by the verb in singular or plural."""
    ordered = list(names)
    if len(ordered) == 1:
        return f"{ordered[0]} {singular}".rstrip()
    shown, last = (ordered[:2], "others") if len(ordered) > 3 else (ordered[:-1], ordered[-1])
    return f"{', '.join(shown)} and {last} {plural}".rstrip()
