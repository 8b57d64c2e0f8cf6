"""Recognises the format of a row, and converts it to `messages`, or `chosen` and `rejected`.

The converted rows are what open-instruct reads (dataset_transformation.py:
sft_tulu_tokenize_and_truncate_v1, preference_tulu_tokenize_and_truncate_v1) and what TRL calls the
conversational format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from launch.config.schema import DataFormat, Kind
from launch.data.turns import (
    CONTENT_KEYS,
    ROLE_KEYS,
    Message,
    RowError,
    check_messages,
    describe_type,
    read_messages,
    read_text,
    read_turns,
)

_CHATS = ("messages", "conversations", "conversation", "dialogue", "dialog")
_PROMPTS = ("prompt", "question", "query", "input")
_COMPLETIONS = ("completion", "response", "answer", "output")
_VERIFIER_COLUMNS = ("ground_truth", "dataset")
_TEMPLATE_COLUMNS = ("tools",)  # columns that chat templates read besides the messages
_OTHERS = ("system", "instruction", "context", "chosen", "rejected")
_KNOWN = frozenset(
    (*_CHATS, *_PROMPTS, *_COMPLETIONS, *_TEMPLATE_COLUMNS, *_OTHERS, *_VERIFIER_COLUMNS)
)
# the columns that the conversion of a format reads
_COLUMNS = {
    DataFormat.chat: (*_CHATS, *_TEMPLATE_COLUMNS),
    DataFormat.sharegpt: (*_CHATS, "system"),
    DataFormat.alpaca: ("system", "instruction", "input", "context", *_COMPLETIONS),
    DataFormat.prompt_completion: ("system", *_PROMPTS, *_COMPLETIONS),
    DataFormat.preference: (
        "system",
        "instruction",
        "context",
        *_CHATS,
        *_PROMPTS,
        "chosen",
        "rejected",
    ),
    DataFormat.prompts: ("system", *_CHATS, *_PROMPTS, *_VERIFIER_COLUMNS),
}
# what a kind of stage trains on, and which columns its rows may have
_CONVERTED = {
    Kind.sft: "messages",
    Kind.dpo: "chosen and rejected",
    Kind.rm: "chosen and rejected",
    Kind.rlvr: "prompt, ground_truth and the other columns",
}
_EXPECTED = {
    Kind.sft: "messages, conversations, instruction and output, or prompt and completion",
    **dict.fromkeys((Kind.dpo, Kind.rm), "chosen and rejected, with or without prompt"),
    Kind.rlvr: "prompt or messages, and ground_truth",
}
# the kinds of stage that a format trains; a format that is not listed trains SFT stages
_TRAINED_KINDS = {
    DataFormat.preference: (Kind.dpo, Kind.rm),
    DataFormat.prompts: (Kind.rlvr,),
}


def recognise(row: Mapping[str, object], kind: Kind) -> DataFormat:
    """Return the format of a row by its columns. Raises RowError: data_columns."""
    names = {name for name, value in row.items() if value is not None}
    if kind == Kind.rlvr and not names.isdisjoint((*_PROMPTS, *_CHATS)):
        return DataFormat.prompts
    if kind in (Kind.dpo, Kind.rm) and {"chosen", "rejected"} <= names:
        return DataFormat.preference
    if kind != Kind.sft:
        raise _no_format(row, kind)
    chat_column = _find_column(row, _CHATS)
    if chat_column:
        return DataFormat.sharegpt if _is_sharegpt(row[chat_column]) else DataFormat.chat
    if "instruction" in names and not names.isdisjoint(_COMPLETIONS):
        return DataFormat.alpaca
    if not names.isdisjoint(_PROMPTS) and not names.isdisjoint(_COMPLETIONS):
        return DataFormat.prompt_completion
    raise _no_format(row, kind)


def _is_sharegpt(turns: object) -> bool:
    """Return whether the first turn of a chat names its role as ShareGPT does."""
    if not isinstance(turns, list) or not turns:
        return False
    return isinstance(turns[0], dict) and "from" in turns[0]


def convert(row: object, form: DataFormat, kind: Kind) -> dict[str, Any]:
    """Return the row as a trainer of `kind` reads it.

    It has `messages`, `chosen` and `rejected`, or `prompt`, each a list of messages.

    Raises RowError: data_columns, data_row, data_roles, data_no_answer, data_pair, no_ground_truth.
    """
    if not isinstance(row, Mapping):
        raise RowError(f"the row is {describe_type(row)}; an object with named columns is expected")
    if kind not in _TRAINED_KINDS.get(form, (Kind.sft,)):
        message = f"{form} rows can't train {kind} stages"
        raise RowError(message, f"they need {_EXPECTED[kind]}", "data_columns")
    if form == DataFormat.preference:
        return _convert_pair(row)
    if form == DataFormat.prompts:
        return _convert_prompt(row)
    messages = _CONVERTERS[form](row)
    check_messages(messages)
    if not any(message["role"] == "assistant" for message in messages):
        reason = "no turn of the assistant: nothing in this row carries loss"
        raise RowError(reason, None, "data_no_answer")
    converted: dict[str, Any] = {"messages": messages}
    for name in _TEMPLATE_COLUMNS:
        if row.get(name):
            converted[name] = row[name]
    return converted


def describe_conversion(form: DataFormat, columns: tuple[str, ...], kind: Kind) -> str:
    """Describe in a few words what is converted into what."""
    if form == DataFormat.chat and "messages" in columns:
        return "chat (messages), taken as it is"
    return f"{form} ({', '.join(columns)}), converted to {_CONVERTED[kind]}"


def columns_of(row: Mapping[str, object], form: DataFormat) -> tuple[str, ...]:
    """Return the columns that the conversion of this row reads."""
    return tuple(name for name in row if name in _COLUMNS[form])


def normalise_names(row: Mapping[str, object]) -> Mapping[str, object]:
    """Return the row with names of columns such as `Prompt` and ` Completion` in their usual form.

    The order of the columns stays.
    """
    if _KNOWN.issuperset(row):
        return row
    renamed = {}
    for name, value in row.items():
        usual_name = name.strip().lower()
        is_usual = usual_name in _KNOWN and usual_name not in row
        renamed[usual_name if is_usual else name] = value
    return renamed


def _no_format(row: Mapping[str, object], kind: Kind) -> RowError:
    """Return the error of a row whose columns are in no format that trains this kind of stage."""
    if kind == Kind.sft and {"chosen", "rejected"} <= set(row):
        message = "preference pairs can't train an sft stage"
        return RowError(message, "use a dpo or rm stage", "data_columns")
    columns = [f"{name!r} (null)" if value is None else repr(name) for name, value in row.items()]
    names = ", ".join(columns) or "none"
    has_conversation = not set(row).isdisjoint((*_CHATS, *_COMPLETIONS))
    if has_conversation and kind in (Kind.dpo, Kind.rm):
        message = f"a {kind} stage needs pairs, and the columns are {names}"
        return RowError(message, f"expected are {_EXPECTED[kind]}", "data_columns")
    rows = _find_nested_rows(row)
    if rows:
        cure = f"if {rows!r} is the list of rows, write it alone: jq -c '.{rows}[]'"
    else:
        example = _example_of_columns(row, kind)
        cure = f"expected are {_EXPECTED[kind]}; name yours, as in {example}"
    return RowError(f"the columns {names} fit no known format", cure, "data_columns")


def _example_of_columns(row: Mapping[str, object], kind: Kind) -> str:
    """Return overrides that name the columns, with the row's own names if there are as many."""
    known = ("chosen", "rejected")
    if kind == Kind.sft:
        known = ("prompt", "completion")
    elif kind == Kind.rlvr:
        known = ("prompt", "ground_truth")
    names = ["MY_COLUMN", "OTHER_COLUMN"]
    if len(row) == len(known) and all(map(str.isidentifier, row)):
        names = list(row)
    overrides = [f"data.columns.{column}={name}" for column, name in zip(known, names, strict=True)]
    return " ".join(overrides)


