"""Reads lists and turns that a text holds, as cells of tables do: in JSON, or as Python prints them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from launch.data.row_errors import RowError, parse_json, read_json
from launch.data.turns import CONTENT_KEYS, ROLE_KEYS, role_of
from launch.errors import refusal

_TURN_KEYS = (*CONTENT_KEYS, "tool_calls", "function_call")


def read_cell(value: object, column: str) -> object:
    """Return the turn or the list of turns that a text holds as JSON; any other value as it is.

    Other JSON stays a text: an answer may be the list `[1, 2]` or an object.

    Raises RowError: data_row, for turns as Python prints them.
    """
    if not isinstance(value, str) or not any(key in value for key in ROLE_KEYS):
        return value
    if not value.lstrip().startswith(("[", "{")):
        return value
    parsed = parse_json(value)
    if _are_turns(parsed):
        return read_json(value, column)
    if parsed is None and _are_turns(_parse_python(value)):
        message = f"{column} has turns as Python prints them; JSON is expected"
        raise RowError(message, "write it with json.dumps")
    return value


def _are_turns(value: object) -> bool:
    turns = value if isinstance(value, list) else [value]
    return bool(turns) and all(_is_turn(turn) for turn in turns)


def _is_turn(value: object) -> bool:
    if not isinstance(value, dict) or value.keys().isdisjoint(_TURN_KEYS):
        return False
    return role_of(value) is not None


def _parse_python(text: str) -> object:
    """Return the value of a Python literal; None for any other text."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _find_texts(value: object) -> str:
    """Return how a text writes a list of texts, "JSON" or "Python"; "" if it is none."""
    text = value.strip() if isinstance(value, str) else ""
    if not (text.startswith("[") and text.endswith("]")):
        return ""
    written = "JSON"
    elements = parse_json(text)
    if elements is None:
        written = "Python"
        elements = _parse_python(text)
    if not isinstance(elements, list):
        return ""
    texts = [element for element in elements if element is not None]
    are_texts = bool(texts) and all(isinstance(element, str) for element in texts)
    return written if are_texts else ""


@dataclass
class ListedTexts:
    """The columns whose values are lists of texts, written as a text, in every row so far.

    One row may mean its list, as an answer of code does; where every row has one, each is a list of
    turns or of alternatives, of which a model would learn the brackets.
    """

    form: str = ""  # the format of the rows
    _written: dict[str, str] = field(default_factory=dict)  # by column: in JSON or in Python
    _places: dict[str, str] = field(default_factory=dict)  # by column: the first row
    _others: set[str] = field(default_factory=set)  # columns with another value in a row

    def add(self, row: Mapping[str, object], columns: tuple[str, ...], place: str) -> None:
        """Count a row: those of its columns that are learnt or asked."""
        for column in columns:
            if column in self._others:
                continue
            written = _find_texts(row[column])
            if written:
                self._written[column] = written
                self._places.setdefault(column, place)
            else:
                self._others.add(column)

    def check(self, own_names: Mapping[str, str]) -> None:
        """Refuse columns that have a list of texts in every row. `own_names` are the names that the
        rows have for columns.

        Raises UserError: data_row.
        """
        found = [column for column in self._written if column not in self._others]
        if not found:
            return
        owns = [own_names.get(column, column) for column in found]
        known = [column if column in own_names else _known_name(column) for column in found]
        firsts = " ".join(
            f"data.columns.{name}={own}.0" for name, own in zip(known, owns, strict=True)
        )
        cure = (
            f"if the lists are to be learnt, set data.format={self.form}; or name a text of "
            f"each, such as the first: {firsts}"
        )
        if "Python" in map(self._written.get, found):
            cure = f"write lists with json.dumps, not as Python prints them; {cure}"
        columns = ", ".join(owns)
        message = f"{columns}: a list of texts in every row, written as a text"
        raise refusal("data_row", message, self._places[found[0]], cure)


def _known_name(column: str) -> str:
    """Return the name by which `data.columns` knows a column."""
    if column in ("chosen", "rejected"):
        return column
    is_asked = column in ("prompt", "question", "query", "input", "instruction")
    return "prompt" if is_asked else "completion"
