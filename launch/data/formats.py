"""Recognise the usual shapes of a row and convert them: chats to `messages`, pairs to `chosen` and
`rejected`.

The converted rows are what open-instruct reads (dataset_transformation.py:
sft_tulu_tokenize_and_truncate_v1, preference_tulu_tokenize_and_truncate_v1) and what TRL calls the
conversational format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from launch.config.schema import DataFormat, Kind
from launch.worker.finding import Finding, Fix

Message = dict[str, Any]

ROLES = ("system", "user", "assistant", "tool")
_ROLE_NAMES = {
    **{role: role for role in ROLES},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "bot", "model", "chatgpt", "ai"), "assistant"),
    **dict.fromkeys(("observation", "function"), "tool"),
    "developer": "system",
}
_CHATS = ("messages", "conversations", "conversation", "dialogue", "dialog")
_PROMPTS = ("prompt", "question", "query", "input")
_COMPLETIONS = ("completion", "response", "answer", "output")
_CONTENTS = ("content", "value")
_ROLE_KEYS = ("role", "from")
# OpenAI's and axolotl's marks of a turn that is not to be learned
_NOT_TRAINED = {"weight": 0, "train": False}
_TRUTHS = ("ground_truth", "dataset")
_KEPT = ("tools",)  # a column that chat templates read beside the messages
_OTHERS = ("system", "instruction", "context", "chosen", "rejected")
_KNOWN = frozenset((*_CHATS, *_PROMPTS, *_COMPLETIONS, *_KEPT, *_OTHERS, *_TRUTHS))
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


class RowError(ValueError):
    """A row that a trainer can't use; the caller knows its place."""

    def __init__(self, message: str, cure: Fix | str | None = None, id: str = "data_row") -> None:
        self.id, self.cure = id, cure
        super().__init__(message)

    def problem(self, place: str) -> Finding:
        return Finding.error(self.id, str(self), place, self.cure)


def recognise(row: Mapping[str, object], kind: Kind) -> DataFormat:
    """Return the format of a row by its columns. Raises RowError: data_columns."""
    names = {name for name, value in row.items() if value is not None}
    if kind == Kind.rlvr and not names.isdisjoint((*_PROMPTS, *_CHATS)):
        return DataFormat.prompts
    if kind in (Kind.dpo, Kind.rm) and {"chosen", "rejected"} <= names:
        return DataFormat.preference
    if kind != Kind.sft:
        raise _no_format(row, kind)
    if chat := _name_of(row, _CHATS):
        turns = row[chat]
        is_sharegpt = (
            isinstance(turns, list) and turns and isinstance(turns[0], dict) and "from" in turns[0]
        )
        return DataFormat.sharegpt if is_sharegpt else DataFormat.chat
    if "instruction" in names and not names.isdisjoint(_COMPLETIONS):
        return DataFormat.alpaca
    if not names.isdisjoint(_PROMPTS) and not names.isdisjoint(_COMPLETIONS):
        return DataFormat.prompt_completion
    raise _no_format(row, kind)


def convert(row: object, form: DataFormat, kind: Kind) -> dict[str, Any]:
    """Return the row as a trainer of `kind` reads it: `messages`, `chosen` and `rejected`, or
    `prompt`, each a list of messages.

    Raises RowError: data_columns, data_row, data_roles, data_no_answer, data_pair, no_ground_truth.
    """
    if not isinstance(row, Mapping):
        raise RowError(f"the row is {_describe(row)}; an object with named columns is expected")
    trains = {DataFormat.preference: (Kind.dpo, Kind.rm), DataFormat.prompts: (Kind.rlvr,)}.get(
        form, (Kind.sft,)
    )
    if kind not in trains:
        raise RowError(
            f"{form} rows can't train {kind} stages", f"they need {_EXPECTED[kind]}", "data_columns"
        )
    if form == DataFormat.preference:
        return _convert_pair(row)
    if form == DataFormat.prompts:
        return _convert_prompt(row)
    messages = _CONVERTERS[form](row)
    check_messages(messages)
    if not any(message["role"] == "assistant" for message in messages):
        raise RowError(
            "no turn of the assistant: nothing in this row carries loss", None, "data_no_answer"
        )
    return {"messages": messages, **{name: row[name] for name in _KEPT if row.get(name)}}


