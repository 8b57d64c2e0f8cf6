"""Compares plain data with the schema: finds the keys that it lacks, and values of another type."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import NoneType
from typing import Any

from omegaconf import MISSING, BooleanNode, EnumNode, FloatNode, IntegerNode
from omegaconf.errors import ValidationError

from launch.config.nodes import hints, node_class, options_of

SettingPath = tuple[str | int, ...]  # ("data", "mix", 0, "share"): an entry of a list has its index

# OmegaConf's own conversions decide whether a value has a type.
_CONVERSIONS: Mapping[type, tuple[Callable[[Any], object], str]] = {
    int: (IntegerNode, "must be an integer"),
    float: (FloatNode, "must be a number"),
    bool: (BooleanNode, "must be true or false"),
}
_HAS_KEYS = "has keys of its own"


@dataclass(frozen=True)
class Mismatch:
    """A key with what is wrong with it."""

    path: SettingPath
    problem: str  # `must be an integer, got 'two'`
    siblings: tuple[str, ...] = ()  # of a key that the schema lacks: those that it has there

    @property
    def key(self) -> str:
        """The dotted key: `data.mix[0].share`."""
        return _dotted(self.path)

    @property
    def parent(self) -> str:
        """The dotted key of the node: `data.mix[0]`."""
        return _dotted(self.path[:-1])

    @property
    def has_keys(self) -> bool:
        """Whether keys are missing: the value of a node is not a map."""
        return self.problem.startswith(_HAS_KEYS)


def _dotted(path: SettingPath) -> str:
    names = [f"[{name}]" if isinstance(name, int) else f".{name}" for name in path]
    return "".join(names).removeprefix(".")


def find_mismatches(value: Any, hint: Any, path: SettingPath = ()) -> Iterator[Mismatch]:
    """Find what in the plain data of a node or a key is not of its type.

    A reference (`${recipe.seed}`) is of any type, as it is not resolved.
    """
    is_reference = isinstance(value, str) and ("${" in value or value == MISSING)
    if hint is Any or is_reference:
        return
    if value is None:
        if NoneType not in options_of(hint):
            yield Mismatch(path, "must have a value, got null")
        return
    [hint] = [option for option in options_of(hint) if option is not NoneType]
    container = typing.get_origin(hint)
    if node_class(hint) is not None:
        yield from _find_in_node(value, hint, path)
    elif container is dict and isinstance(value, dict):
        for name, item in value.items():
            yield from find_mismatches(item, typing.get_args(hint)[1], (*path, name))
    elif container is dict:
        given = "a list" if isinstance(value, list) else "a single value"
        yield Mismatch(path, f"{_HAS_KEYS}, got {given}")
    elif container is list and isinstance(value, list):
        for position, item in enumerate(value):
            yield from find_mismatches(item, typing.get_args(hint)[0], (*path, position))
    elif container is list:
        yield Mismatch(path, "must be a list: [A,B]")
    else:
        problem = _scalar_problem(value, hint)
        if problem:
            yield Mismatch(path, problem)


def _find_in_node(value: Any, node: type, path: SettingPath) -> Iterator[Mismatch]:
    """Find mismatches in the value of a node, which has the keys of its dataclass."""
    if not isinstance(value, dict):
        given = "a list" if isinstance(value, list) else value
        yield Mismatch(path, f"{_HAS_KEYS}, got {given}")
        return
    fields = hints(node)
    for name, item in value.items():
        if name in fields:
            yield from find_mismatches(item, fields[name], (*path, name))
        else:
            yield Mismatch((*path, name), "is not a key", tuple(fields))


def _scalar_problem(value: Any, hint: type) -> str:
    """Return what is wrong with the value of a key that has no keys of its own; "" if it is right."""
    is_container = isinstance(value, list | dict)
    if hint is str:
        return f"must be a text, got {value!s:.60}" if is_container else ""
    convert: Callable[[Any], object]
    if not issubclass(hint, Enum):
        convert, problem = _CONVERSIONS[hint]
    elif is_container:
        return f"must be a single word, got {value}"
    else:
        convert = partial(EnumNode, hint)
        problem = f"must be one of {', '.join(hint.__members__)}"
    try:
        convert(value)
    except ValidationError:
        return f"{problem}, got '{value}'"
    return ""
