"""Recognises the format of a row, and converts it to `messages`, or `chosen` and `rejected`.

The converted rows are what open-instruct reads (dataset_transformation.py:
sft_tulu_tokenize_and_truncate_v1, preference_tulu_tokenize_and_truncate_v1) and what TRL calls the
conversational format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from launch.config.kinds import KINDS, DataFormat, Kind
from launch.config.schema import TrainOn
from launch.data import labels
from launch.data.choices import refuse_choices
from launch.data.columns import (
    COMPLETIONS,
    MEDIA,
    REASONING,
    TEXT,
    TOOLS,
    find_reasoning,
)
from launch.data.label_balance import LABEL
from launch.data.labels import LabelColumn
from launch.data.marks import take_marks
from launch.data.nested_rows import refuse_columns
from launch.data.pairs import convert_pair, is_pair
from launch.data.prompts import (
    CHATS,
    PROMPTS,
    SYSTEMS,
    column_of_question,
    find_column,
    find_filled,
    first_value,
    read_answer,
    read_chat,
    read_prompt_turns,
    read_question,
    read_start,
)
from launch.data.row_errors import RowError, not_a_row, path_of_text, read_text
from launch.data.tools import read_tools
from launch.data.truths import find_truth, read_truth
from launch.data.turns import Message, check_messages
from launch.data.unknown import explain_unknown, find_answers_beside

# the kinds of stage that a format trains; a format that is not listed trains those of answers
_OF_ANSWERS = tuple(kind for kind, row in KINDS.items() if row.has_answers)
_TRAINED_KINDS = {
    DataFormat.preference: (Kind.dpo, Kind.rm),
    DataFormat.prompts: (Kind.rlvr,),
    DataFormat.text: (Kind.sft,),
}


def recognise(row: Mapping[str, object], kind: Kind) -> DataFormat:
    """Return the format of a row by its columns. Raises RowError: data_columns."""
    refuse_columns(row)
    names = {name for name, value in row.items() if value is not None}
    if kind == Kind.rlvr and not names.isdisjoint((*PROMPTS, *CHATS, "instruction")):
        return DataFormat.prompts
    if KINDS[kind].is_paired and is_pair(names):
        return DataFormat.preference
    if not KINDS[kind].has_answers:
        raise explain_unknown(row, kind)
    chat_column = find_column(row, CHATS)
    if chat_column:
        return DataFormat.sharegpt if _is_sharegpt(row[chat_column]) else DataFormat.chat
    if "instruction" in names and not names.isdisjoint(COMPLETIONS):
        return DataFormat.alpaca
    if not names.isdisjoint(PROMPTS) and not names.isdisjoint(COMPLETIONS):
        return DataFormat.prompt_completion
    raise explain_unknown(row, kind)


def ends_with_answer(row: Mapping[str, object]) -> bool:
    """Return whether the conversation of a row, or its prompt, ends with an answer."""
    try:
        return bool(read_asked(row)[-1]["role"] == "assistant")
    except RowError:
        return False


def _is_sharegpt(turns: object) -> bool:
    """Return whether the first turn of a chat names its role as ShareGPT does."""
    if not isinstance(turns, list) or not turns:
        return False
    return isinstance(turns[0], dict) and "from" in turns[0]


def convert(
    row: object,
    form: DataFormat,
    kind: Kind,
    train_on: TrainOn = TrainOn.all,
    *,
    needs_truth: bool = True,
    label: LabelColumn | None = None,
) -> dict[str, Any]:
    """Return the row as a trainer of `kind` reads it.

    It has `messages`, `chosen` and `rejected`, or `prompt`, each a list of messages; or a `text`.
    With `train_on` marked, each message also has a mark whether it is learnt. For KTO it also has a
    `label`, which is read as `label` describes. A row of prompts is refused without a ground truth
    where `needs_truth`.

    Raises RowError: data_columns, data_row, data_roles, data_marks, data_no_answer, data_pair,
    data_label, no_ground_truth.
    """
    if not isinstance(row, Mapping):
        raise not_a_row(row)
    _refuse_media(row)
    if kind not in _TRAINED_KINDS.get(form, _OF_ANSWERS):
        message = f"{form} rows can't train {kind} stages"
        raise RowError(message, f"they need {KINDS[kind].expected}", "data_columns")
    if form == DataFormat.preference:
        return {**convert_pair(row), **_read_tools(row)}
    if form == DataFormat.prompts:
        return _convert_prompt(row, needs_truth=needs_truth)
    if form == DataFormat.text:
        value, column = first_value(row, (TEXT,))
        return {TEXT: read_text(value, column)}
    if kind == Kind.sft:
        labels.refuse_bad_answer(row)
    messages = _CONVERTERS[form](row)
    check_messages(messages)
    if kind == Kind.kto:
        labels.check_labelled(messages, _cure_beside_chat(row))
        is_good = labels.read_label(row, label or LabelColumn())
        return {"messages": messages, LABEL: is_good, **_read_tools(row)}
    if not any(message["role"] == "assistant" for message in messages):
        reason = "no turn of the assistant: nothing in this row carries loss"
        prompts = (
            "prompts without answers train RLVR (a stage of kind rlvr; `launch new --kind rlvr`)"
        )
        raise RowError(reason, _cure_beside_chat(row) or prompts, "data_no_answer")
    _refuse_open_chat(row, messages)
    trained_turns = take_marks(messages, train_on)
    return {"messages": messages, **trained_turns, **_read_tools(row)}


def _cure_beside_chat(row: Mapping[str, object]) -> str | None:
    """Return the cure for a conversation without an answer that has one in another column; None if
    no column may have one.
    """
    chat = find_column(row, CHATS)
    answers = find_answers_beside(row) if chat else []
    if not answers:
        return None
    columns = f"data.columns.prompt={chat}"
    if answers[0] not in COMPLETIONS:
        columns += f" data.columns.completion={answers[0]}{path_of_text(row[answers[0]])}"
    return f"learn {answers[0]!r} as its answer: {columns}"


def _refuse_open_chat(row: Mapping[str, object], messages: list[Message]) -> None:
    """Refuse a conversation that ends without an answer, which stands in another column: its earlier
    answers alone would be learnt. Raises RowError: data_no_answer.
    """
    cure = _cure_beside_chat(row)
    role = messages[-1]["role"]
    if role != "assistant" and cure is not None:
        answer = find_answers_beside(row)[0]
        reason = (
            f"the conversation ends with a turn of {role}, and {answer!r} may be what answers it"
        )
        raise RowError(reason, cure, "data_no_answer")


def _refuse_media(row: Mapping[str, object]) -> None:
    """Refuse a row with pictures, films or sounds. Raises RowError: data_row."""
    for name in MEDIA:
        if row.get(name):
            cure = "only text can be trained on: leave out such rows, or the column if the text needs none"
            raise RowError(f"the row has {name}", cure)


def _read_tools(row: Mapping[str, object]) -> dict[str, str]:
    """Return the column `tools`, in JSON; nothing for a row without tools.

    Both open-instruct (dataset_transformation.py:951) and TRL (trl/trainer/sft_trainer.py:1316)
    read JSON. A list would come back changed: the loader of their files writes the keys of other
    rows' tools into it, and dates for texts that look like one.

    Raises RowError: data_row.
    """
    column = find_filled(row, TOOLS)
    tools = read_tools(row[column], column) if column else []
    return {"tools": json.dumps(tools, ensure_ascii=False)} if tools else {}


def describe_conversion(form: DataFormat, columns: tuple[str, ...], kind: Kind) -> str:
    """Describe in a few words what is converted into what."""
    if form == DataFormat.chat and columns == ("messages",):
        return "chat (messages), taken as it is"
    if form == DataFormat.text:
        return "text, every token of which is learnt"
    return f"{form} ({', '.join(columns)}), converted to {KINDS[kind].converted}"


def _from_question(row: Mapping[str, object]) -> list[Message]:
    """Return a row of an instruction or a prompt, and its answer, as a conversation."""
    completion, column = first_value(row, COMPLETIONS)
    refuse_choices(row, column)
    question = read_question(row, completion)
    start = read_start(row)
    if question[:1] == start:  # the system prompt stands in both
        start = []
    answer_turns = read_answer(row, column, row.get(column_of_question(row)))
    answer_turns[-1] |= _read_reasoning(row)
    if answer_turns[0]["role"] in ("system", "user"):
        return _from_whole(start, answer_turns, question, column)
    return [*start, *question, *answer_turns]


def _from_whole(
    start: list[Message], whole: list[Message], question: list[Message], column: str
) -> list[Message]:
    """Return an answer that is a whole conversation behind the row's system prompt and history.

    Raises RowError (data_row) unless the conversation asks the row's question.
    """
    asked = [message["content"] for message in whole if message["role"] == "user"]
    missing = [turn for turn in question if turn["role"] == "user" and turn["content"] not in asked]
    if missing:
        message = f"{column} is a conversation that does not ask the row's question"
        raise RowError(message, "write the answer alone, or leave the question out")
    return whole if whole[: len(start)] == start else [*start, *whole]


def _read_reasoning(row: Mapping[str, object]) -> dict[str, object]:
    """Return what a row's answer thinks first, under the names that templates read."""
    column = find_reasoning(row)
    return dict.fromkeys(REASONING, row[column]) if column else {}