def _find_nested_rows(row: Mapping[str, object]) -> str | None:
    """Return the only column with a list of objects that are not turns; None without one.

    Such a file is one object around its rows.
    """
    keys_of_turns = {*ROLE_KEYS, *CONTENT_KEYS}
    columns = []
    for name, value in row.items():
        if not isinstance(value, list) or not value:
            continue
        first = value[0]
        if isinstance(first, dict) and keys_of_turns.isdisjoint(first):
            columns.append(name)
    return columns[0] if len(columns) == 1 else None


def _from_chat(row: Mapping[str, object]) -> list[Message]:
    value, column = _first_value(row, _CHATS)
    return read_messages(value, column)


def _from_sharegpt(row: Mapping[str, object]) -> list[Message]:
    return [*_system_turn(row), *_from_chat(row)]


def _from_alpaca(row: Mapping[str, object]) -> list[Message]:
    value, column = _first_value(row, _COMPLETIONS)
    answer = {"role": "assistant", "content": read_text(value, column)}
    return [*_system_turn(row), _instruction(row), answer]


def _instruction(row: Mapping[str, object]) -> Message:
    """Return the prompt of an Alpaca row: its instruction, and its input below it."""
    content = read_text(row.get("instruction"), "instruction")
    context = row.get("input") or row.get("context")
    if context:
        content += f"\n\n{read_text(context, 'input')}"
    return {"role": "user", "content": content}


