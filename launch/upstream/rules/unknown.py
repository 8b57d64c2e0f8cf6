"""Values of which nothing is known but what they depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Kinds = frozenset[
    str
]  # what a value depends on: unknown values of the `user`; the `machine`, or code that is not followed
CERTAIN: Kinds = frozenset()
USER: Kinds = frozenset({"user"})
MACHINE: Kinds = frozenset({"machine"})


@dataclass(frozen=True)
class Unknown:
    """A value that is not known."""

    kinds: Kinds = MACHINE
    is_set: bool = False  # it is not None
    is_number: bool = False
    truth: bool | None = None  # whether it counts as true, where that is known


def unknown_kinds(value: Any) -> Kinds:
    """Return what the unknown parts of a value depend on; CERTAIN if all of it is known."""
    if isinstance(value, Unknown):
        return value.kinds
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return CERTAIN.union(*map(unknown_kinds, parts)) if isinstance(parts, list | tuple) else CERTAIN


def truth_of(value: Any) -> bool | None:
    """Return whether a value counts as true; None if that is not known."""
    return value.truth if isinstance(value, Unknown) else bool(value)


def merged(values: Sequence[Any], kinds: Kinds) -> Any:
    """Return the value that is one of these; which of them depends on `kinds`."""
    first = values[0]
    if all(value is first or (type(value) is type(first) and repr(value) == repr(first)) for value in values):
        return first
    is_set = all(value.is_set if isinstance(value, Unknown) else value is not None for value in values)
    return Unknown(kinds.union(*map(unknown_kinds, values)) or MACHINE, is_set)


def merged_maps(maps: Sequence[Mapping[str, Any]], kinds: Kinds) -> dict[str, Any]:
    """Return the map that is one of these; a name that one of them lacks is unknown."""
    names = dict.fromkeys(name for values in maps for name in values)
    return {name: merged([values.get(name, Unknown()) for values in maps], kinds) for name in names}
