"""Explains unknown flags from upstream's renames and removals, each with its pull request.

The ledger (`data/ledger.json`) lists the changes of upstream's flags; `python -m maintain bump` extends
it. Its entries also explain names that differ between trainers at one commit: dpo_tune_cache has
renamed `dataset_mixer_list` to `mixer_list`, and finetune still has the old name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import Any

from launch.files import load_json
from launch.upstream.pin.lock import DATA, locked_schema
from launch.upstream.trainers import ENTRIES, OPEN_INSTRUCT, trainer_name
from launch.worker.json_codec import without_none

LEDGER_FILE = DATA / "ledger.json"
HINTS_FILE = DATA / "hints.json"


@dataclass(frozen=True)
class LedgerEntry:
    """One change of one flag by one commit."""

    kind: str  # renamed, removed, added, type, default, choices or required
    flag: str  # the old name (for `added` the new one)
    trainers: Sequence[str]  # the trainers whose flag it is
    commit: str
    date: str  # YYYY-MM-DD
    pull_request: int | None
    renamed_to: str | None = None
    # the default, choices, type or requirement before, where `kind` is one of those
    old: Any = None
    new: Any = None
    note: str | None = None
    # for a removed flag: the override of launch that does the same, by the flag's value
    instead: Mapping[str, str] | None = None

    @property
    def change(self) -> str:
        """`#1567 (2026-03-30)`, with the commit instead where there was no pull request."""
        source = f"#{self.pull_request}" if self.pull_request else self.commit[:9]
        return f"{source} ({self.date})"

    def json_fields(self) -> dict[str, Any]:
        """Return what is set, without the trainers: the JSON lists the changes of one of them."""
        fields = without_none(vars(self))
        del fields["trainers"]
        return fields


@dataclass(frozen=True)
class Ledger:
    """The flag changes of every trainer over a range of upstream's history."""

    tip: str  # commit
    entries: Sequence[LedgerEntry]  # oldest first
    # groups of names that different trainers use for the same thing
    synonyms: Sequence[Sequence[str]]

    def of(self, trainer: str) -> list[LedgerEntry]:
        """Return the changes of a trainer's flags, oldest first."""
        return [entry for entry in self.entries if trainer in entry.trainers]


@dataclass(frozen=True)
class Explanation:
    """Why a trainer doesn't have a flag."""

    message: str  # a clause, which continues a Finding's message
    use: str | None = None  # the name to use instead
    # the value of the new name by that of the old one, where they differ; "" is a flag without one
    new_values: Mapping[str, str] = field(default_factory=dict)
    removed: bool = False
    # the override of launch that does the same, by the flag's value
    instead: Mapping[str, str] = field(default_factory=dict)
    write: str | None = None  # the flags that do the same, with {value} for its value
    otherwise: str | None = None  # what decides now, where no flag does the same

    @property
    def changes_training(self) -> bool:
        """Whether leaving the flag out trains something else."""
        return bool(self.write or self.otherwise or self.instead)

    @property
    def cure(self) -> str | None:
        """The name to write instead, or to delete the flag; None if neither applies."""
        if self.use:
            return f"write '{self.use}'"
        if self.changes_training:
            return self.replacement("VALUE")
        return "delete it" if self.removed else None

    def renamed(self, value: str) -> str | None:
        """Return the flag to write instead, with its value where that has another form."""
        given = "" if value.startswith("-") else value.lower()
        new_value = self.new_values.get(given)
        return f"{self.use} {new_value}" if new_value else self.use

    def replacement(self, value: str) -> str | None:
        """Return what to do in place of a removed flag whose leaving out changes the training."""
        if self.write:
            return _write(self.write, value)
        if self.otherwise:
            return self.otherwise
        for old, override in self.instead.items():
            return f"for '{old}', {override} of launch does it; any other value can be left out"
        return None


@cache
def load_ledger() -> Ledger:
    """Return the committed ledger (read once per process)."""
    content = load_json(LEDGER_FILE)
    entries = [LedgerEntry(**entry) for entry in content["entries"]]
    return Ledger(content["tip"], entries, load_json(HINTS_FILE)["same"])


def explain_unknown_flag(
    trainer: str, flag: str, known_flags: Collection[str]
) -> Explanation | None:
    """Explain why a trainer whose schema has only `known_flags` lacks `flag`; None without an
    explanation.

    Only names in `known_flags` are suggested, so the answer fits whatever commit the schema was
    read from.
    """
    name = trainer_name(trainer)
    if name is None or flag in known_flags:
        return None
    explanations = chain(
        _explain_by_own_history(load_ledger().of(name), flag, known_flags),
        _explain_by_others(name, flag, known_flags),
    )
    explanation = next(explanations, None)
    if explanation is None or explanation.use is None:
        return explanation
    return replace(explanation, new_values=_new_values().get(flag, {}))


