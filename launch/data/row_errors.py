"""The error of a row that can't be used, and the readers of its texts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from launch.worker.finding import Finding, Fix

# keys of an object that name its text
_TEXT_KEYS = ("text", "content", "answer", "response", "completion", "output")


class RowError(ValueError):
    """A row that a trainer can't use; the caller knows its place."""

    def __init__(self, message: str, cure: Fix | str | None = None, id: str = "data_row") -> None:
        self.id = id
        self.cure = cure
        super().__init__(message)

    def problem(self, place: str, own: Mapping[str, str] | None = None) -> Finding:
        """Return the error as a finding; `place` is the row's file and line, and `own` has the file's
        names and paths of columns by those that launch knows.
        """
        cure = self.cure
        if isinstance(cure, str):
            cure = complete_cure(cure, place, own or {})
        return Finding.error(self.id, str(self), place, cure)


def complete_cure(cure: str, place: str, own: Mapping[str, str]) -> str:
    """Return a cure whose programs of jq and paths have the file's own names; a program also has the
    command that writes the file at `place` anew.
    """
    written = _PROGRAM.sub(lambda found: _write_command(found[1], place, own), cure)
    return _NAMED.sub(lambda found: f"{found[1]}{own.get(found[2], found[2])}.", written)


_PROGRAM = re.compile(r"(?:of JSON lines )?with:? jq -c (fromjson|'[^']*')")
_COLUMN = re.compile(r"(?<![\w\])])\.[a-z_]+\b|(?<=\$row)\.[a-z_]+\b")
_NAMED = re.compile(r"(data\.columns\.\w+=)(\w+)\.")
_PLACE = re.compile(r"(.+):(?:row )?\d+")


def _write_command(program: str, place: str, own: Mapping[str, str]) -> str:
    """Return the command that writes a file anew with a program of jq for each row."""
    program = _COLUMN.sub(lambda found: _own_path(found[0], own), program)
    place_of_row = _PLACE.fullmatch(place)
    if place_of_row is None:
        return f"of JSON lines with: jq -c {program}"
    path = Path(place_of_row[1])
    file = shlex.quote(str(path))
    new = shlex.quote(f"new-{path.name.partition('.')[0]}.jsonl")
    if path.suffix in (".jsonl", ".ndjson"):
        return f"with: jq -c {program} {file} > {new}"
    return f"with: python -m launch.data {file} | jq -c {program} > {new}"


def _own_path(path: str, own: Mapping[str, str]) -> str:
    """Return jq's expression of a column with the file's own name."""
    name = own.get(path[1:])
    if name is None:
        return path
    keys = name.split(".") if re.fullmatch(r"\w+(\.\w+)+", name, re.ASCII) else [name]
    return "".join(f"[{key}]" if key.isdigit() else jq_path(key) for key in keys)


def jq_path(name: str) -> str:
    """Return jq's expression of a column."""
    return f".{name}" if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else f'.["{name}"]'


class KeyTwiceError(Exception):
    """An object has a key twice, with different values. json would keep the last one."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} stands twice in an object, with different values")


def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of a JSON text. Raises KeyTwiceError."""
    made = dict(pairs)
    if len(made) < len(pairs):
        for key, value in pairs:
            if made[key] != value:
                raise KeyTwiceError(key)
    return made


STRICT_DECODER = json.JSONDecoder(object_pairs_hook=make_object)


def not_a_row(value: object) -> RowError:
    """Return the error of a value that is not an object with columns."""
    cure = None
    if isinstance(value, str) and isinstance(parse_json(value), dict):
        cure = "the text holds the object as JSON: write it with jq -c fromjson"
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        cure = "if it is a conversation, give it a name, of JSON lines with: jq -c '{messages: .}'"
    message = f"the row is {describe_type(value)}; an object with named columns is expected"
    return RowError(message, cure)


def read_text(value: object, name: str) -> str:
    """Return a text that is not empty and can be encoded; `name` is used in errors.

    Raises RowError: data_row.
    """
    if not isinstance(value, str):
        is_column = name.isidentifier() and isinstance(value, bool | int | float)
        cure = f"write it as a text, of JSON lines with: jq -c '.{name} |= tostring'"
        message = f"{name} is {describe_type(value)} where text belongs"
        raise RowError(message, cure if is_column else None)
    if not value.strip():
        raise RowError(f"{name} is empty")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            message = f"{name} contains half of a character pair ({value[error.start]!r})"
            raise RowError(message) from error
    return value


def parse_list(text: str) -> object:
    """Return the list that a text holds as JSON; the text itself if it holds none."""
    value = parse_json(text)
    return value if isinstance(value, list) else text


def read_json(text: str, name: str) -> object:
    """Return the value that a text holds as JSON; None if it holds none. `name` is used in errors.

    Raises RowError: data_row, for an object that has a key twice.
    """
    try:
        return STRICT_DECODER.decode(text.strip())
    except KeyTwiceError as error:
        raise RowError(f"{name}: {error}", "leave one of them") from error
    except (ValueError, RecursionError):
        return None


def read_list(text: str, name: str) -> object:
    """Return the list that a text holds as JSON; the text itself if it holds none.

    Raises RowError: data_row, for an object that has a key twice.
    """
    value = read_json(text, name)
    return value if isinstance(value, list) else text


def parse_json(text: str) -> object:
    """Return the value that a text holds as JSON; None if it holds none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def describe_type(value: object) -> str:
    """Describe a value of the wrong type."""
    names = {
        type(None): "null",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)


def path_of_text(value: object) -> str | None:
    """Return where the first text in a value stands, as in `.0.answer`; "" for a text itself, None
    where there is none.
    """
    if isinstance(value, str):
        return "" if value.strip() else None
    inner: Iterable[tuple[object, object]] = ()
    if isinstance(value, list):
        inner = enumerate(value)
    elif isinstance(value, dict):
        inner = sorted(value.items(), key=_rank_of_text)
    for key, each in inner:
        path = path_of_text(each)
        if path is not None:
            return f".{key}{path}"
    return None


def _rank_of_text(item: tuple[object, object]) -> tuple[bool, bool, bool]:
    """Rank a key and its value: the likelier it is the text of an object, the lower."""
    key, value = item
    is_sentence = isinstance(value, str) and " " in value.strip()
    return key not in _TEXT_KEYS, "text" not in str(key), not is_sentence
