"""Reads the table of rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from launch.rules.conditions import find_fault
from launch.rules.facts import Place

TABLE_FILE = Path(__file__).with_name("table.yaml")
# PyYAML's loader in C where it has one: its own takes ten times as long
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Names that are properties of a run. Others without a dot are flags.
SETTINGS = (
    *("trainer", "family", "kind", "device", "gpus", "evaluate", "tracking", "cache_only"),
    *("parallel_mode", "parallel_zero", "mode_without_zero"),
)
KNOWN_TO_LINT = ("trainer", "family")  # beside the flags of a command
SEVERITIES = ("error", "warning")
SUBJECT = "flag"  # in a condition: the flag of the row


@dataclass(frozen=True)
class Rule:
    """One row of the table, for one flag if it is about flags. The head of `table.yaml` explains
    each field.
    """

    id: str
    severity: str
    message: str
    flag: str | None = None
    trainers: tuple[str, ...] = ()
    # By name: the conditions on it, {condition: operand}.
    when: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    undoes: str | None = None
    reason: str = ""
    fix: tuple[str, ...] = ()
    at: str | None = None
    only: str | None = None
    in_lint: str | None = None
    allow: bool = False
    upstream: Mapping[str, str] = field(default_factory=dict)
    row: int = 0  # the number of its row: one row has a rule for each of its flags

    def text_for(self, place: Place) -> str:
        """Return the message at a place, with the row's reason in it."""
        is_of_lint = place == Place.lint and self.in_lint is not None
        text = str(self.in_lint) if is_of_lint else self.message
        return text.replace("{reason}", self.reason)

    @property
    def places(self) -> tuple[Place, ...]:
        """Where the row applies: a condition on a name that `lint` does not know leaves `plan`."""
        if self.only is not None:
            return (Place(self.only),)
        is_known = all(is_flag(name) or name in KNOWN_TO_LINT for name in self.when)
        return (Place.plan, Place.lint) if is_known and self.undoes is None else (Place.plan,)

    def is_for(self, trainer: str, family: str) -> bool:
        """Return whether the row is for a trainer."""
        return not self.trainers or trainer in self.trainers or family in self.trainers

    @property
    def needs_flags(self) -> bool:
        """Whether the row can be judged only once all flags of a run are known."""
        return self.flag is not None or any(is_flag(name) for name in self.when)


def is_flag(name: str) -> bool:
    """Return whether a name of the table is a trainer's flag."""
    return "." not in name and name not in SETTINGS


# What a row may have beside its id.
_FIELDS = {each.name for each in dataclass_fields(Rule)} - {"id", "row"}


@cache
def table() -> tuple[Rule, ...]:
    """Return the rows of the table, in its order."""
    return parse_rules(TABLE_FILE.read_text(encoding="utf-8"))


class BadRowError(ValueError):
    """A row of the table that is malformed or contradicts itself."""


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Return the rows of a table. Raises BadRowError for a row with an unknown field or condition,
    with the id of the row and its number among those of the id.
    """
    content = yaml.load(text, Loader=_LOADER)
    rules: list[Rule] = []
    for id, entry in content.items():
        for position, row in enumerate(entry.get("rows", ({},)), start=1):
            row_number = rules[-1].row + 1 if rules else 0
            try:
                rules += _read_row(id, entry, row, row_number)
            except BadRowError as error:
                raise BadRowError(f"{id}, row {position}: {error}") from None
    return tuple(rules)


def _read_row(
    id: str, entry: Mapping[str, Any], row: Mapping[str, Any], number: int
) -> Iterator[Rule]:
    """Yield the rules of a row, one for each of its flags, with what the rows of an id share.

    Raises BadRowError.
    """
    common = {key: value for key, value in entry.items() if key != "rows"}
    fields = {**common, **row}
    flags = fields.pop("flags", None) or [fields.pop("flag", None)]
    conditions = _merge(common.get("when", {}), row.get("when", {}))
    unknown = fields.keys() - _FIELDS
    if unknown:
        raise BadRowError(f"there is no field '{min(unknown)}': {', '.join(sorted(_FIELDS))}")
    for name, needed in conditions.items():
        for condition, operand in needed.items():
            fault = find_fault(condition, operand)
            if fault is not None:
                raise BadRowError(f"when {name}: {fault}")
    fields["severity"] = _severity_of(entry, row, fields)
    fields["fix"] = _as_tuple(fields.get("fix"))
    fields["trainers"] = _as_tuple(fields.get("trainers"))
    for flag in flags:
        when = {str(flag) if name == SUBJECT else name: conditions[name] for name in conditions}
        yield Rule(**{**fields, "id": id, "flag": flag, "when": when, "row": number})


def _severity_of(
    entry: Mapping[str, Any], row: Mapping[str, Any], fields: Mapping[str, Any]
) -> Any:
    """Return the severity of a row; a row of `lint` alone can only warn, and is given none.

    The other rows of its entry may share one. Raises BadRowError.
    """
    if fields.get("only") == Place.lint:
        level_with_only = row if "only" in row else entry
        if "severity" in level_with_only or "severity" in row:
            raise BadRowError("lint only warns: leave severity out beside only: lint")
        return "warning"
    severity = fields.get("severity")
    if severity not in SEVERITIES:
        raise BadRowError(f"severity is {' or '.join(SEVERITIES)}, got {severity}")
    return severity


def _merge(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the conditions of both by name. A plain value is the condition `is`."""
    merged: dict[str, Mapping[str, Any]] = {}
    for conditions in (common, own):
        for name, needed in conditions.items():
            added = needed if isinstance(needed, dict) else {"is": needed}
            merged[name] = {**merged.get(name, {}), **added}
    return merged


def _as_tuple(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