def describe_conversion(form: DataFormat, columns: tuple[str, ...], kind: Kind) -> str:
    """Describe in a few words what is converted into what."""
    if form == DataFormat.chat and "messages" in columns:
        return "chat (messages), taken as it is"
    return f"{form} ({', '.join(columns)}), converted to {_CONVERTED[kind]}"


def columns_of(row: Mapping[str, object], form: DataFormat) -> tuple[str, ...]:
    """Return the columns that the conversion of this row reads."""
    known = {
        DataFormat.chat: (*_CHATS, *_KEPT),
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
        DataFormat.prompts: ("system", *_CHATS, *_PROMPTS, *_TRUTHS),
    }[form]
    return tuple(name for name in row if name in known)


def normalise_names(row: Mapping[str, object]) -> Mapping[str, object]:
    """Return the row with the usual names of columns in lower case, as `Prompt` and ` Completion`,
    in its order.
    """
    if _KNOWN.issuperset(row):
        return row
    lower = {name: name.strip().lower() for name in row}
    return {
        lower[name] if lower[name] in _KNOWN and lower[name] not in row else name: value
        for name, value in row.items()
    }


def check_messages(messages: list[Message]) -> None:
    """Check the order of the turns. Raises RowError: data_roles."""
    for number, message in enumerate(messages):
        if message["role"] == "system" and number > 0:
            raise RowError(
                f"turn {number + 1} is a system turn; it may only be the first", None, "data_roles"
            )
    spoken = [message["role"] for message in messages if message["role"] != "system"]
    if not spoken:
        raise RowError("the row has only a system turn", None, "data_no_answer")


def _no_format(row: Mapping[str, object], kind: Kind) -> RowError:
    names = (
        ", ".join(
            repr(name) if value is not None else f"{name!r} (null)" for name, value in row.items()
        )
        or "none"
    )
    if kind == Kind.sft and {"chosen", "rejected"} <= set(row):
        return RowError(
            "preference pairs can't train an sft stage", "use a dpo or rm stage", "data_columns"
        )
    if kind in (Kind.dpo, Kind.rm) and set(row).intersection((*_CHATS, *_COMPLETIONS)):
        message = f"a {kind} stage needs pairs, and the columns are {names}"
        return RowError(message, f"expected are {_EXPECTED[kind]}", "data_columns")
    rows = _list_of_rows(row)
    if rows:
        cure = f"if {rows!r} is the list of rows, write it alone: jq -c '.{rows}[]'"
        return RowError(f"the columns {names} fit no known format", cure, "data_columns")
    known = {Kind.sft: ("prompt", "completion"), Kind.rlvr: ("prompt", "ground_truth")}.get(
        kind, ("chosen", "rejected")
    )
    own = (
        list(row)
        if len(row) == len(known) and all(map(str.isidentifier, row))
        else ["MY_COLUMN", "OTHER_COLUMN"]
    )
    example = " ".join(
        f"data.columns.{name}={column}" for name, column in zip(known, own, strict=True)
    )
    cure = f"expected are {_EXPECTED[kind]}; name yours, as in {example}"
    return RowError(f"the columns {names} fit no known format", cure, "data_columns")


def _list_of_rows(row: Mapping[str, object]) -> str | None:
    """Return the only column with a list of objects that are not turns: the file is one object
    around its rows.
    """
    lists = [(name, value[0]) for name, value in row.items() if isinstance(value, list) and value]
    rows = [
        name
        for name, first in lists
        if isinstance(first, dict) and not {*_ROLE_KEYS, *_CONTENTS} & set(first)
    ]
    return rows[0] if len(rows) == 1 else None


def _from_chat(row: Mapping[str, object]) -> list[Message]:
    return _messages(*_first(row, _CHATS))


def _from_alpaca(row: Mapping[str, object]) -> list[Message]:
    answer = _text(*_first(row, _COMPLETIONS))
    return [*_system(row), _instruction(row), {"role": "assistant", "content": answer}]


