"""The error of a row that can't be used, and the readers of its texts."""

from __future__ import annotations

import json
from collections.abc import Iterable

from launch.worker.finding import Finding, Fix

# keys of an object that name its text
_TEXT_KEYS = ("text", "content", "answer", "response", "completion", "output")


class RowError(ValueError):
    """A row that a trainer can't use; the caller knows its place."""

    def __init__(self, message: str, cure: Fix | str | None = None, id: str = "data_row") -> None:
        self.id = id
        self.cure = cure
        super().__init__(message)

    def problem(self, place: str) -> Finding:
        """Return the error as a finding; `place` is the row's file and line."""
        return Finding.error(self.id, str(self), place, self.cure)


def not_a_row(value: object) -> RowError:
    """Return the error of a value that is not an object with columns."""
    is_json = isinstance(value, str) and isinstance(parse_json(value), dict)
    cure = "the text holds the object as JSON: write it with jq -c fromjson" if is_json else None
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
