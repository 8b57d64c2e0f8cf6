"""What a row of the table of recipe keys holds, and which of its entries belongs to a trainer.

The table is launch/config/recipe_keys.py. An entry of a row belongs to the trainers that its
selector names. A selector has one or more words: a trainer's name (`trl_dpo`), its kind in capitals
(`DPO`, as there is a trainer named dpo), its family (`trl`), its launcher (`torchrun`, which starts
the trainers on OLMo-core, or `ray`), or `*` for all. The first entry that names a trainer counts,
so that special ones come first.
"""

# without `from __future__ import annotations`, as schema.py is
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from launch.config.ranges import METADATA as RANGE
from launch.config.ranges import Range

_Default = TypeVar("_Default")  # so that a default is checked against its key's type
_Entry = TypeVar("_Entry")
_METADATA = "recipe_key"  # name of a key's row in the metadata of its field
_ROOT = Path(__file__).parents[2]


class TrainerNames(Protocol):
    """What a selector may name: `TrainerConfig` has it."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def launcher(self) -> str: ...


class Requested(Enum):
    """What the evidence of a key is compared with, and when."""

    always = "the key's value"
    if_set = "the key's value, if it is not the default"
    # by launch/planning/expectations.py, from several keys, the trainer's defaults or the width
    computed = "a value that planning computes"
    elsewhere = "what the worker computes, or the row of another key requests"


@dataclass(frozen=True)
class Proof:
    """What shows in a live trainer that it has the value of a key."""

    evidence: str  # key of the evidence, which the id has as well: refuted_beta
    read: str  # what the worker reads, or compares
    requested: Requested = Requested.if_set


Mapped = str | Mapping[str, Mapping[str, Any]]  # a flag, or flags by the key's value


@dataclass(frozen=True)
class RecipeKey:
    """The row of one key: everything that `launch` knows of it but its type and its default."""

    default: Any
    help: str
    flags: Mapping[str, Mapped]
    unsupported_because: Mapping[str, str]
    fallback: Mapping[str, Any]
    proof: Proof | None
    unproven_because: Mapping[str, str]
    other_names: Mapping[str, str]  # by tools: `trl llama_factory`, or `others`
    place: str  # file:line of the row

    def mapping(self, trainer: TrainerNames) -> Mapped | None:
        """Return what the key is for a trainer; None if the row has no entry for it.

        Where the row only has the reason why the trainer lacks the key, the default is mapped to no
        flags, and no other value is mapped.
        """
        mapped = _find_entry(self.flags, trainer)
        if mapped is None and self.reason(trainer) is not None:
            return {choice_name(self.default): {}}
        return mapped

    def reason(self, trainer: TrainerNames) -> str | None:
        """Return why the trainer lacks the key, or the values that the row does not map."""
        return _find_entry(self.unsupported_because, trainer)

    def names_of(self, tool: str) -> tuple[str, ...]:
        """Return the names that another tool has for the key."""
        names: list[str] = []
        for tools, texts in self.other_names.items():
            if tool in tools.split():
                names += texts.split()
        return tuple(names)

    def unproven(self, trainer: TrainerNames) -> str | None:
        """Return why nothing proves the key in a trainer; None if the row's proof does."""
        return _find_entry(self.unproven_because, trainer)

    def fallback_value(self, trainer: TrainerNames) -> Any:
        """Return what replaces a value of a shipped stage that the trainer lacks.

        Raises LookupError if nothing does.
        """
        selector = _find_selector(self.fallback, trainer)
        if selector is None:
            raise LookupError(trainer.name)
        return self.fallback[selector]


def key(
    default: _Default,
    allowed: Range | None = None,
    *,
    help: str,
    flags: Mapping[str, Mapped] | None = None,
    unsupported_because: Mapping[str, str] | None = None,
    fallback: Mapping[str, Any] | None = None,
    proof: Proof | None = None,
    unproven_because: Mapping[str, str] | None = None,
    other_names: Mapping[str, str] | None = None,
) -> _Default:
    """Return the field of a recipe key: its default, the range of its numbers, and its row."""
    caller = sys._getframe(1)
    file = Path(caller.f_code.co_filename)
    shown = file.relative_to(_ROOT) if file.is_relative_to(_ROOT) else file
    row = RecipeKey(
        default,
        help,
        flags or {},
        unsupported_because or {},
        fallback or {},
        proof,
        unproven_because or {},
        other_names or {},
        f"{shown.as_posix()}:{caller.f_lineno}",
    )
    return field(default=default, metadata={RANGE: allowed, _METADATA: row})


def row_of(metadata: Mapping[str, Any]) -> RecipeKey | None:
    """Return the row in the metadata of a field; None if it is not a recipe key."""
    return metadata.get(_METADATA)


def recipe_rows(cls: Any, prefix: str = "") -> dict[str, RecipeKey]:
    """Return the rows of a node by their keys, those of the nodes in it last."""
    rows: dict[str, RecipeKey] = {}
    nodes: dict[str, RecipeKey] = {}
    for item in fields(cls):
        row = row_of(item.metadata)
        if row is not None:
            rows[f"{prefix}{item.name}"] = row
        else:
            nodes |= recipe_rows(item.default_factory, f"{prefix}{item.name}.")
    return rows | nodes


def choice_name(value: Any) -> str:
    """Return the value of a key as the map `flags` of its row names it: `null`, `true`, `zero2`."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _find_entry(entries: Mapping[str, _Entry], trainer: TrainerNames) -> _Entry | None:
    selector = _find_selector(entries, trainer)
    return None if selector is None else entries[selector]


def _find_selector(entries: Mapping[str, Any], trainer: TrainerNames) -> str | None:
    """Return the first selector that names a trainer."""
    names = {trainer.name, trainer.kind.upper(), trainer.family, trainer.launcher, "*"}
    for selector in entries:
        if not names.isdisjoint(selector.split()):
            return selector
    return None
