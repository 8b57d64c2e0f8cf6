"""Reads the label of a row for KTO: whether its answer is a good one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launch.data.label_balance import LABEL
from launch.data.marks import Message, hidden_mark, judges
from launch.data.prompts import find_column
from launch.data.row_errors import RowError, describe_type

_OF_KTO = "kto_tag"  # which nothing but KTO has
NAMES = (LABEL, _OF_KTO, "feedback")
_KEY = f"data.columns.{LABEL}"
_WITH_TEXTS = re.compile(r"(.+):([^/]+)/([^/]+)")


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
        does not matter unless they differ in it alone.

        >>> LabelColumn.parse("thumb:up/down").texts
        {'up': True, 'down': False}
        """
        found = _WITH_TEXTS.fullmatch(name)
        if found is None:
            return cls(name)
        column, good, bad = (part.strip() for part in found.groups())
        if good.lower() != bad.lower():
            good = good.lower()
            bad = bad.lower()
        return cls(column, {good: True, bad: False})

    def judge(self, text: str) -> bool | None:
        """Return whether a text is that of a good answer; None for one that is neither."""
        is_lower = all(known == known.lower() for known in self.texts)
        return self.texts.get(text.lower() if is_lower else text)


def own_names(columns: Mapping[str, str]) -> Mapping[str, str]:
    """Return the names in data.columns, that of the label without its texts."""
    label = LabelColumn.named_in(columns).name
    return columns if label is None else {**columns, LABEL: label}


def is_label(row: Mapping[str, object]) -> bool:
    """Return whether a row has a label of an answer: a column of KTO's own name, or a truth value."""
    column = find_column(row, NAMES)
    return column == _OF_KTO or (bool(column) and _as_truth(row[column]) is not None)


def find_judgement(row: Mapping[str, object]) -> str | None:
    """Return the column that says of the row's answer whether it is a good one, beside those of
    NAMES; None without one.
    """
    if row.get("rejected") is not None:
        return None
    return next((name for name, value in row.items() if judges(name, value)), None)


def find_verdict_word(row: Mapping[str, object]) -> str | None:
    """Return the column of a label that is a single word, such as `good`; None without one."""
    words = (name for name in NAMES if isinstance(row.get(name), str))
    return next((name for name in words if len(str(row[name]).split()) == 1), None)


def cure_of_text(name: str, value: str) -> str:
    """Return how data.columns names the texts of a label, of which `value` is one."""
    texts = "1/0" if value.strip() in ("1", "0") else "GOOD/BAD"
    return f"{_KEY}={name}:{texts}"


def find_label(row: Mapping[str, object], own: LabelColumn) -> str:
    """Return the column with the label of a row, which is renamed; "" without one."""
    return LABEL if own.name is not None else find_column(row, NAMES)


def read_label(row: Mapping[str, object], own: LabelColumn) -> bool:
    """Return whether the row's answer is a good one. Raises RowError: data_label."""
    if own.name is not None and row.get(LABEL) is None:
        message = f"{own.name}, which has the label, is missing or empty"
        raise RowError(message, None, "data_label")
    column = find_label(row, own)
    if not column:
        message = "the row has no label, which says whether its answer is a good one"
        cure = f"expected is a column {', '.join(NAMES[:-1])} or {NAMES[-1]}; name yours, as in "
        raise RowError(message, f"{cure}{_KEY}=MY_COLUMN", "data_label")
    value = row[column]
    name = own.name or column
    text = _as_text(value)
    if len(own.texts) == 1:
        message = f"{_KEY} has the same text {next(iter(own.texts))!r} for good and bad answers"
        raise RowError(message, "name two, the good one first", "data_label")
    if text is not None and own.texts:
        is_good = own.judge(text)
        if is_good is not None:
            return is_good
        expected = " nor ".join(map(repr, own.texts))
        raise RowError(f"{name} is {value!r}, which is neither {expected}", None, "data_label")
    truth = _as_truth(value)
    if truth is not None:
        return truth
    if isinstance(value, str):
        message = f"{name} is the text {value[:40]!r}, and a label is true or false"
        cure = f"name its two texts, the good one first: {cure_of_text(name, value)}"
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
    judgement = find_judgement(row)
    for name in NAMES if judgement is None else (*NAMES, judgement):
        text = str(_as_text(row.get(name))).lower()
        # a label or a feedback of 0 may be the number of a class
        if text == "false" or (text == "0" and name in (_OF_KTO, judgement)):
            message = f"{name} is {text}: the answer is marked as one that must not be learned"
            cure = "a stage that builds on kto learns from good and bad answers"
            if name == judgement:
                cure += f" ({cure_of_judgement(row, name)})"
            raise RowError(message, cure)


def cure_of_judgement(row: Mapping[str, object], name: str) -> str:
    """Return how data.columns names a column that judges the row's answer, with its two values."""
    return f"{_KEY}={name}:{_truths(row[name])}"


def _truths(value: object) -> str:
    is_number = str(_as_text(value)) in ("1", "0")
    return "1/0" if is_number else "true/false"


def _as_text(value: object) -> str | None:
    """Return a text as data.columns would have it: a number and a truth value as JSON writes them;
    None for anything else.
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value) if isinstance(value, bool | int | float) else None


def _as_truth(value: object) -> bool | None:
    """Return a truth value, also one that is written as 1 or 0, or as True as pandas writes a CSV file;
    None for anything else.
    """
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower())
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    return None
