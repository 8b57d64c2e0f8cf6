"""Values of which nothing is known but where they come from, and the ways through code that depends on them.

Standard library only, as `post_init.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_OPERATORS = "add sub mul truediv floordiv mod pow lt le gt ge eq ne getitem setitem delitem neg abs call enter exit"
_UNKNOWN = "$unknown"


@dataclass
class ExecutionPath:
    """One way through a statement."""

    choices: tuple[bool, ...] = ()  # the truth of the unknown conditions, in order; later ones are false
    made: list[tuple[bool, str]] = field(default_factory=list)  # each with the kind of the unknown value
    reads: list[str] = field(default_factory=list)  # the fields since its last condition
    conditions: list[list[str]] = field(default_factory=list)  # and what each one around has read
    raised: dict[str, tuple[str, list[str], set[str]]] = field(default_factory=dict)  # {where: message, reads, kinds}
    result: list[Any] = field(default_factory=list)  # of a `return`
    after: set[str] = field(default_factory=set)  # the kinds that an earlier `return` depends on
    fields: dict[str, Any] = field(default_factory=dict)  # at its end
    scope: dict[str, Any] = field(default_factory=dict)

    def decide(self, kind: str) -> bool:
        answer = self.choices[len(self.made)] if len(self.made) < len(self.choices) else False
        self.made.append((answer, kind))
        return answer

    @property
    def kinds(self) -> set[str]:
        return {kind for _, kind in self.made}

    def others(self) -> Iterator[tuple[bool, ...]]:
        """Yield the choices of further paths, of which each has one truth of the machine's at most."""
        for index in range(len(self.choices), len(self.made)):
            before = self.made[:index]
            if self.made[index][1] != "machine" or (True, "machine") not in before:
                yield (*(answer for answer, _ in before), True)


PATHS: list[ExecutionPath] = []  # those that are executed, of a statement and the methods that it calls


class Unknown:
    """A value that is not known.

    kind: a `text` or another `value` of the command line, neither of which is None; what depends on the `user`, or on
    the `machine` alone. Operators and attributes give unknown values; its truth is the path's choice.
    """

    def __init__(self, kind: str = "machine") -> None:
        self.__dict__["kind"] = kind

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name.startswith("__") else derived(self)

    def __setattr__(self, name: str, value: Any) -> None: ...

    def __call__(self, *others: Any) -> Unknown:
        return derived(self, *others)

    def __bool__(self) -> bool:
        return PATHS[-1].decide(kind_of(derived(self)))

    def __contains__(self, _: object) -> bool:
        return bool(self)

    def __iter__(self) -> Iterator[Unknown]:
        if self:
            yield derived(self)

    def __format__(self, _: str) -> str:
        return "?"

    def __repr__(self) -> str:
        return "?"

    __hash__ = object.__hash__


for _name in _OPERATORS.split():
    for _prefix in ("", "r"):
        setattr(Unknown, f"__{_prefix}{_name}__", Unknown.__call__)


def kind_of(value: Unknown) -> str:
    return str(value.__dict__["kind"])


def derived(*parts: Any) -> Unknown:
    """Return the unknown value of what depends on these."""
    return Unknown("user" if {kind_of(part) for part in unknown_parts(parts)} - {"machine"} else "machine")


def unknown_parts(value: Any) -> list[Unknown]:
    """Return the unknown parts of a value."""
    if type(value) is Unknown:
        return [value]
    return [part for item in value for part in unknown_parts(item)] if isinstance(value, list | tuple | set) else []


def to_json(value: Unknown) -> dict[str, str]:
    """Return a JSON object, which `from_json` reads."""
    return {_UNKNOWN: kind_of(value)}


def from_json(value: dict[str, Any]) -> Any:
    return Unknown(value[_UNKNOWN]) if value.keys() == {_UNKNOWN} else value
