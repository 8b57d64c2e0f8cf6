"""Finds the rows that one object holds, such as `{"data": [...]}`, and the program of jq that writes
each as a row of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from launch.data.columns import COMPLETIONS
from launch.data.pairs import is_pair
from launch.data.prompts import ASKING, CHATS, PROMPTS, SYSTEMS
from launch.data.row_errors import RowError, jq_path
from launch.data.sources import SPLITS
from launch.data.turns import ROLE_KEYS

_ASKED = ("instruction", *PROMPTS)
_ANSWERS = (*COMPLETIONS, "answers", "target", "targets", "ground_truth")
_SPLIT_NAMES = frozenset(name for names in SPLITS for name in names)
_DEEPEST = 5  # levels of objects and lists above a row
_MOST_KEYS = 50  # of an object that are looked into
_TRANSPOSED = ". as $all | range(.{0} | length) as $i | $all | map_values(.[$i])"
_INDEXED = ". as $all | .{0} | keys_unsorted[] as $i | $all | map_values(.[$i])"
_SPLIT_TABLE = ".columns as $names | .data[] | [$names, .] | transpose | map({(.[0]): .[1]}) | add"


def refuse_columns(row: Mapping[str, object]) -> None:
    """Refuse an object whose columns hold the values of many rows, and a conversation that is a list
    of them.

    Raises RowError: data_columns.
    """
    found = _find_columns(row)
    chat = next((name for name in CHATS if row.get(name) is not None), "")
    if found is None and _is_list_of_rows(row.get(chat)):
        found = (f"they are in {chat!r}", f"{jq_path(chat)}[]")
    if found is not None:
        raise _many_rows(*found)


def explain_nested(row: Mapping[str, object]) -> RowError | None:
    """Return the error of an object that holds rows in lists or below its keys; None for any other."""
    found = _find_splits(row) or _find_inner(row)
    return None if found is None else _many_rows(*found)


def _many_rows(described: str, program: str) -> RowError:
    message = f"one object holds many rows: {described}"
    cure = f"write each row by itself, of JSON lines with: jq -c '{program}'"
    return RowError(message, cure, "data_columns")


def _is_list_of_rows(value: object) -> bool:
    """Return whether the turns of a conversation are conversations."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and not set(CHATS).isdisjoint(first)


def _find_columns(row: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the description and the program of an object of columns; None for any other."""
    if _are_texts(row.get("columns")) and _are_lists(row.get("data")):
        return "the values of each are a list in 'data'", _SPLIT_TABLE
    main = next((name for name in row if name in (*_ASKED, *CHATS, "chosen")), None)
    if main is None or (len(row) == 1 and main not in CHATS):
        return None
    values = list(row.values())
    is_column = _are_lists if main in CHATS else _are_texts
    if is_column(row[main]) and len({_length(value) for value in values}) == 1:
        return "each column is a list", _TRANSPOSED.replace(".{0}", jq_path(main))
    keys = {tuple(value) for value in values if isinstance(value, dict)}
    is_indexed = all(isinstance(value, dict) for value in values) and len(keys) == 1
    if is_indexed and all(key.isdecimal() for key in next(iter(keys))):
        return "each column is an object", _INDEXED.replace(".{0}", jq_path(main))
    return None


def _length(value: object) -> int | None:
    return len(value) if isinstance(value, list) else None


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(e, str) for e in value)


def _are_lists(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(e, list) for e in value)


def _find_splits(row: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the description and the program of an object with a list of rows for each split."""
    splits = [name for name in row if name.lower() in _SPLIT_NAMES]
    if (
        not splits
        or len(splits) < len(row)
        or not all(_holds_objects(row[name]) for name in splits)
    ):
        return None
    chosen = next((name for name in splits if name.lower() in SPLITS[0]), splits[0])
    listed = ", ".join(map(repr, splits))
    return f"{listed} {'are splits' if len(splits) > 1 else 'is a split'}", f"{jq_path(chosen)}[]"


def _holds_objects(value: object) -> bool:
    elements = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(elements, list) or not elements:
        return False
    return all(isinstance(element, dict) for element in elements)


def _find_inner(row: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the description and the program of the only list of rows in an object, or of the rows
    that are its values. What stands above a row of the list and asks becomes columns of the row.
    """
    found = list(_walk(row, _Place()))
    are_all = len(found) > 1 and len(found) == min(len(row), _MOST_KEYS)
    if are_all and all(len(place.steps) == 1 for place in found):
        has_lists = any(place.steps[0].is_list for place in found)
        return None if has_lists else ("each key has one", ".[]")
    if len(found) != 1 or not any(step.is_list for step in found[0].steps):
        return None
    program = ""
    columns: list[str] = []
    for step in found[0].steps:
        for column in step.beside:
            program += f"{jq_path(column)} as ${column} | "
        columns += step.beside
        program += f"{jq_path(step.name)}{'[]' if step.is_list else ''} | "
    if columns:
        program += f"{{{', '.join(f'{column}: ${column}' for column in columns)}}} + ."
    return f"they are in {found[0].steps[-1].name!r}", program.removesuffix(" | ")


class _Step(NamedTuple):
    """A key on the way from an object to its rows."""

    name: str
    is_list: bool  # whether its value is a list
    beside: tuple[str, ...]  # the columns of the same object that ask


class _Place(NamedTuple):
    """Where a row stands in an object."""

    steps: tuple[_Step, ...] = ()

    @property
    def above(self) -> tuple[str, ...]:
        """The columns above the row that ask."""
        return tuple(name for step in self.steps for name in step.beside)


def _walk(value: Mapping[str, Any], place: _Place) -> Iterator[_Place]:
    """Yield the places of the first row in each list or object below a value."""
    beside = tuple(name for name, inner in value.items() if _asks(name, inner))
    for name, inner in list(value.items())[:_MOST_KEYS]:
        is_list = isinstance(inner, list)
        first = inner[0] if isinstance(inner, list) and inner else inner
        if not isinstance(first, dict) or not set(ROLE_KEYS).isdisjoint(first):
            continue
        inside = _Place((*place.steps, _Step(name, is_list, beside)))
        if _is_row(first, inside.above):
            yield inside
        elif len(inside.steps) < _DEEPEST:
            yield from _walk(first, inside)


def _asks(name: str, value: object) -> bool:
    return name in (*ASKING, *SYSTEMS) and isinstance(value, str) and bool(value.strip())


def _is_row(value: Mapping[str, Any], above: tuple[str, ...]) -> bool:
    """Return whether an object is a row, below texts that ask."""
    names = {str(name).strip().lower() for name in value}
    if is_pair(names) or not names.isdisjoint(CHATS):
        return True
    asks = not names.isdisjoint(_ASKED) or not set(above).isdisjoint(_ASKED)
    return asks and not names.isdisjoint(_ANSWERS)