def _instruction(row: Mapping[str, object]) -> Message:
    """Return the prompt of an Alpaca row."""
    instruction, extra = (
        _text(row.get("instruction"), "instruction"),
        row.get("input") or row.get("context"),
    )
    return {
        "role": "user",
        "content": f"{instruction}\n\n{_text(extra, 'input')}" if extra else instruction,
    }


def _from_prompt_completion(row: Mapping[str, object]) -> list[Message]:
    prompt = _turns("user", *_first(row, _PROMPTS))
    return [*_system(row), *prompt, *_turns("assistant", *_first(row, _COMPLETIONS))]


_CONVERTERS = {
    DataFormat.chat: _from_chat,
    DataFormat.sharegpt: lambda row: [*_system(row), *_from_chat(row)],
    DataFormat.alpaca: _from_alpaca,
    DataFormat.prompt_completion: _from_prompt_completion,
}


def _convert_pair(row: Mapping[str, object]) -> dict[str, Any]:
    """Convert a pair. Both sides end with the assistant's answer to the same conversation: upstream
    takes the prompt from chosen alone (dataset_transformation.py:1536-1539).
    """
    start: list[Message] = _system(row)
    name = _name_of(row, (*_CHATS, *_PROMPTS))
    if row.get("instruction") is not None:
        start.append(_instruction(row))
    elif name:
        start += _turns("user", row[name], name)
    sides = {}
    for side in ("chosen", "rejected"):
        answer = _turns("assistant", row.get(side), side)
        sides[side] = answer if answer[: len(start)] == start else [*start, *answer]
        check_messages(sides[side])
        if sides[side][-1]["role"] != "assistant":
            raise RowError(
                f"{side} does not end with a turn of the assistant", None, "data_no_answer"
            )
        if len(sides[side]) < 2:
            cure = "add a column prompt, or write both sides as lists of messages"
            raise RowError(f"{side} is an answer without a prompt", cure, "data_pair")
    if sides["chosen"][:-1] != sides["rejected"][:-1]:
        message = (
            "chosen and rejected answer different conversations; only their last turn may differ"
        )
        raise RowError(message, None, "data_pair")
    if sides["chosen"] == sides["rejected"]:
        raise RowError(
            "chosen and rejected are equal, so there is nothing to prefer",
            "leave the row out",
            "data_pair",
        )
    return dict(sides)


def _convert_prompt(row: Mapping[str, object]) -> dict[str, Any]:
    """Convert a prompt with its ground truth; a verifier gets every other column as it is.

    A final answer in `messages` is left out. Raises RowError: no_ground_truth, data_row,
    data_roles.
    """
    messages, name = read_prompt(row), _name_of(row, (*_CHATS, *_PROMPTS))
    truth = row.get("ground_truth")
    if truth is None or truth in ("", [], {}):
        cure = "add the column ground_truth, or name yours with data.columns.ground_truth=MY_COLUMN"
        raise RowError(
            "the row has no ground_truth, so nothing can verify an answer", cure, "no_ground_truth"
        )
    text = truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)
    others = {
        key: value
        for key, value in row.items()
        if key not in (name, "system", "ground_truth", "prompt")
    }
    return {"prompt": messages, "ground_truth": text, **others}


def read_prompt(row: Mapping[str, object]) -> list[Message]:
    """Return the conversation that a row asks a model to go on with, without a final answer. Raises
    RowError: data_columns, data_row, data_roles, data_no_answer.
    """
    names = (*_CHATS, *_PROMPTS)
    messages = [*_system(row), *_turns("user", *_first(row, names))]
    check_messages(messages)
    if messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages or messages[-1]["role"] == "system":
        raise RowError(f"{_name_of(row, names)} has no turn to answer", None, "data_no_answer")
    return messages


def _system(row: Mapping[str, object]) -> list[Message]:
    value = row.get("system")
    return [{"role": "system", "content": _text(value, "system")}] if value else []


def _turns(role: str, value: object, column: str) -> list[Message]:
    """Return a text, one message or a list of messages as messages; a text is a turn of `role`."""
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return [{"role": role, "content": _text(value, column)}]
    return _messages(value, column)


