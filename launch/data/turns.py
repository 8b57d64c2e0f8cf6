"""Reads the turns of a conversation as messages with `role` and `content`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from launch.data.marks import marks_of
from launch.data.row_errors import RowError, describe_type, parse_list, read_text
from launch.data.tools import read_calls

Message = dict[str, Any]

ROLES = ("system", "user", "assistant", "tool")
_ROLE_NAMES = {
    **{role: role for role in ROLES},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "bot", "model", "chatgpt", "ai"), "assistant"),
    **dict.fromkeys(("observation", "function", "ipython"), "tool"),
    **dict.fromkeys(("tool_response", "function_response", "function-response"), "tool"),
    "developer": "system",
    "environment": "environment",
}
# roles of a turn whose content is a call of a tool, in JSON
_CALL_ROLES = ("function_call", "tool_call", "function-call")
CONTENT_KEYS = ("content", "value")
ROLE_KEYS = ("role", "from")
# keys of an object that holds a question and its answer
_ASKED = ("human", "user", "input", "question", "instruction", "prompt", "query")
_ANSWERED = ("assistant", "gpt", "bot", "output", "answer", "response", "completion")
# keys of a turn that name a call of a tool without one of its own texts
_CALL_KEYS = ("tool_calls", "function_calls")
# Templates read what a model thinks before it answers under one of these names.
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_SPEAKER = re.compile(r"(?:^|\n\n)(Human|Assistant):[ \n]?")  # of Anthropic's transcripts
_SPEAKER_OF_LINE = re.compile(r"(?:^|\n)(Human|Assistant):[ \n]?")  # of BELLE's


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
    """Return a list of turns as messages. In a cell of a table, the list is written as JSON.

    Raises RowError: data_row, data_roles, data_no_answer.
    """
    if isinstance(value, str):
        value = parse_list(value)
    if not isinstance(value, list):
        raise RowError(f"{column} is {describe_type(value)}; a list of messages is expected")
    if not value:
        raise RowError(f"{column} is an empty list", None, "data_no_answer")
    messages: list[Message] = []
    for number, turn in enumerate(value, 1):
        place = f"turn {number} of {column}"
        for message in _read_turn(turn, place):
            _append(messages, message, is_call=_is_call(turn))
    _choose_role_of_results(messages)
    return messages


def read_history(value: object) -> list[Message]:
    """Return earlier turns: a list of pairs of a question and its answer, or of messages. In a cell
    of a table, the list is written as JSON.

    Raises RowError: data_row, data_roles.
    """
    if isinstance(value, str):
        value = parse_list(value)
    if value is None or value in ("", []):
        return []
    if not isinstance(value, list):
        message = f"history is {describe_type(value)}; a list of pairs is expected"
        raise RowError(message, "write each as [question, answer]")
    if isinstance(value[0], dict):
        return read_messages(value, "history")
    messages = []
    for number, pair in enumerate(value, 1):
        if not isinstance(pair, list) or len(pair) != 2:
            message = f"item {number} of history is {describe_type(pair)}; a pair is expected"
            raise RowError(message, "write each as [question, answer]")
        for role, text in zip(("user", "assistant"), pair, strict=True):
            messages.append({"role": role, "content": read_text(text, f"item {number} of history")})
    return messages


def is_transcript(text: object) -> bool:
    """Return whether a text has paragraphs or lines that begin with `Human:` and `Assistant:`."""
    if not isinstance(text, str) or not text.lstrip().startswith("Human:"):
        return False
    return "\nAssistant:" in text


def read_transcript(text: object, column: str) -> list[Message] | None:
    """Return a text whose paragraphs, or else lines, begin with `Human:` and `Assistant:` as
    messages; None for any other value.

    A last turn without words, which a prompt ends with, is left out.

    Raises RowError: data_row.
    """
    if not isinstance(text, str) or not is_transcript(text):
        return None
    pattern = _SPEAKER if "\n\nAssistant:" in text else _SPEAKER_OF_LINE
    parts = pattern.split(text.lstrip())
    if not parts[-1].strip() and parts[-2] == "Assistant":
        parts = parts[:-2]
    messages = []
    for speaker, words in zip(parts[1::2], parts[2::2], strict=True):
        role = _ROLE_NAMES[speaker.lower()]
        messages.append({"role": role, "content": read_text(words.strip(), column)})
    return messages


def _is_call(turn: object) -> bool:
    """Return whether the content of a turn is a call of a tool."""
    if not isinstance(turn, dict):
        return False
    return str(_first_given(turn, ROLE_KEYS)).lower() in _CALL_ROLES


def _append(messages: list[Message], message: Message, *, is_call: bool) -> None:
    """Append a message. Calls that stand in turns of their own belong to the answer before them.

    Raises RowError: data_marks.
    """
    if is_call and messages and messages[-1]["role"] == "assistant":
        if marks_of(message) != marks_of(messages[-1]):
            reason = "a call and the answer before it are one turn, and their marks differ"
            raise RowError(reason, "give both the same mark", "data_marks")
        calls = [*messages[-1].get("tool_calls", ()), *message["tool_calls"]]
        messages[-1] = {**messages[-1], "tool_calls": calls}
        return
    messages.append(message)


def _choose_role_of_results(messages: list[Message]) -> None:
    """Call the results of tools as the templates do that render the row's other keys.

    Templates with `functions` and `function_calls` know `environment`, all others `tool`.
    """
    if any("functions" in message or "function_calls" in message for message in messages):
        return
    for message in messages:
        if message["role"] == "environment":
            message["role"] = "tool"


def _read_turn(turn: object, place: str) -> list[Message]:
    """Return a turn as a message, and an object with a question and its answer as two.

    Raises RowError: data_row, data_roles.
    """
    if not isinstance(turn, dict):
        raise RowError(f"{place} is {describe_type(turn)}; an object with role is expected")
    asked = [key for key in _ASKED if turn.get(key) is not None]
    answered = [key for key in _ANSWERED if turn.get(key) is not None]
    if _first_given(turn, ROLE_KEYS) is None and len(asked) == len(answered) == 1:
        question = {"role": "user", "content": read_text(turn[asked[0]], place)}
        answer = {"role": "assistant", "content": read_text(turn[answered[0]], place)}
        return [question, answer | marks_of(turn)]
    return [_read_message(turn, place)]


def _read_message(turn: Mapping[str, object], place: str) -> Message:
    """Return a turn as a message with `role` and `content`.

    Raises RowError: data_row, data_roles.
    """
    role = _read_role(turn, place)
    given = {key: value for key, value in turn.items() if value is not None}
    rest = {key: given[key] for key in given if key not in (*ROLE_KEYS, *CONTENT_KEYS)}
    content = _first_given(turn, CONTENT_KEYS)
    if _is_call(turn):
        return {"role": role, "content": "", "tool_calls": read_calls(content, place), **rest}
    if set(turn).isdisjoint((*CONTENT_KEYS, *_CALL_KEYS, "function_call")):
        keys = ", ".join(map(repr, turn))
        cure = "write each turn as an object with role and content"
        raise RowError(f"{place} has no 'content'; it has {keys}", cure)
    _read_keys(rest, place)
    if isinstance(content, list):
        content = _join_parts(content, place)
    is_blank = (
        content is None or content == [] or (isinstance(content, str) and not content.strip())
    )
    if is_blank and any(rest.get(key) for key in _CALL_KEYS):
        text = content if isinstance(content, str) else ""
    elif content == "" and role in ("system", "tool", "environment"):
        text = ""
    else:
        text = read_text(content, place)
    return {"role": role, "content": text, **rest}


def _read_keys(rest: dict[str, Any], place: str) -> None:
    """Write the calls of a turn, and what it thinks, as templates read them.

    Raises RowError: data_row.
    """
    old_call = rest.pop("function_call", None)
    calls = rest.pop("tool_calls", None)
    if calls is None or calls in ("", [], "[]"):
        calls = old_call
    if calls is not None and calls not in ("", []):
        rest["tool_calls"] = read_calls(calls, place)
    for name in _REASONING_KEYS:
        reasoning = rest.get(name)
        if isinstance(reasoning, str) and reasoning.strip():
            rest |= {key: reasoning for key in _REASONING_KEYS[:2] if not rest.get(key)}
            break


def _read_role(turn: Mapping[str, object], place: str) -> str:
    """Return the role of a turn, one of ROLES. Raises RowError: data_roles."""
    name = _first_given(turn, ROLE_KEYS)
    if name is None:
        keys = ", ".join(map(repr, turn)) or "nothing"
        cure = "write each turn as an object with role and content"
        raise RowError(f"{place} has no 'role'; it has {keys}", cure, "data_roles")
    if _is_call(turn):
        return "assistant"
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


def check_messages(messages: list[Message]) -> None:
    """Check the order of the turns. Raises RowError: data_roles."""
    for number, message in enumerate(messages):
        if message["role"] == "system" and number > 0:
            reason = f"turn {number + 1} is a system turn; it may only be the first"
            raise RowError(reason, None, "data_roles")
    if all(message["role"] == "system" for message in messages):
        raise RowError("the row has only a system turn", None, "data_no_answer")