_CONVERTERS = {
    DataFormat.chat: read_chat,
    DataFormat.sharegpt: read_chat,
    DataFormat.alpaca: _from_question,
    DataFormat.prompt_completion: _from_question,
}


def _convert_prompt(row: Mapping[str, object], *, needs_truth: bool) -> dict[str, Any]:
    """Convert a prompt with its ground truth. The verifier gets every other column unchanged.

    Without `needs_truth` a prompt may stand alone: a function of the user's judges its answers. A
    final answer in `messages` is left out. Raises RowError: no_ground_truth, data_row, data_roles,
    data_no_answer.
    """
    messages = read_prompt(row)
    if needs_truth:
        refuse_choices(row, "ground_truth")
    if needs_truth and not find_truth(row):
        message = "the row has no ground_truth, so nothing can verify an answer"
        cure = (
            "add the column ground_truth, name yours with data.columns.ground_truth=MY_COLUMN or "
            "judge answers without one by a function of your own (recipe.verifier=PATH.py:FUNCTION)"
        )
        raise RowError(message, cure, "no_ground_truth")
    truth = read_truth(row, is_compared=needs_truth)
    asked = (_column_of_prompt(row), *SYSTEMS, "history", "ground_truth", "prompt")
    others = {name: value for name, value in row.items() if name not in asked}
    if truth is None:
        return {"prompt": messages, **others}
    return {"prompt": messages, "ground_truth": truth, **others}


def _column_of_prompt(row: Mapping[str, object]) -> str:
    return find_column(row, CHATS) or column_of_question(row)


def read_prompt(row: Mapping[str, object]) -> list[Message]:
    """Return the conversation that a model is to continue, without a final answer.

    Raises RowError: data_columns, data_row, data_roles, data_no_answer.
    """
    messages = read_asked(row)
    if messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages or messages[-1]["role"] == "system":
        column = _column_of_prompt(row)
        raise RowError(f"{column} has no turn to answer", None, "data_no_answer")
    return messages


def read_asked(row: Mapping[str, object]) -> list[Message]:
    """Return the conversation of a row of prompts, with a final answer if it has one.

    Raises RowError: data_columns, data_row, data_roles, data_no_answer.
    """
    start = read_start(row)
    chat = find_column(row, CHATS)
    messages = read_prompt_turns(row[chat], chat) if chat else read_question(row)
    if messages[:1] != start:
        messages = [*start, *messages]
    check_messages(messages)
    return messages
