"""Finds the answers of rows whose `chosen` and `rejected` are names of answers."""

from __future__ import annotations

from collections.abc import Mapping

from launch.data.prompts import column_of_question
from launch.data.row_errors import RowError, jq_path
from launch.data.verdicts import find_answers, find_named, read_mark

_SIDES = ("chosen", "rejected")
# columns with all answers of a row, in a list or by their names
_LISTS = ("responses", "answers", "completions", "outputs", "candidates", "generations")


def find_named_answers(row: Mapping[str, object]) -> dict[str, str]:
    """Return the columns of the better and of the worse answer, by `chosen` and `rejected`, where
    these name columns, as in `"chosen": "b"` beside `response_a` and `response_b`; {} where they are
    answers.

    Raises RowError (data_pair) where they name answers, and it is not certain which.
    """
    values = [row.get(side) for side in _SIDES]
    names = [_name_of(value) for value in values]
    if not all(names) or names[0] == names[1]:
        return {}
    columns = [_column_named(row, name) for name in names]
    answers = find_answers([name for name in row if row[name] is not None])
    if not all(columns) and answers:
        columns = [find_named(value, answers) or "" for value in values]
    if all(columns) and columns[0] != columns[1]:
        return {} if _are_shown(row, columns) else dict(zip(_SIDES, columns, strict=True))
    _refuse_names(row, names, answers)
    return {}


def _name_of(value: object) -> str:
    """Return what may be a name: a number, a word, or two such as `Response A`; "" for any other
    value.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number:
        return read_mark(value) or ""
    words = len(value.split()) if isinstance(value, str) else 0
    is_name = words == 1 or (words == 2 and read_mark(value) is not None)
    return str(value).strip() if is_name else ""


def _column_named(row: Mapping[str, object], name: str) -> str:
    """Return the column of this name, whatever its case, if it has an answer; "" without one."""
    found = [column for column in row if column.lower() == name.lower()]
    is_answer = len(found) == 1 and isinstance(row[found[0]], str | list)
    return found[0] if is_answer and found[0] not in _SIDES else ""


def _are_shown(row: Mapping[str, object], columns: list[str]) -> bool:
    """Return whether the question has these columns' texts: the letter of a choice answers it."""
    question = str(row.get(column_of_question(row)))
    return all(str(row[column]) in question for column in columns)


def _refuse_names(
    row: Mapping[str, object], names: list[str], answers: tuple[str, str] | None
) -> None:
    """Refuse a pair whose sides are names, where it is not clear which answers they name.

    Raises RowError: data_pair.
    """
    shown = f"chosen is {names[0]!r} and rejected {names[1]!r}"
    are_marks = all(read_mark(name) == name.lower() for name in names)
    if answers and are_marks:
        message = f"{shown}, and the answers are {answers[0]} and {answers[1]}"
        cure = f"write the name of a column into both, {answers[0]} or {answers[1]}"
        raise RowError(message, cure, "data_pair")
    column = next((name for name in _LISTS if _has_answers(row.get(name), names)), None)
    if column is not None:
        cure = "write the answers themselves there, of JSON lines with: "
        cure += _program(column, is_list=isinstance(row[column], list))
        raise RowError(f"{shown}, which name answers in {column}", cure, "data_pair")
    models = [name for name in row if "model" in name.lower() and _has_name(row[name], names)]
    if models:
        message = f"{shown}, which are names of models ({', '.join(models)})"
        raise RowError(message, "write the answers of these models there", "data_pair")


def _has_answers(value: object, names: list[str]) -> bool:
    """Return whether a value has answers by these names, which are its keys or places in a list."""
    if isinstance(value, dict):
        return all(name in value for name in names)
    if not isinstance(value, list) or any(name in value for name in names):
        return False
    return all(name.isdecimal() and int(name) <= len(value) for name in names)


def _has_name(value: object, names: list[str]) -> bool:
    """Return whether a value is one of these names, or a list of all."""
    if isinstance(value, list):
        return all(name in value for name in names)
    return value in names


def _program(column: str, *, is_list: bool) -> str:
    """Return the command that writes the answers, whose places count from 0."""
    key = " | tonumber" if is_list else ""
    sides = " | ".join(f".{side} = $row{jq_path(column)}[$row.{side}{key}]" for side in _SIDES)
    counted = " (the first answer is 0; subtract 1 where yours is 1)" if is_list else ""
    return f"jq -c '. as $row | {sides}'{counted}"
