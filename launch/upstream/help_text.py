"""Reads the help texts of a trainer's flags from the source of their dataclasses, without importing it.

The lock has only a digest of each text. If the text in the source has another digest, the help is
unknown.
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

# the texts of a file that may be the help of a field, by class and field
_Candidates = Mapping[tuple[str, str], Sequence[str]]


@dataclass(frozen=True)
class HelpTexts:
    """The help of some flags. A flag that is in neither map has no help."""

    texts: Mapping[str, str]  # by the flag's name
    unknown: Mapping[str, str]  # the reason why a flag's help is unknown, by the flag's name


def read_help(fields: Iterable[Field], folders: Sequence[Path]) -> HelpTexts:
    """Read the help of `fields`, from the first of `folders` that has the file of a field."""
    texts: dict[str, str] = {}
    unknown: dict[str, str] = {}
    candidates_by_file: dict[str, _Candidates | str] = {}
    for field in fields:
        if field.help_digest is None:
            continue
        if field.file not in candidates_by_file:
            candidates_by_file[field.file] = _read_candidates(field.file, folders)
        candidates_of_file = candidates_by_file[field.file]
        if isinstance(candidates_of_file, str):
            unknown[field.name] = candidates_of_file
            continue
        candidates = candidates_of_file.get((field.owner, field.name), ())
        fitting = [text for text in candidates if digest_help(text) == field.help_digest]
        if fitting:
            texts[field.name] = fitting[0]
        elif candidates:
            unknown[field.name] = f"{field.file} has another text than the one that was captured"
        else:
            unknown[field.name] = f"{field.file} does not state it as a literal text"
    return HelpTexts(texts, unknown)


def _read_candidates(file: str, folders: Sequence[Path]) -> _Candidates | str:
    """Return the texts of a file that may be help; if it cannot be read, the reason."""
    path = next((folder / file for folder in folders if (folder / file).is_file()), None)
    if path is None:
        return f"{file or 'its source'} is not here"
    try:
        tree = ast.parse(read_file(path))
    except OSError as error:
        return f"{file} can't be opened: {error.strerror}"
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{file} can't be parsed: {error}"
    candidates: dict[tuple[str, str], list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for field, texts in _texts_by_field(node):
                candidates.setdefault((node.name, field), []).extend(texts)
    return candidates


def _texts_by_field(node: ast.ClassDef) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each annotated field, and the texts that may be its help, the more likely
    first.

    They are the `help` of its default (of `field(metadata={"help": ...})`, or of a function's
    argument), and the docstring after the field.
    """
    for statement, next_statement in pairwise([*node.body, ast.Pass()]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            values = list(_help_values(statement))
            if isinstance(next_statement, ast.Expr):
                values.append(next_statement.value)
            texts = [_literal_text(value) for value in values]
            yield statement.target.id, [clean_help(text) for text in texts if text]


def _help_values(statement: ast.AnnAssign) -> Iterator[ast.expr]:
    """Yield the values of each key or argument `help` in a field's declaration."""
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
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    parts: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [node.left, node.right]
    elif isinstance(node, ast.JoinedStr):
        parts = node.values
    texts = []
    for part in parts:
        text = _literal_text(part)
        if text is None:
            return None
        texts.append(text)
    return "".join(texts) if texts else None
