"""Walks the nodes of a configuration: the dataclasses of the schema, their keys, types and values.

A key is dotted, as on the command line: `recipe.lora.rank`; the first entry of a list has `[0]`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class KeyValue:
    """A key of a configuration with its value."""

    key: str  # `recipe.lora.rank`, or `data.mix[0].share`
    value: Any
    hint: Any  # the type that the schema gives it
    metadata: Mapping[str, Any]  # of the dataclass's field


@cache
def hints(cls: Any) -> dict[str, Any]:
    """Return the types of a node's keys."""
    return typing.get_type_hints(cls)


def options_of(hint: Any) -> tuple[Any, ...]:
    """Return the types that a union is of: int and None for `int | None`; any other type alone."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def node_class(hint: Any) -> type | None:
    """Return the dataclass of a node's type; None for a value, a list or a map."""
    for option in options_of(hint):
        if isinstance(option, type) and dataclasses.is_dataclass(option):
            return option
    return None


def find_hint(root: type, key: str) -> Any:
    """Return the type of a dotted key, which may lead into lists (`data.mix.0`) and maps; None for a
    key that does not exist.
    """
    hint: Any = root
    for name in key.split("."):
        node = node_class(hint)
        container = typing.get_origin(hint)
        if node is not None:
            hint = hints(node).get(name)
        elif container is dict:
            hint = typing.get_args(hint)[1]
        elif container is list and name.isdigit():
            hint = typing.get_args(hint)[0]
        elif hint is not Any:
            return None
    return hint


def walk_keys(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of a node, and of the nodes in it, with their types."""
    for name, hint in hints(cls).items():
        inner_class = node_class(hint)
        if inner_class is None:
            yield f"{prefix}{name}", hint
        else:
            yield from walk_keys(inner_class, f"{prefix}{name}.")


def walk_values(node: Any, prefix: str = "") -> Iterator[KeyValue]:
    """Yield every key below a node with its value, also those of nodes and of lists of nodes."""
    types_of_keys = hints(node.__class__)
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        key = f"{prefix}{field.name}"
        yield KeyValue(key, value, types_of_keys[field.name], field.metadata)
        if dataclasses.is_dataclass(value):
            yield from walk_values(value, f"{key}.")
        elif isinstance(value, list):
            for position, item in enumerate(value):
                if dataclasses.is_dataclass(item):
                    yield from walk_values(item, f"{key}[{position}].")
