"""The line of each key in a JSON or YAML text, and the keys that occur twice."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\],:]')


@dataclass(frozen=True)
class Positions:
    """The lines of keys; a key path names list items by their index."""

    lines: Mapping[tuple[str, ...], int]  # key path -> 1-based line
    repeated: tuple[tuple[str, ...], ...]  # key paths that occur twice in their map

    def of(self, path: tuple[str, ...]) -> int | None:
        return self.lines.get(path)


def json_positions(text: str) -> Positions:
    """Locate the keys of a text that `json.loads` accepts."""
    lines: dict[tuple[str, ...], int] = {}
    repeated: list[tuple[str, ...]] = []
    stack: list[int | str | None] = []  # what names the next value at each depth: a list's index, or a map's key
    previous: tuple[str, int] | None = None
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in "{[":
            stack.append(None if token == "{" else 0)
        elif token in "}]":
            stack.pop()
        elif token == "," and isinstance(stack[-1], int):
            stack[-1] += 1
        elif token == ":" and previous:
            stack[-1] = str(json.loads(previous[0]))
            path = tuple(str(part) for part in stack)
            if path in lines:
                repeated.append(path)
            lines[path] = text.count("\n", 0, previous[1]) + 1
        previous = (token, match.start())
    return Positions(lines, tuple(repeated))


def yaml_positions(text: str, *, fast: bool = False) -> Positions:
    """Locate the keys of a YAML text. Raises yaml.YAMLError, with a shorter reason if `fast`."""
    import yaml  # slow to import; only what reads a file needs it

    lines: dict[tuple[str, ...], int] = {}
    repeated: list[tuple[str, ...]] = []

    def visit(node: Any, path: tuple[str, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                inner = (*path, str(key.value))
                if inner in lines:
                    repeated.append(inner)
                lines[inner] = key.start_mark.line + 1
                visit(value, inner)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                lines[(*path, str(index))] = value.start_mark.line + 1
                visit(value, (*path, str(index)))

    visit(yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader) if fast else yaml.SafeLoader), ())
    return Positions(lines, tuple(repeated))
