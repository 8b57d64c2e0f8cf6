"""Converts the two answers of a preference row, in the shapes that public data sets have them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch.data.marks import hidden_mark
from launch.data.named_answers import find_named_answers
from launch.data.prompts import (
    CHATS,
    SYSTEMS,
    column_of_question,
    find_column,
    groups_of_question,
    read_answer,
    read_chat,
    read_question,
    read_start,
    read_system,
)
from launch.data.row_errors import RowError
from launch.data.transcripts import is_dialogue, is_transcript, read_transcript
from launch.data.turns import Message, check_messages, read_messages, role_of
from launch.data.verdicts import Verdict, choose_sides, find_verdict

PAIR = ("chosen", "rejected")
# swift's `rejected_...`: without a chosen one the row's own conversation is the better one
REJECTED = ("rejected_response", "rejected_messages", "non_preferred_output")
CHOSEN = ("chosen_response", "preferred_output")
_ANSWERS = ("response", "completion", "answer", "output")


def is_pair(names: set[str]) -> bool:
    """Return whether the columns of a row hold two answers."""
    return set(PAIR) <= names or not names.isdisjoint(REJECTED) or find_verdict(names) is not None


def convert_pair(row: Mapping[str, object]) -> dict[str, Any]:
    """Convert a pair, whose sides must end with an answer to the same conversation.

    Upstream takes the prompt from chosen alone (dataset_transformation.py:1536-1539).

    Raises RowError: data_row, data_roles, data_no_answer, data_marks, data_pair.
    """
    columns = _columns_of_sides(row)
    if not columns and not find_column(row, REJECTED):
        raise RowError("chosen and rejected are empty", "leave the row out", "data_pair")
    row = {**row, **{side: row.get(name) for side, name in columns.items()}}
    sides = _read_sides(row) if columns else _read_rejected(row)
    for side, messages in sides.items():
        _check_side(messages, side)
    contexts = [_as_trained(messages[:-1]) for messages in sides.values()]
    if contexts[0] != contexts[1]:
        message = (
            "chosen and rejected answer different conversations; only their last turn may differ"
        )
        raise RowError(message, None, "data_pair")
    if _as_trained(sides["chosen"]) == _as_trained(sides["rejected"]):
        message = "chosen and rejected are equal, so there is nothing to prefer"
        raise RowError(message, "leave the row out", "data_pair")
    return dict(sides)


def _columns_of_sides(row: Mapping[str, object]) -> dict[str, str]:
    """Return the columns of both sides, by `chosen` and `rejected`; {} where the row's own answer is
    the better one.

    Raises RowError: data_pair.
    """
    if find_column(row, PAIR):
        return find_named_answers(row) or {side: side for side in PAIR if side in row}
    chosen = find_column(row, CHOSEN)
    if chosen:
        return {"chosen": chosen, "rejected": find_column(row, REJECTED) or REJECTED[0]}
    verdict = find_used_verdict(row)
    return choose_sides(row, verdict) if verdict else {}


def find_used_verdict(row: Mapping[str, object]) -> Verdict | None:
    """Return the verdict that says which answer of a row is the better one; None where columns of a
    better and of a worse answer say it.
    """
    if find_column(row, (*PAIR, *CHOSEN, *REJECTED)):
        return None
    return find_verdict({name for name, value in row.items() if value is not None})


def groups_of_pair(row: Mapping[str, object]) -> tuple[tuple[str, ...], ...]:
    """Return what the conversion of a pair reads: of the columns of each group the first that is
    filled.
    """
    columns = _columns_of_sides(row)
    groups: list[tuple[str, ...]] = [SYSTEMS, *((name,) for name in columns.values())]
    if PAIR[0] not in columns.values():  # the sides name other columns, if the row has them
        groups += [(side,) for side in PAIR]
    verdict = find_verdict(set(row))
    if verdict is not None and set(columns.values()) == set(verdict.answers):
        groups.append((verdict.column,))
    chosen = row.get(columns.get("chosen", ""))
    if columns and _is_conversation(chosen):
        return tuple(groups)
    if not columns:
        groups.append(REJECTED)
        if find_column(row, CHATS):
            return (*groups, CHATS)
        groups.append(_ANSWERS)
    groups.append(("history",))
    return (*groups, *(groups_of_question(row) if column_of_question(row) else (CHATS,)))


def _is_conversation(side: object) -> bool:
    """Return whether a side of a pair has its prompt."""
    if isinstance(side, str):
        return is_dialogue(side)
    first = side[0] if isinstance(side, list) and side else side
    return role_of(first) not in (None, "assistant")


def _as_trained(messages: list[Message]) -> list[tuple[str, str, object]]:
    """Return what templates render of turns, without keys such as scores."""
    return [
        (message["role"], message["content"], message.get("tool_calls")) for message in messages
    ]


def _read_sides(row: Mapping[str, object]) -> dict[str, list[Message]]:
    """Return both sides of a row with `chosen` and `rejected`."""
    sides = {}
    for side in PAIR:
        value = row.get(side)
        is_asked = bool(column_of_question(row) or find_column(row, CHATS))
        is_whole = is_transcript if is_asked else is_dialogue
        if isinstance(value, str) and is_whole(value):
            sides[side] = read_transcript(value, side)
        else:
            sides[side] = read_answer(row, side, _question_of(row))
    starts = [messages[0]["role"] for messages in sides.values()]
    if starts != ["assistant", "assistant"]:  # each side is a whole conversation
        system = read_system(row)
        for side, messages in sides.items():
            if messages[0]["role"] == "assistant":
                message = f"{side} is an answer alone, and the other side a whole conversation"
                raise RowError(message, "write both in the same way", "data_pair")
            if messages[0]["role"] != "system":
                sides[side] = [*system, *messages]
        return sides
    prompt = _read_prompt(row, sides["chosen"])
    return {side: [*prompt, *messages] for side, messages in sides.items()}


def _question_of(row: Mapping[str, object]) -> object:
    """Return what a row asks, as it is written; None where it stands in a conversation."""
    return row.get(column_of_question(row))


def _read_prompt(row: Mapping[str, object], answer: list[Message]) -> list[Message]:
    """Return the conversation that both sides answer; `answer` is the better one."""
    start = read_start(row)
    if column_of_question(row):
        prompt = read_question(row, row.get("chosen"))
        return prompt if prompt[:1] == start else [*start, *prompt]
    chat = find_column(row, CHATS)
    if not chat:
        if not start:
            _refuse_unread_chat(row)
        return start
    messages = read_chat(row)
    if messages[-1]["role"] != "assistant":
        return messages
    if _as_trained(messages[-len(answer) :]) != _as_trained(answer):
        message = f"{chat} ends with an answer that is not the one in chosen"
        raise RowError(message, "leave that answer out of it", "data_pair")
    return messages[: -len(answer)]


def _refuse_unread_chat(row: Mapping[str, object]) -> None:
    """Refuse answers whose conversation has a name that launch does not know. Raises RowError: data_pair."""
    for name, value in row.items():
        is_chat = isinstance(value, list) and bool(value) and role_of(value[0]) is not None
        if is_chat and name not in PAIR and name not in (*CHOSEN, *REJECTED, "history"):
            cure = f"name the conversation that they answer: data.columns.prompt={name}"
            raise RowError("both sides are answers without a prompt", cure, "data_pair")


def _read_rejected(row: Mapping[str, object]) -> dict[str, list[Message]]:
    """Return both sides of a row whose own conversation is the better one."""
    if find_column(row, CHATS):
        chosen = read_chat(row)
    else:
        answer = find_column(row, _ANSWERS)
        if not answer:
            message = "the row has a rejected answer, and none that is better"
            raise RowError(message, f"expected is one of {', '.join(_ANSWERS)}", "data_columns")
        better = read_answer(row, answer, _question_of(row))
        chosen = [*_read_prompt(row, better), *better]
    column = find_column(row, REJECTED)
    if column == "rejected_messages":
        rejected = read_messages(row[column], column)
        if rejected[0]["role"] != "system" and chosen[0]["role"] == "system":
            rejected = [chosen[0], *rejected]
    else:
        rejected = [*chosen[:-1], *read_answer(row, column, _question_of(row))]
    return {"chosen": chosen, "rejected": rejected}


def _check_side(messages: list[Message], side: str) -> None:
    """Check that a side is a conversation that ends with an answer.

    Raises RowError: data_roles, data_no_answer, data_marks, data_pair.
    """
    check_messages(messages)
    if messages[-1]["role"] != "assistant":
        reason = f"{side} does not end with a turn of the assistant"
        raise RowError(reason, None, "data_no_answer")
    mark = hidden_mark(messages[-1])
    if mark is not None:
        reason = f"{side} ends with an answer that is marked as one that is not learnt ({mark})"
        raise RowError(reason, "remove the mark, or leave the row out", "data_marks")
    if len(messages) < 2:
        cure = (
            "add a column prompt, name yours with data.columns.prompt=MY_COLUMN, or write both sides as "
            "lists of messages"
        )
        raise RowError(f"{side} is an answer without a prompt", cure, "data_pair")
