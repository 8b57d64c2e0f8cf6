"""Reads the label of a row for KTO: whether its answer is a good one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launch.data.label_balance import LABEL
from launch.data.marks import Message, hidden_mark
from launch.data.prompts import find_column
from launch.data.row_errors import RowError, describe_type

NAMES = (LABEL, "kto_tag", "feedback")
_KEY = f"data.columns.{LABEL}"
_WITH_TEXTS = re.compile(r"(.+):([^/]+)/([^/]+)")
_TRUTH_VALUES = ("true", "false")


@dataclass(frozen=True)
class LabelColumn:
    """The column that data.columns names for the label, and its texts."""

    name: str | None = None  # None: data.columns names none
    texts: Mapping[str, bool] = field(default_factory=dict)  # text -> whether the answer is good

    @classmethod
    def named_in(cls, columns: Mapping[str, str]) -> LabelColumn:
        """Return the column that data.columns names for the label."""
        return cls.parse(columns[LABEL]) if LABEL in columns else cls()

    @classmethod
    def parse(cls, name: str) -> LabelColumn:
        """Parse the column's name, and after a colon its two texts, the good one first, whose case
        does not matter.

        >>> LabelColumn.parse("thumb:up/down").texts
        {'up': True, 'down': False}
        """
        found = _WITH_TEXTS.fullmatch(name)
        if found is None:
            return cls(name)
        column, good, bad = found.groups()
        return cls(column, {good.strip().lower(): True, bad.strip().lower(): False})


def own_names(columns: Mapping[str, str]) -> Mapping[str, str]:
    """Return the names in data.columns, that of the label without its texts."""
    label = LabelColumn.named_in(columns).name
    return columns if label is None else {**columns, LABEL: label}


def is_label(row: Mapping[str, object]) -> bool:
    """Return whether a row has a label of an answer: a column of KTO's own name, or a truth value."""
    column = find_column(row, NAMES)
    return column == "kto_tag" or (bool(column) and _as_truth(row[column]) is not None)


def read_label(row: Mapping[str, object], own: LabelColumn) -> bool:
    """Return whether the row's answer is a good one. Raises RowError: data_label."""
    if own.name is not None and row.get(LABEL) is None:
        message = f"{own.name}, which has the label, is missing or empty"
        raise RowError(message, None, "data_label")
    column = LABEL if own.name is not None else find_column(row, NAMES)
    if not column:
        message = "the row has no label, which says whether its answer is a good one"
        cure = f"expected is a column {', '.join(NAMES[:-1])} or {NAMES[-1]}; name yours, as in "
        raise RowError(message, f"{cure}{_KEY}=MY_COLUMN", "data_label")
    value = row[column]
    name = own.name or column
    text = _as_text(value)
    if text is not None and own.texts:
        if text in own.texts:
            return own.texts[text]
        expected = " nor ".join(map(repr, own.texts))
        raise RowError(f"{name} is {value!r}, which is neither {expected}", None, "data_label")
    truth = _as_truth(value)
    if truth is not None:
        return truth
    if isinstance(value, str):
        is_truth = value.strip().lower() in _TRUTH_VALUES
        texts = "/".join(_TRUTH_VALUES) if is_truth else "GOOD/BAD"
        message = f"{name} is the text {value[:40]!r}, and a label is true or false"
        cure = f"name its two texts, the good one first: {_KEY}={name}:{texts}"
        raise RowError(message, cure, "data_label")
    shown = value if isinstance(value, int | float) else describe_type(value)
    message = f"{name} is {shown}, and a label is true or false, or 1 or 0"
    raise RowError(message, None, "data_label")


def check_labelled(messages: Sequence[Message], cure: str | None = None) -> None:
    """Check that a conversation ends with an answer, which has the label; `cure` is that of one that
    does not.

    Raises RowError: data_row, data_marks, data_no_answer.
    """
    if messages[-1]["role"] != "assistant":
        reason = "the last turn is not the assistant's, and a label is that of the last answer"
        raise RowError(reason, cure, "data_no_answer")
    if len(messages) < 2:
        raise RowError("the row is an answer without a prompt", "add a column prompt")
    mark = hidden_mark(messages[-1])
    if mark is not None:
        reason = f"the labelled answer is marked as one that is not learnt ({mark})"
        raise RowError(reason, "remove the mark, or leave the row out", "data_marks")


def refuse_bad_answer(row: Mapping[str, object]) -> None:
    """Refuse a row for SFT whose answer is labelled as a bad one. Raises RowError: data_row."""
    for name in NAMES:
        value = row.get(name)
        if value is False or (isinstance(value, str) and value.strip().lower() == "false"):
            message = f"{name} is false: the answer is marked as one that must not be learned"
            raise RowError(message, "a stage that builds on kto learns from good and bad answers")


def _as_text(value: object) -> str | None:
    """Return a text as data.columns would have it: a number and a truth value as JSON writes them;
    None for anything else.
    """
    if isinstance(value, str):
        return value.strip().lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value) if isinstance(value, bool | int | float) else None


def _as_truth(value: object) -> bool | None:
    """Return a truth value, also one that is written as 1 or 0; None for anything else."""
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    return None