def _explain_by_own_history(
    entries: Sequence[LedgerEntry], flag: str, known_flags: Collection[str]
) -> Iterator[Explanation]:
    """Explain by the trainer's own entries: renamed or removed since, or, with an older checkout,
    not added yet.
    """
    current_name = flag
    changes = []
    for entry in entries:
        if entry.flag == current_name and entry.kind in ("renamed", "removed"):
            changes.append(entry)
            current_name = entry.renamed_to or current_name
    if changes:
        last_change = changes[-1]
        past = f"upstream in {last_change.change}"
        notes = "; ".join(entry.note for entry in changes if entry.note)
        if notes:
            past += f": {notes}"
        if current_name in known_flags:
            yield Explanation(f"'{flag}' was renamed to '{current_name}' {past}", current_name)
        elif last_change.kind == "removed":
            message = f"'{flag}' was removed {past}"
            instead = last_change.instead or {}
            yield _with_replacement(
                Explanation(message, removed=True, instead=instead), flag, known_flags
            )
    earlier_name = flag
    added_by = None
    for entry in reversed(entries):
        if entry.renamed_to == earlier_name:
            added_by = entry
            earlier_name = entry.flag
            if earlier_name in known_flags:
                message = f"'{flag}' is named '{earlier_name}' before {entry.change}"
                yield Explanation(message, earlier_name)
        elif entry.kind == "added" and entry.flag == earlier_name:
            added_by = entry
    if added_by:
        yield Explanation(f"'{flag}' was added upstream in {added_by.change}; this commit is older")


def _explain_by_others(name: str, flag: str, known_flags: Collection[str]) -> Iterator[Explanation]:
    """Explain by the other trainers: by their renames from or to this flag, by their flags at the
    pin and this trainer's synonyms of them, and by their removals.

    For example, dpo began with the new names of dpo_tune_cache.
    """
    history = [entry for entry in reversed(load_ledger().entries) if name not in entry.trainers]
    for entry in history:
        use = entry.renamed_to
        if entry.flag == flag and use in known_flags:
            note = f" ({entry.note})" if entry.note else ""
            earlier_use = f"{_listed(entry.trainers)} used '{flag}' before {entry.change}"
            yield Explanation(f"{earlier_use}; {name} uses '{use}'{note}", use)
        if use == flag and entry.flag in known_flags:
            message = f"{_listed(entry.trainers, 'use')} '{flag}'; {name} uses '{entry.flag}'"
            yield Explanation(message, entry.flag)
    owners = [other for other in ENTRIES if other != name and flag in locked_schema(other).fields]
    for group in load_ledger().synonyms:
        if flag not in group:
            continue
        for synonym in group:
            if synonym not in known_flags:
                continue
            message = f"{name} uses '{synonym}' instead of '{flag}'"
            if owners:
                message = f"{_listed(owners, 'use')} '{flag}'; {name} uses '{synonym}'"
            yield Explanation(message, synonym)
    if owners:
        yield Explanation(f"'{flag}' is a flag of {_listed(owners)}, not of {name}")
    for entry in history:
        if (entry.kind, entry.flag) == ("removed", flag):
            note = f": {entry.note}" if entry.note else ""
            removed = f"it was removed from {_listed(entry.trainers)} in {entry.change}{note}"
            if name not in OPEN_INSTRUCT:  # whose history is not in the ledger
                was_there = f"{_listed(entry.trainers)} had it before {entry.change}{note}"
                instead = (
                    f"`launch flags {name}` lists its own" if flag in _replacements() else None
                )
                yield Explanation(was_there, removed=True, otherwise=instead)
                continue
            never = Explanation(f"{name} never had '{flag}'; {removed}", removed=True)
            yield _with_replacement(never, flag, known_flags)


def _with_replacement(
    explanation: Explanation, flag: str, known_flags: Collection[str]
) -> Explanation:
    """Return the explanation with what does the same as a removed flag, by flags of the trainer."""
    line = _replacing_line(flag, known_flags)
    if line is not None:
        return replace(explanation, write=line)
    return replace(explanation, otherwise=_replacements().get(flag, {}).get("otherwise"))


def replace_unsettable(flag: str, value: str, known_flags: Collection[str]) -> str | None:
    """Return what to write in place of a flag that no command line can set, such as a map of data
    sets; None if no other flag does the same.
    """
    line = _replacing_line(flag, known_flags)
    return None if line is None else _write(line, value)


def _replacing_line(flag: str, known_flags: Collection[str]) -> str | None:
    """Return the flags that do the same as this one, all of which are known; None without them."""
    lines: Sequence[str] = _replacements().get(flag, {}).get("write", ())
    for line in lines:
        if all(name in known_flags for name in re.findall(r"--(\w+)", line)):
            return line
    return None


def _write(line: str, value: str) -> str:
    """Return the cure that writes a line of flags, with `{value}`, or `{pairs}` of a map, inserted."""
    if "{pairs}" in line:
        return f"write {line.replace('{pairs}', _as_pairs(value))}"
    return f"write {line.replace('{value}', value or 'VALUE')}"


def _as_pairs(text: str) -> str:
    """Return a map in JSON as a list: `a 1.0 b 0.5`; names of its parts for any other text."""
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict) or not content:
        return "NAME SHARE"
    return " ".join(f"{name} {share}" for name, share in content.items())


@cache
def _replacements() -> Mapping[str, Mapping[str, Any]]:
    """Return the removed flags whose leaving out changes the training (read once per process)."""
    replacements: Mapping[str, Mapping[str, Any]] = load_json(HINTS_FILE)["changes_training"]
    return replacements


@cache
def _new_values() -> Mapping[str, Mapping[str, str]]:
    """Return the renamed flags whose values have another form now (read once per process)."""
    new_values: Mapping[str, Mapping[str, str]] = load_json(HINTS_FILE)["new_values"]
    return new_values


def _listed(names: Sequence[str], verb: str = "") -> str:
    """Join names to `a, b and c`, followed by the verb, which is in the singular after one name."""
    *first, last = names if len(names) <= 3 else (*names[:2], "others")
    listed = last
    if first:
        listed = f"{', '.join(first)} and {last}"
    elif verb:
        verb += "s"
    return f"{listed} {verb}" if verb else listed
