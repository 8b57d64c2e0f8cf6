"""Reads the marks of turns that say whether a turn is learnt, as other tools write them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.config.schema import TrainOn
from launch.data.row_errors import RowError
from launch.worker.finding import Fix
from launch.worker.turns import TRAINED_TURNS

# The marks of a turn that is learnt: OpenAI's, axolotl's and swift's, those of token masks, and
# XTuner's.
_LEARNT = (
    *("weight", "train", "train_on_turn", "training", "loss", "loss_mask"),
    "output_with_loss",
)
_HIDDEN = ("mask",)  # the mark of a turn that is not learnt
MARKS = (*_LEARNT, *_HIDDEN)
MARKS_OF_PARTS = ("train_detail", "training_detail")  # axolotl's marks of parts of a turn

# a name that says of an answer whether it is a good one, such as `if_chosen` or `is_correct`
_JUDGES = re.compile(
    r"(?:(?:is|if|was)[_ ]?)?(?:chosen|selected|correct|accepted|approved|preferred|good|best|liked|"
    r"upvoted|safe|helpful|acceptable|right|winner)|thumbs?[_ ]?up",
    re.IGNORECASE,
)
_NUMBERED = ("correct", "best", "right", "winner")  # a number there may count the choices

Message = dict[str, Any]


@dataclass
class MarkCount:
    """Counts the answers of converted rows, and those of them that are marked to be learnt."""

    answers: int = 0
    learnt: int = 0

    def add(self, columns: Mapping[str, Any]) -> None:
        """Count the answers of a row; a row without TRAINED_TURNS has none that are marked."""
        marks = columns.get(TRAINED_TURNS)
        if marks is not None:
            self.learnt += sum(marks)
            self.answers += sum(turn["role"] == "assistant" for turn in columns["messages"])

    def note(self) -> str | None:
        """Describe how many answers are learnt; None where no row is marked."""
        if not self.answers:
            return None
        return f"{self.learnt:,} of {self.answers:,} answers are marked to be learnt"


def judges(name: str, value: object) -> bool:
    """Return whether a value is a truth value that says, by its name, whether an answer is a good one."""
    if not isinstance(value, str | int | float):
        return False
    text = str(value).strip().lower().removesuffix(".0")
    is_truth = text in ("true", "false") or (text in ("1", "0") and name not in _NUMBERED)
    return is_truth and _JUDGES.fullmatch(name.strip()) is not None


def refuse_bad_turn(turn: Mapping[str, object], place: str) -> None:
    """Refuse an answer of a conversation that was not chosen of several. Raises RowError: data_row."""
    for name, value in turn.items():
        if judges(name, value) and str(value).strip().lower().removesuffix(".0") in ("false", "0"):
            message = f"{place} has {name}: {str(value).lower()}, so it is not the answer to learn"
            raise RowError(message, "leave such turns out of the conversation")


def marks_of(turn: Mapping[str, object]) -> dict[str, object]:
    """Return the marks of a turn with their values, as they are written."""
    return {name: turn[name] for name in (*MARKS, *MARKS_OF_PARTS) if turn.get(name) is not None}


def take_marks(messages: Sequence[Message], train_on: TrainOn) -> dict[str, list[bool]]:
    """Check the marks of a conversation against data.train_on.

    With `marked` they are taken off the messages, and the staged column TRAINED_TURNS is returned,
    which says of each message whether it is learnt. Otherwise nothing is returned.

    Raises RowError: data_marks, data_no_answer.
    """
    if train_on == TrainOn.marked:
        return {TRAINED_TURNS: _read_all(messages)}
    answers = [number for number, turn in enumerate(messages) if turn["role"] == "assistant"]
    for number in answers:
        for name in MARKS_OF_PARTS:
            if messages[number].get(name):
                _refuse_parts(name, number)
    for number in answers[-1:] if train_on == TrainOn.last else answers:
        if hidden_mark(messages[number]) is not None:
            raise _hidden_answer(messages, number, train_on)
        if messages[number].get("weight") not in (None, 0, 1):
            _read_mark(messages[number], number)
    if train_on == TrainOn.all:
        for number, turn in enumerate(messages):
            if turn["role"] != "assistant":
                _refuse_other_role(turn, number)
    return {}


def hidden_mark(turn: Mapping[str, object]) -> str | None:
    """Return the mark that excludes a turn from what is learnt, `weight: 0`; None without one."""
    for name in MARKS:
        value = turn.get(name)
        excluding = 1 if name in _HIDDEN else 0
        if isinstance(value, bool | int | float) and value == excluding:
            return f"{name}: {str(value).lower()}"
    return None


def _hidden_answer(messages: Sequence[Message], number: int, train_on: TrainOn) -> RowError:
    """Return the error of an answer that would be learnt although its mark excludes it."""
    message = (
        f"turn {number + 1} is marked as one that is not learnt ({hidden_mark(messages[number])}), "
        f"and data.train_on={train_on} learns it"
    )
    answers = [turn for turn in messages if turn["role"] == "assistant"]
    if all(map(hidden_mark, answers)):
        return RowError(message, "leave the row out, or mark an answer", "data_marks")
    sentence = "set {0}, or remove the mark to learn that answer too"
    if not all(map(marks_of, answers)):
        sentence = "mark each answer and set {0}, or remove the mark to learn that answer too"
    return RowError(message, Fix.of(sentence, "data.train_on=marked"), "data_marks")


def _read_all(messages: Sequence[Message]) -> list[bool]:
    """Return whether each message is learnt, and take the marks off."""
    marks = []
    for number, turn in enumerate(messages):
        marks.append(_read_mark(turn, number))
        if turn["role"] != "assistant":
            _refuse_other_role(turn, number)
        for name in MARKS:
            turn.pop(name, None)
    answers = [number for number, turn in enumerate(messages) if turn["role"] == "assistant"]
    missing = [number + 1 for number in answers if marks[number] is None]
    if len(missing) == len(answers):
        message = f"no answer of the row has a mark ({', '.join(MARKS)})"
        cure = Fix.of(
            "mark each answer, as with `train: true`, or set {0} or {1}",
            "data.train_on=all",
            "data.train_on=last",
        )
        raise RowError(message, cure, "data_marks")
    if missing:
        message = f"turn {missing[0]} has no mark, and other answers of the row have one"
        raise RowError(message, "mark each answer, as with `train: true`", "data_marks")
    if not any(marks[number] for number in answers):
        message = "every answer of the row is marked as one that is not learnt"
        raise RowError(message, "leave the row out, or mark an answer", "data_no_answer")
    return [bool(mark) and number in answers for number, mark in enumerate(marks)]


def _read_mark(turn: Mapping[str, object], number: int) -> bool | None:
    """Return whether a turn is marked to be learnt; None without a mark. Raises RowError: data_marks."""
    found: dict[str, bool] = {}
    for name, value in marks_of(turn).items():
        if name in MARKS_OF_PARTS:
            _refuse_parts(name, number)
        if value not in (0, 1):
            message = f"turn {number + 1} has {name} {value!r}; a truth value, 0 or 1 is expected"
            raise RowError(message, "a turn is learnt or it is not", "data_marks")
        found[name] = bool(value) is not (name in _HIDDEN)
    if len(set(found.values())) > 1:
        message = f"the marks of turn {number + 1} contradict each other: {', '.join(found)}"
        raise RowError(message, "leave one of them", "data_marks")
    return next(iter(found.values()), None)


def _refuse_other_role(turn: Mapping[str, object], number: int) -> None:
    """Refuse a turn of another role that is marked to be learnt. Raises RowError: data_marks."""
    for name in ("train", "train_on_turn", "training", "loss", "loss_mask"):
        value = turn.get(name)
        if isinstance(value, bool | int) and value == 1:
            message = (
                f"turn {number + 1} of {turn['role']} is marked to be learnt ({name}: {value}), "
                "and the trainers learn answers alone"
            )
            raise RowError(message, "remove the mark", "data_marks")


def _refuse_parts(name: str, number: int) -> None:
    message = f"turn {number + 1} has {name}: parts of a turn can't be learnt alone"
    raise RowError(message, "mark the turn as a whole, as with `train: true`", "data_marks")
