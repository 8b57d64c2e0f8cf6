"""The line of each key in a JSON or YAML text, and the keys that occur twice."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

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


def yaml_positions(text: str) -> Positions:
    """Locate the keys and list items of a YAML text. Raises NotYamlError."""
    from launch.config import yaml_nodes  # slow to import; only what reads a file needs it

    lines: dict[tuple[str, ...], int] = {}
    repeated: list[tuple[str, ...]] = []

    def visit(node: yaml_nodes.Node, path: tuple[str, ...]) -> None:
        node = yaml_nodes.resolve_alias(node)
        for key, value in getattr(node, "pairs", ()) or enumerate(getattr(node, "items", ())):
            inner = (*path, str(getattr(key, "text", key)))
            if inner in lines:
                repeated.append(inner)
            lines[inner] = getattr(key, "line", value.line)
            visit(value, inner)

    for document in yaml_nodes.read_yaml(text):
        visit(document, ())
    return Positions(lines, tuple(repeated))
