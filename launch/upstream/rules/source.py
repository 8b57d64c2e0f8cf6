"""Reads the functions of upstream that a schema names, unless their text has changed since."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from launch.upstream.pin.checkout import blob_id

_CACHED_FILES = 16


@dataclass(frozen=True)
class Function:
    """A function of upstream, as Python parses it."""

    qualified_name: str
    file: str  # as the schema has it
    node: ast.FunctionDef  # with the line numbers of the file

    @property
    def owner(self) -> str:
        """The class that defines it; '' for a function of a module."""
        return self.qualified_name.rpartition(".")[0]


def read_functions(
    places: Sequence[Mapping[str, Any]], folders: Sequence[Path]
) -> list[Function] | None:
    """Return the functions at these places (`Schema.post_init`); None if the text of one is missing
    or differs.
    """
    functions = []
    for place in places:
        function = _read_function(place, folders)
        if function is None:
            return None
        functions.append(function)
    return functions


def find_differing(
    post_init: Mapping[str, Mapping[str, Any]], folders: Sequence[Path]
) -> Iterator[str]:
    """Yield file:line of each function whose file is in a folder, but with another text."""
    for code in post_init.values():
        for place in code["functions"]:
            has_file = any((folder / place["file"]).is_file() for folder in folders)
            if has_file and _read_function(place, folders) is None:
                yield f"{place['file']}:{place['lines'][0]}"


def _read_function(place: Mapping[str, Any], folders: Sequence[Path]) -> Function | None:
    """Return the function at a place; None if no folder has its text."""
    first, last = place["lines"]
    for folder in folders:
        path = folder / place["file"]
        try:
            status = path.stat()
        except OSError:
            continue
        lines = _read_lines(path, status.st_mtime_ns, status.st_size)
        text = "".join(lines[first - 1 : last])
        if blob_id(text.encode()) == place["digest"]:
            return _parse(place["name"], place["file"], first, text)
    return None


@lru_cache(_CACHED_FILES)
def _read_lines(path: Path, _modified: int, _size: int) -> list[str]:
    """Return a file's lines; a file with another time or size is read again."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.readlines()
    except (OSError, UnicodeDecodeError):
        return []


@lru_cache
def _parse(qualified_name: str, file: str, line: int, text: str) -> Function | None:
    """Parse a function of a class or a module; None if this Python can't parse the text as one."""
    is_indented = text[:1].isspace()
    try:
        (node,) = ast.parse(f"if True:\n{text}" if is_indented else text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if isinstance(node, ast.If):
        node = node.body[0]
    if not isinstance(node, ast.FunctionDef):
        return None
    ast.increment_lineno(node, line - (2 if is_indented else 1))
    return Function(qualified_name, file, node)
