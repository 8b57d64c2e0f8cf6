"""Reads the turns of a conversation as messages with `role` and `content`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
CONTENT_KEYS = ("content", "value")
ROLE_KEYS = ("role", "from")
# OpenAI's and axolotl's marks of a turn that is not to be learned
_NOT_TRAINED = {"weight": 0, "train": False}


class RowError(ValueError):
    """A row that a trainer can't use; the caller knows its place."""

    def __init__(self, message: str, cure: Fix | str | None = None, id: str = "data_row") -> None:
        self.id = id
        self.cure = cure
        super().__init__(message)

    def problem(self, place: str) -> Finding:
        """Return the error as a finding; `place` is the row's file and line."""
        return Finding.error(self.id, str(self), place, self.cure)


def read_turns(role: str, value: object, column: str) -> list[Message]:
    """Return a text, one message or a list of messages as messages.

    A text becomes a turn of `role`. `column` is used in errors.
    """
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return [{"role": role, "content": read_text(value, column)}]
    return read_messages(value, column)


def read_messages(value: object, column: str) -> list[Message]:
    """Return a list of turns as messages. In a cell of a table, the list is written as JSON."""
    if isinstance(value, str):
        value = _parse_list(value)
    if not isinstance(value, list):
        raise RowError(f"{column} is {describe_type(value)}; a list of messages is expected")
    if not value:
        raise RowError(f"{column} is an empty list", None, "data_no_answer")
    messages = []
    for number, turn in enumerate(value, 1):
        message = _read_message(turn, f"turn {number} of {column}")
        messages.append(message)
    return messages


def _parse_list(text: str) -> object:
    """Return the list that a text holds as JSON; the text itself if it holds none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, list) else text


def _read_message(turn: object, place: str) -> Message:
    """Return a turn as a message with `role` and `content`.

    Raises RowError: data_row, data_roles.
    """
    if not isinstance(turn, dict):
        raise RowError(f"{place} is {describe_type(turn)}; an object with role is expected")
    role = _read_role(turn, place)
    given = {key: value for key, value in turn.items() if value is not None}
    rest = {key: given[key] for key in given if key not in (*ROLE_KEYS, *CONTENT_KEYS)}
    if role == "assistant":
        _refuse_marks(rest, place)
    content = _first_given(turn, CONTENT_KEYS)
    if isinstance(content, list):
        content = _join_parts(content, place)
    calls_tool_only = content is None and bool(rest.get("tool_calls"))
    is_empty_allowed = content == "" and role in ("system", "tool")
    text = "" if calls_tool_only or is_empty_allowed else read_text(content, place)
    return {"role": role, "content": text, **rest}


def _read_role(turn: Mapping[str, object], place: str) -> str:
    """Return the role of a turn, one of ROLES. Raises RowError: data_roles."""
    name = _first_given(turn, ROLE_KEYS)
    if name is None:
        keys = ", ".join(map(repr, turn)) or "nothing"
        raise RowError(f"{place} has no 'role'; it has {keys}", None, "data_roles")
    role = _ROLE_NAMES.get(str(name).lower())
    if role is None:
        cure = f"known are {', '.join(_ROLE_NAMES)}"
        raise RowError(f"{place} has the unknown role {name!r}", cure, "data_roles")
    return role


def _first_given(turn: Mapping[str, object], keys: tuple[str, ...]) -> object:
    """Return the value of the first of the keys that has one; None without any."""
    for key in keys:
        if turn.get(key) is not None:
            return turn[key]
    return None


def _refuse_marks(rest: Mapping[str, object], place: str) -> None:
    """Refuse an answer that the row excludes from training, and a call that a template leaves out.

    `rest` has the keys of the turn other than role and content. Raises RowError: data_row.
    """
    for key, value in _NOT_TRAINED.items():
        if key in rest and rest[key] == value:
            message = f"{place} has {key} {rest[key]!r}, but the trainers learn every answer"
            cure = "end the conversation before it, or remove the mark to learn that answer too"
            raise RowError(message, cure)
    if "function_call" in rest:
        message = f"{place} has a function_call, which chat templates leave out"
        raise RowError(message, "write it as tool_calls")


def _join_parts(content: list[object], place: str) -> object:
    """Return the texts of OpenAI's parts (`{type: text, text: ...}`), a line each.

    A list of anything else is returned unchanged.
    """
    parts = [part for part in content if isinstance(part, dict) and "type" in part]
    if not content or len(parts) < len(content):
        return content
    for part in parts:
        if part["type"] != "text":
            message = f"{place} has a part of type {part['type']!r}"
            raise RowError(message, "only text can be trained on")
    return "\n".join(read_text(part.get("text"), place) for part in parts)


def read_text(value: object, name: str) -> str:
    """Return a text that is not empty and can be encoded; `name` is used in errors.

    Raises RowError: data_row.
    """
    if not isinstance(value, str):
        raise RowError(f"{name} is {describe_type(value)} where text belongs")
    if not value.strip():
        raise RowError(f"{name} is empty")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            message = f"{name} contains half of a character pair ({value[error.start]!r})"
            raise RowError(message) from error
    return value


def check_messages(messages: list[Message]) -> None:
    """Check the order of the turns. Raises RowError: data_roles."""
    for number, message in enumerate(messages):
        if message["role"] == "system" and number > 0:
            reason = f"turn {number + 1} is a system turn; it may only be the first"
            raise RowError(reason, None, "data_roles")
    if all(message["role"] == "system" for message in messages):
        raise RowError("the row has only a system turn", None, "data_no_answer")


def describe_type(value: object) -> str:
    """Describe a value of the wrong type."""
    names = {
        type(None): "null",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)