def _messages(value: object, column: str) -> list[Message]:
    if isinstance(value, str):
        value = _parse_list(value)  # a cell of a table
    if not isinstance(value, list):
        raise RowError(f"{column} is {_describe(value)}; a list of messages is expected")
    if not value:
        raise RowError(f"{column} is an empty list", None, "data_no_answer")
    return [_message(turn, f"turn {number} of {column}") for number, turn in enumerate(value, 1)]


def _parse_list(text: str) -> object:
    """Return the list that a text is the JSON of; the text itself if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, list) else text


def _message(turn: object, place: str) -> Message:
    """Return a turn as a message with `role` and `content`. Raises RowError: data_row,
    data_roles.
    """
    if not isinstance(turn, dict):
        raise RowError(f"{place} is {_describe(turn)}; an object with role is expected")
    named = next((turn[key] for key in _ROLE_KEYS if turn.get(key) is not None), None)
    if named is None:
        keys = ", ".join(map(repr, turn)) or "nothing"
        raise RowError(f"{place} has no 'role'; it has {keys}", None, "data_roles")
    role = _ROLE_NAMES.get(str(named).lower())
    if role is None:
        raise RowError(
            f"{place} has the unknown role {named!r}",
            f"known are {', '.join(_ROLE_NAMES)}",
            "data_roles",
        )
    rest = {
        key: kept
        for key, kept in turn.items()
        if key not in (*_ROLE_KEYS, *_CONTENTS) and kept is not None
    }
    if role == "assistant":
        _refuse_marks(rest, place)
    content = next((turn[key] for key in _CONTENTS if turn.get(key) is not None), None)
    if isinstance(content, list):
        content = _join_parts(content, place)
    # a call of a tool has no text of its own, a system prompt may be empty
    is_empty_allowed = (content is None and rest.get("tool_calls")) or (
        content == "" and role in ("system", "tool")
    )
    return {"role": role, "content": "" if is_empty_allowed else _text(content, place), **rest}


def _refuse_marks(rest: Mapping[str, object], place: str) -> None:
    """Refuse what would be trained on otherwise than the row means."""
    for key, value in _NOT_TRAINED.items():
        if key in rest and rest[key] == value:
            cure = "end the conversation before it, or remove the mark to learn that answer too"
            raise RowError(
                f"{place} has {key} {rest[key]!r}, but the trainers learn every answer", cure
            )
    if "function_call" in rest:
        raise RowError(
            f"{place} has a function_call, which chat templates leave out", "write it as tool_calls"
        )


def _join_parts(content: list[object], place: str) -> object:
    """Return the texts of OpenAI's parts (`{type: text, text: ...}`), a line each; a list of other
    things as it is.
    """
    if not content or not all(isinstance(part, dict) and "type" in part for part in content):
        return content
    parts = [part for part in content if isinstance(part, dict)]
    other = next((part["type"] for part in parts if part["type"] != "text"), None)
    if other is not None:
        raise RowError(f"{place} has a part of type {other!r}", "only text can be trained on")
    return "\n".join(_text(part.get("text"), place) for part in parts)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise RowError(f"{name} is {_describe(value)} where text belongs")
    if not value.strip():
        raise RowError(f"{name} is empty")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RowError(
                f"{name} contains half of a character pair ({value[error.start]!r})"
            ) from error
    return value


def _first(row: Mapping[str, object], names: tuple[str, ...]) -> tuple[object, str]:
    """Return the value and the name of the first of the columns that has a value. Raises RowError:
    data_columns.
    """
    name = _name_of(row, names)
    if not name:
        raise RowError(f"the column {' or '.join(names)} is missing or null", None, "data_columns")
    return row[name], name


def _name_of(row: Mapping[str, object], names: tuple[str, ...]) -> str:
    return next((name for name in names if row.get(name) is not None), "")


def _describe(value: object) -> str:
    """Describe a value of the wrong type."""
    names = {
        type(None): "null",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "a text",
    }
    return {**names, list: "a list", dict: "an object"}.get(type(value), type(value).__name__)
