"""Reads the help texts of a trainer's flags from the source of their dataclasses. Nothing is
imported or started.

The lock has no text, only a digest of each. A text that does not fit it is not the flag's: the help
is unknown then.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from launch.files import read_file
from launch.upstream.capture.program import clean_help, digest_help
from launch.upstream.schema import Field

# the texts that a file has beside a field, by class and field
_Stated = Mapping[tuple[str, str], Sequence[str]]


@dataclass(frozen=True)
class HelpTexts:
    """The help of some flags. A flag that is in neither map has no help."""

    texts: Mapping[str, str]  # by the flag's name
    unknown: Mapping[str, str]  # the reason why a flag's help is unknown, by the flag's name


def read_help(fields: Iterable[Field], folders: Sequence[Path]) -> HelpTexts:
    """Read the help of `fields`; each one's file is taken from the first of `folders` that has
    it.
    """
    texts: dict[str, str] = {}
    unknown: dict[str, str] = {}
    files: dict[str, _Stated | str] = {}
    for field in fields:
        if field.help_digest is None:
            continue
        if field.file not in files:
            files[field.file] = _read_stated(field.file, folders)
        stated = files[field.file]
        if isinstance(stated, str):
            unknown[field.name] = stated
            continue
        candidates = stated.get((field.owner, field.name), ())
        fitting = [text for text in candidates if digest_help(text) == field.help_digest]
        if fitting:
            texts[field.name] = fitting[0]
        elif candidates:
            unknown[field.name] = f"{field.file} has another text than the one that was captured"
        else:
            unknown[field.name] = f"{field.file} does not state it as a literal text"
    return HelpTexts(texts, unknown)


def _read_stated(file: str, folders: Sequence[Path]) -> _Stated | str:
    """Return the help texts of a file; if it cannot be read, the reason."""
    path = next((folder / file for folder in folders if (folder / file).is_file()), None)
    if path is None:
        return f"{file or 'its source'} is not here"
    try:
        tree = ast.parse(read_file(path))
    except OSError as error:
        return f"{file} can't be opened: {error.strerror}"
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{file} can't be parsed: {error}"
    stated: dict[tuple[str, str], list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for field, texts in _fields(node):
                stated.setdefault((node.name, field), []).extend(texts)
    return stated


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each annotated field, and the texts that may be its help, the more likely
    first.

    They are the `help` of its default (of `field(metadata={"help": ...})`, or of a function's
    argument), and the text that stands behind the field.
    """
    for statement, following in pairwise([*node.body, ast.Pass()]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            values = [
                *_help_values(statement),
                *([following.value] if isinstance(following, ast.Expr) else []),
            ]
            texts = [text for value in values if (text := _literal_text(value))]
            yield statement.target.id, [clean_help(text) for text in texts]


def _help_values(statement: ast.AnnAssign) -> Iterator[ast.expr]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "help":
                    yield value
        elif isinstance(node, ast.keyword) and node.arg == "help":
            yield node.value


def _literal_text(node: ast.expr) -> str | None:
    """Return the text of a literal, of a sum of them, or of an f-string without a value; None for
    anything else.
    """
    parts: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [node.left, node.right]
    elif isinstance(node, ast.JoinedStr):
        parts = node.values
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    texts = [text for part in parts if (text := _literal_text(part)) is not None]
    return "".join(texts) if parts and len(texts) == len(parts) else None
