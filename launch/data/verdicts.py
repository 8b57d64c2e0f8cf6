"""Rows with two answers, and a column that says which of them is the better one."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from launch.data.row_errors import RowError

# Chatbot Arena has `winner`, PKU-SafeRLHF `better_response_id`.
_VERDICTS = ("winner", "preference", "preferred", "better_response_id")
_ANSWER = re.compile(r"(conversation|response|completion|answer|output)_(a|0|1)")
_OTHER = {"a": "b", "0": "1", "1": "2"}


class Verdict(NamedTuple):
    """The columns of a row with two answers and a verdict on them."""

    answers: tuple[str, str]
    column: str  # names one of the answers, or ends with what the answer's column ends with


def find_verdict(names: Collection[str]) -> Verdict | None:
    """Return the columns of two answers, such as `response_a` and `response_b`, and of the verdict on
    them; None where the row has none.
    """
    column = next((name for name in _VERDICTS if name in names), None)
    for name in sorted(names):
        match = _ANSWER.fullmatch(name)
        other = f"{match[1]}_{_OTHER[match[2]]}" if match else ""
        if column is not None and other in names:
            return Verdict((name, other), column)
    return None


def choose_sides(row: Mapping[str, object], verdict: Verdict) -> dict[str, str]:
    """Return the columns of the better and of the worse answer, by `chosen` and `rejected`.

    Raises RowError (data_pair) where the verdict names neither of them.
    """
    first, second = verdict.answers
    if _names(row[verdict.column], first):
        return {"chosen": first, "rejected": second}
    if _names(row[verdict.column], second):
        return {"chosen": second, "rejected": first}
    message = f"{verdict.column} is {row[verdict.column]!r}: neither {first} nor {second} is better"
    raise RowError(message, "leave the row out", "data_pair")


def _names(value: object, answer: str) -> bool:
    """Return whether a verdict is the name of an answer's column, or what that name ends with."""
    text = str(value).strip().lower()
    end = answer.rpartition("_")[2]
    return text in (answer, end) or text.endswith(f"_{end}")
