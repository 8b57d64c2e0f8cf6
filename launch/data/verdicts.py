"""Rows with two answers, and columns that say which of them is the better one."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from launch.data.row_errors import RowError

# Chatbot Arena has `winner`, PKU-SafeRLHF `better_response_id`.
_VERDICTS = ("winner", "preference", "preferred", "better_response_id")
_ANSWER = re.compile(r"(conversation|response|completion|answer|output)_(a|0|1)")
_OTHER = {"a": "b", "0": "1", "1": "2"}
# what a name such as `model_a` or `response 2` ends with, a number, or a truth value
_MARK = re.compile(r"(?:.*[_ ])?([a-z]|[+-]?\d+(?:\.\d+)?|true|false)")


class Verdict(NamedTuple):
    """The columns of a row with two answers and a verdict on them."""

    answers: tuple[str, str]
    column: str  # names one of the answers, or ends with what the answer's column ends with


def find_verdict(names: Collection[str]) -> Verdict | None:
    """Return the columns of two answers, such as `response_a` and `response_b`, and of the verdict on
    them; None where the row has none.
    """
    column = next((name for name in _VERDICTS if name in names), None)
    answers = find_answers(names) if column is not None else None
    return Verdict(answers, column) if column is not None and answers else None


def find_answers(names: Collection[str]) -> tuple[str, str] | None:
    """Return the columns of two answers, such as `response_a` and `response_b`; None without them."""
    for name in sorted(names):
        match = _ANSWER.fullmatch(name)
        other = f"{match[1]}_{_OTHER[match[2]]}" if match else ""
        if other in names:
            return name, other
    return None


def choose_sides(row: Mapping[str, object], verdict: Verdict) -> dict[str, str]:
    """Return the columns of the better and of the worse answer, by `chosen` and `rejected`.

    Raises RowError (data_pair) where the verdict names neither of them.
    """
    first, second = verdict.answers
    better = find_named(row[verdict.column], verdict.answers)
    if better is not None:
        return {"chosen": better, "rejected": second if better == first else first}
    message = f"{verdict.column} is {row[verdict.column]!r}: neither {first} nor {second} is better"
    cure = f"write {first} or {second} there, or leave out rows of which neither is better"
    raise RowError(message, cure, "data_pair")


def find_named(value: object, answers: tuple[str, str]) -> str | None:
    """Return the one of two answers' columns that a value names, or whose end it is; None for neither."""
    mark = read_mark(value)
    named = (name for name in answers if mark is not None and mark == read_mark(name))
    return next(named, None)


def read_mark(value: object) -> str | None:
    """Return the letter or the number that a value is or ends with; None for any other value.

    >>> [read_mark(value) for value in ("model_a", 2.0, "tie")]
    ['a', '2', None]
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_scalar = isinstance(value, str | int | float)
    match = _MARK.fullmatch(str(value).strip().lower()) if is_scalar else None
    return match[1] if match else None
