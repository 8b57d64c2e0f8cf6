"""Explains unknown flags from upstream's renames and removals, each with its pull request.

The data (`data/ledger.json`) is of upstream's history, which `bump.py` extends. Names that differ between
trainers at one commit follow from the same entries: where dpo_tune_cache renamed `dataset_mixer_list` to `mixer_list`,
finetune still has the old name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
    trainers: Sequence[str]  # that it concerns
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
        return {name: value for name, value in vars(self).items() if name != "trainers" and value is not None}


@dataclass(frozen=True)
class Ledger:
    """The flag changes of every trainer over a range of upstream's history."""

    tip: str  # commit
    entries: tuple[LedgerEntry, ...]  # oldest first
    synonyms: Sequence[Sequence[str]]  # groups of names that different trainers use for the same thing


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
    content = load_json(LEDGER_FILE)
    entries = []
    for entry in content["entries"]:
        commit = content["commits"][entry["commit"]]
        entries.append(LedgerEntry(**entry, date=commit["date"], pull_request=commit["pull_request"]))
    return Ledger(content["tip"], tuple(entries), load_json(HINTS_FILE)["same"])


def explain_unknown_flag(trainer: str, flag: str, known_flags: Collection[str]) -> Explanation | None:
    """Explain why a trainer whose schema has only `known_flags` lacks `flag`; None without an explanation.

    Only names in `known_flags` are suggested, so the answer fits whatever commit the schema was read from.
    """
    name = trainer_name(trainer)
    if name is None or flag in known_flags:
        return None
    own = [entry for entry in load_ledger().entries if name in entry.trainers]
    others = [entry for entry in load_ledger().entries if name not in entry.trainers]
    return (
        _explain_by_history(own, flag, known_flags)
        or _explain_by_later_history(own, flag, known_flags)
        or _explain_by_others_history(name, others, flag, known_flags)
        or _explain_by_others_names(name, others, flag, known_flags)
    )


def _explain_by_history(own: Sequence[LedgerEntry], flag: str, known_flags: Collection[str]) -> Explanation | None:
    """Explain by the trainer's own entries: renamed or removed."""
    current, changes = flag, []
    for entry in own:
        if entry.flag == current and entry.kind in ("renamed", "removed"):
            changes.append(entry)
            current = entry.renamed_to or current
    if not changes:
        return None
    notes = "; ".join(entry.note for entry in changes if entry.note)
    past = f"upstream in {changes[-1].change}{f': {notes}' if notes else ''}"
    if current in known_flags:
        return Explanation(f"'{flag}' was renamed to '{current}' {past}", current)
    return Explanation(f"'{flag}' was removed {past}", removed=True) if changes[-1].kind == "removed" else None


def _explain_by_later_history(
    own: Sequence[LedgerEntry], flag: str, known_flags: Collection[str]
) -> Explanation | None:
    """Explain a flag that an older checkout has under its old name, or lacks."""
    earlier, added_by = flag, None
    for entry in reversed(own):
        if entry.renamed_to == earlier:
            added_by, earlier = entry, entry.flag
            if earlier in known_flags:
                return Explanation(f"'{flag}' is named '{earlier}' before {entry.change}", earlier)
        elif entry.kind == "added" and entry.flag == earlier:
            added_by = entry
    if added_by is None:
        return None
    return Explanation(f"'{flag}' was added upstream in {added_by.change}; this commit is older")


def _explain_by_others_history(
    name: str, others: Sequence[LedgerEntry], flag: str, known_flags: Collection[str]
) -> Explanation | None:
    """Explain by another trainer's rename from or to this flag (dpo began with dpo_tune_cache's new names)."""
    for entry in reversed(others):
        use = entry.renamed_to
        if entry.flag == flag and use in known_flags:
            note = f" ({entry.note})" if entry.note else ""
            message = f"{_listed(entry.trainers)} used '{flag}' before {entry.change}; {name} uses '{use}'{note}"
            return Explanation(message, use)
        if use == flag and entry.flag in known_flags:
            message = f"{_listed(entry.trainers, 'use')} '{flag}'; {name} uses '{entry.flag}'"
            return Explanation(message, entry.flag)
    return None


def _explain_by_others_names(
    name: str, others: Sequence[LedgerEntry], flag: str, known_flags: Collection[str]
) -> Explanation | None:
    """Explain a flag that other trainers have at the pin, with this one's synonym where there is one."""
    owners = [other for other in ENTRIES if other != name and flag in locked_schema(other).fields]
    groups = (group for group in load_ledger().synonyms if flag in group)
    use = next((synonym for group in groups for synonym in group if synonym in known_flags), None)
    if use:
        others_use = f"{_listed(owners, 'use')} '{flag}'; {name} uses '{use}'" if owners else None
        return Explanation(others_use or f"{name} uses '{use}' instead of '{flag}'", use)
    if owners:
        return Explanation(f"'{flag}' is a flag of {_listed(owners)}, not of {name}")
    for entry in reversed(others):
        if (entry.kind, entry.flag) == ("removed", flag):
            removed = f"removed from {_listed(entry.trainers)} in {entry.change}"
            note = f": {entry.note}" if entry.note else ""
            return Explanation(f"{name} never had '{flag}'; it was {removed}{note}", removed=True)
    return None


def _listed(names: Sequence[str], verb: str = "") -> str:
    """Join names to `a, b and c`, followed by the verb, which one name puts in the singular."""
    *first, last = names if len(names) <= 3 else (*names[:2], "others")
    listed = f"{', '.join(first)} and {last}" if first else last
    return f"{listed} {verb}{'' if first else 's'}" if verb else listed