def _from_prompt_completion(row: Mapping[str, object]) -> list[Message]:
    prompt, prompt_column = _first_value(row, _PROMPTS)
    prompt_turns = read_turns("user", prompt, prompt_column)
    completion, completion_column = _first_value(row, _COMPLETIONS)
    answer_turns = read_turns("assistant", completion, completion_column)
    return [*_system_turn(row), *prompt_turns, *answer_turns]


_CONVERTERS = {
    DataFormat.chat: _from_chat,
    DataFormat.sharegpt: _from_sharegpt,
    DataFormat.alpaca: _from_alpaca,
    DataFormat.prompt_completion: _from_prompt_completion,
}


def _convert_pair(row: Mapping[str, object]) -> dict[str, Any]:
    """Convert a pair, whose sides must end with an answer to the same conversation.

    Upstream takes the prompt from chosen alone (dataset_transformation.py:1536-1539).
    """
    prompt: list[Message] = _system_turn(row)
    prompt_column = _find_column(row, (*_CHATS, *_PROMPTS))
    if row.get("instruction") is not None:
        prompt.append(_instruction(row))
    elif prompt_column:
        prompt += read_turns("user", row[prompt_column], prompt_column)
    sides = {side: _read_side(row, side, prompt) for side in ("chosen", "rejected")}
    if sides["chosen"][:-1] != sides["rejected"][:-1]:
        message = (
            "chosen and rejected answer different conversations; only their last turn may differ"
        )
        raise RowError(message, None, "data_pair")
    if sides["chosen"] == sides["rejected"]:
        message = "chosen and rejected are equal, so there is nothing to prefer"
        raise RowError(message, "leave the row out", "data_pair")
    return dict(sides)


def _read_side(row: Mapping[str, object], side: str, prompt: list[Message]) -> list[Message]:
    """Return the conversation of one side of a pair, which may begin with the prompt already."""
    messages = read_turns("assistant", row.get(side), side)
    if messages[: len(prompt)] != prompt:
        messages = [*prompt, *messages]
    check_messages(messages)
    if messages[-1]["role"] != "assistant":
        reason = f"{side} does not end with a turn of the assistant"
        raise RowError(reason, None, "data_no_answer")
    if len(messages) < 2:
        cure = "add a column prompt, or write both sides as lists of messages"
        raise RowError(f"{side} is an answer without a prompt", cure, "data_pair")
    return messages


def _convert_prompt(row: Mapping[str, object]) -> dict[str, Any]:
    """Convert a prompt with its ground truth. The verifier gets every other column unchanged.

    A final answer in `messages` is left out. Raises RowError: no_ground_truth, data_row,
    data_roles.
    """
    messages = read_prompt(row)
    truth = row.get("ground_truth")
    if truth is None or truth in ("", [], {}):
        message = "the row has no ground_truth, so nothing can verify an answer"
        cure = "add the column ground_truth, or name yours with data.columns.ground_truth=MY_COLUMN"
        raise RowError(message, cure, "no_ground_truth")
    text = truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)
    prompt_column = _find_column(row, (*_CHATS, *_PROMPTS))
    converted = (prompt_column, "system", "ground_truth", "prompt")
    others = {name: value for name, value in row.items() if name not in converted}
    return {"prompt": messages, "ground_truth": text, **others}


def read_prompt(row: Mapping[str, object]) -> list[Message]:
    """Return the conversation that a model is to continue, without a final answer.

    Raises RowError: data_columns, data_row, data_roles, data_no_answer.
    """
    system = _system_turn(row)
    value, column = _first_value(row, (*_CHATS, *_PROMPTS))
    messages = [*system, *read_turns("user", value, column)]
    check_messages(messages)
    if messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages or messages[-1]["role"] == "system":
        raise RowError(f"{column} has no turn to answer", None, "data_no_answer")
    return messages


def _system_turn(row: Mapping[str, object]) -> list[Message]:
    """Return the column `system` as a turn; no turn without it."""
    value = row.get("system")
    if not value:
        return []
    return [{"role": "system", "content": read_text(value, "system")}]


def _first_value(row: Mapping[str, object], columns: tuple[str, ...]) -> tuple[object, str]:
    """Return the value and the name of the first of the columns that has a value.

    Raises RowError: data_columns.
    """
    name = _find_column(row, columns)
    if not name:
        message = f"the column {' or '.join(columns)} is missing or null"
        raise RowError(message, None, "data_columns")
    return row[name], name


def _find_column(row: Mapping[str, object], columns: tuple[str, ...]) -> str:
    """Return the first of the columns that has a value; "" if none has."""
    return next((name for name in columns if row.get(name) is not None), "")
