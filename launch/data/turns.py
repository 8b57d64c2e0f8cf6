"""Reads the turns of a conversation as messages with `role` and `content`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launch.data.marks import MARKS, MARKS_OF_PARTS, marks_of, refuse_bad_turn
from launch.data.row_errors import RowError, describe_type, path_of_text, read_list, read_text
from launch.data.tools import read_calls

Message = dict[str, Any]

ROLES = ("system", "user", "assistant", "tool")
_ROLE_NAMES = {
    **{role: role for role in ROLES},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "bot", "model", "chatgpt", "chatbot", "ai"), "assistant"),
    **dict.fromkeys(("observation", "function", "ipython"), "tool"),
    **dict.fromkeys(("tool_response", "function_response", "function-response"), "tool"),
    "developer": "system",
    "environment": "environment",
}
# roles of a turn whose content is a call of a tool, in JSON
_CALL_ROLES = ("function_call", "tool_call", "function-call")
CONTENT_KEYS = ("content", "value", "parts")  # the last is Gemini's
ROLE_KEYS = ("role", "from")
# keys of an object that holds a question and its answer
_ASKED = ("human", "user", "input", "question", "instruction", "prompt", "query")
_ANSWERED = ("assistant", "gpt", "bot", "output", "answer", "response", "completion")
# types of parts of a content, those of texts and, with what to do, others that can be written as keys
_TEXT_PARTS = ("text", "input_text", "output_text")
_AS_CALLS = "write a call as tool_calls of its turn, and its result as a turn of tool"
_AS_REASONING = "write it as reasoning_content of the turn"
_OTHER_PARTS = {
    **dict.fromkeys(("tool_use", "tool_result", "functionCall", "functionResponse"), _AS_CALLS),
    **dict.fromkeys(("thinking", "reasoning", "thought"), _AS_REASONING),
}
# keys of a turn that name a call of a tool without one of its own texts
_CALL_KEYS = ("tool_calls", "function_calls")
# Templates read what a model thinks before it answers under one of these names.
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
# keys of a turn that are read, or that templates know; the texts of others may be lost
TURN_KEYS = frozenset(
    (
        *ROLE_KEYS,
        *CONTENT_KEYS,
        *_CALL_KEYS,
        *_REASONING_KEYS,
        *("functions", "name", "tool_call_id"),
        *MARKS,
        *MARKS_OF_PARTS,
    )
)


def read_turns(role: str, value: object, column: str) -> list[Message]:
    """Return a text, one message or a list of messages as messages.

    A text becomes a turn of `role`. `column` is used in errors. Raises RowError: data_row,
    data_roles, data_no_answer.
    """
    if isinstance(value, dict) and _is_transposed(value):
        return read_messages(value, column)
    if isinstance(value, dict):
        _refuse_object(role, value, column)
        value = [value]
    if not isinstance(value, list):
        return [{"role": role, "content": read_text(value, column)}]
    if value and all(isinstance(element, str) for element in value):
        known = _known_column(role, column)
        cure = f"name one of them, as in data.columns.{known}={column}.0"
        raise RowError(f"{column} is a list of texts; a text or messages are expected", cure)
    return read_messages(value, column)


def _known_column(role: str, column: str) -> str:
    """Return the name by which launch knows a column; those of a pair's sides are their own."""
    if column in ("chosen", "rejected"):
        return column
    return "prompt" if role == "user" else "completion"


def _refuse_object(role: str, value: Mapping[str, object], column: str) -> None:
    """Refuse an object that is not a turn but has a text. Raises RowError: data_roles."""
    path = path_of_text(value)
    if path is None or _first_given(value, ROLE_KEYS) is not None:
        return
    keys = ", ".join(map(repr, value))
    known = _known_column(role, column)
    cure = f"name the text in it, as in data.columns.{known}={column}{path}"
    raise RowError(f"{column} is an object without 'role'; it has {keys}", cure, "data_roles")


def read_messages(value: object, column: str) -> list[Message]:
    """Return a list of turns as messages. In a cell of a table, the list is written as JSON.

    Raises RowError: data_row, data_roles, data_no_answer.
    """
    if isinstance(value, str):
        value = read_list(value, column)
    if isinstance(value, dict) and _is_transposed(value):
        value = [dict(zip(value, keys, strict=True)) for keys in zip(*value.values(), strict=True)]
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


def _is_transposed(value: Mapping[str, object]) -> bool:
    """Return whether an object has a list of the turns' values by each of their keys, as `datasets`
    writes a sequence of objects.
    """
    lists = [inner for inner in value.values() if isinstance(inner, list)]
    is_whole = len(lists) == len(value) and len({len(inner) for inner in lists}) == 1
    return is_whole and not set(ROLE_KEYS).isdisjoint(value)


def read_history(value: object) -> list[Message]:
    """Return earlier turns: a list of pairs of a question and its answer, or of messages. In a cell
    of a table, the list is written as JSON.

    Raises RowError: data_row, data_roles.
    """
    if isinstance(value, str):
        value = read_list(value, "history")
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
        messages[-1] = {**message, **messages[-1], "tool_calls": calls}
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
        cure = "write each turn as an object with role and content"
        raise RowError(f"{place} is {describe_type(turn)}; an object with role is expected", cure)
    asked = [key for key in _ASKED if turn.get(key) is not None]
    answered = [key for key in _ANSWERED if turn.get(key) is not None]
    has_role = _first_given(turn, (*ROLE_KEYS, *CONTENT_KEYS)) is not None
    if not has_role and len(asked) == len(answered) == 1:
        return _read_exchange(turn, asked[0], answered[0], place)
    return [_read_message(turn, place)]


def _read_exchange(
    turn: Mapping[str, object], asked: str, answered: str, place: str
) -> list[Message]:
    """Return an object with a question and its answer as two messages, behind its system prompt.
    Its other keys belong to the answer.

    Raises RowError: data_row.
    """
    messages: list[Message] = [
        {"role": "user", "content": read_text(turn[asked], place)},
        {"role": "assistant", "content": read_text(turn[answered], place)},
    ]
    read = (asked, answered, "system")
    rest = {key: turn[key] for key in turn if key not in read and turn[key] is not None}
    _read_keys(rest, place)
    messages[-1] |= rest
    system = turn.get("system")
    if system in (None, ""):
        return messages
    return [{"role": "system", "content": read_text(system, place)}, *messages]


def _read_message(turn: Mapping[str, object], place: str) -> Message:
    """Return a turn as a message with `role` and `content`.

    Raises RowError: data_row, data_roles.
    """
    role = _read_role(turn, place)
    given = {key: value for key, value in turn.items() if value is not None}
    rest = {key: given[key] for key in given if key not in (*ROLE_KEYS, *CONTENT_KEYS)}
    _refuse_two_texts(turn, place)
    if role == "assistant":
        refuse_bad_turn(turn, place)
    content = _first_given(turn, CONTENT_KEYS)
    if _is_call(turn):
        _read_keys(rest, place)
        return {"role": role, "content": "", "tool_calls": read_calls(content, place), **rest}
    if set(turn).isdisjoint((*CONTENT_KEYS, *_CALL_KEYS, "function_call")):
        keys = ", ".join(map(repr, turn))
        cure = "write each turn as an object with role and content"
        raise RowError(f"{place} has no 'content'; it has {keys}", cure)
    _read_keys(rest, place)
    if isinstance(content, list):
        content = join_parts(content, place)
    is_blank = (
        content is None or content == [] or (isinstance(content, str) and not content.strip())
    )
    if is_blank and any(rest.get(key) for key in _CALL_KEYS):
        text = content if isinstance(content, str) else ""
    elif content == "" and role in ("system", "tool", "environment"):
        text = ""
    elif is_blank:
        cure = "leave the turn out, or write its text"
        raise RowError(f"{place}, a turn of {role}, is {_describe_blank(content)}", cure)
    else:
        text = read_text(content, place)
    return {"role": role, "content": text, **rest}


def _describe_blank(content: object) -> str:
    return "null where text belongs" if content is None else "empty"


def _refuse_two_texts(turn: Mapping[str, object], place: str) -> None:
    """Refuse a turn with two roles, texts or thoughts that differ. Raises RowError: data_row."""
    texts = [turn[key] for key in CONTENT_KEYS if turn.get(key) not in (None, "")]
    names = [str(turn[key]).lower() for key in ROLE_KEYS if turn.get(key) is not None]
    roles = [_ROLE_NAMES.get(name, name) for name in names]
    found_thoughts = map(turn.get, _REASONING_KEYS)
    thoughts = [text for text in found_thoughts if isinstance(text, str) and text.strip()]
    found: tuple[tuple[tuple[str, ...], Sequence[object]], ...] = (
        (CONTENT_KEYS, texts),
        (ROLE_KEYS, roles),
        (_REASONING_KEYS, thoughts),
    )
    for keys, values in found:
        if any(value != values[0] for value in values):
            given = [key for key in keys if turn.get(key) not in (None, "")]
            message = f"{place} has {' and '.join(given)}, and they differ"
            raise RowError(message, "leave one of them")


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


def role_of(turn: object) -> str | None:
    """Return the role of a turn, one of ROLES; None without a known one."""
    if not isinstance(turn, dict):
        return None
    if _is_call(turn):
        return "assistant"
    return _ROLE_NAMES.get(str(_first_given(turn, ROLE_KEYS)).lower())


def _first_given(turn: Mapping[str, object], keys: tuple[str, ...]) -> object:
    """Return the value of the first of the keys that is filled; None where none has a value."""
    given = [turn[key] for key in keys if turn.get(key) is not None]
    filled = [value for value in given if value != ""]
    return next(iter((*filled, *given)), None)


def join_parts(content: list[object], place: str) -> object:
    """Return the texts of parts, a line each: OpenAI's (`{type: text, text: ...}`), Bedrock's and
    Gemini's (`{text: ...}`).

    A list of anything else is returned unchanged. Raises RowError: data_row.
    """
    kinds = [_kind_of_part(part) for part in content]
    if not kinds or None in kinds:
        return content
    for kind in kinds:
        if kind not in _TEXT_PARTS:
            cure = _OTHER_PARTS.get(str(kind), "only text can be trained on")
            raise RowError(f"{place} has a part of type {kind!r}", cure)
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "\n".join(read_text(text, place) for text in texts)


def _kind_of_part(part: object) -> str | None:
    """Return the type of a part, or the key that stands for it; None if it is not a part."""
    if not isinstance(part, dict):
        return None
    keys = [key for key, value in part.items() if value is not None]
    if "type" in keys:
        return str(part["type"])
    others = [key for key in keys if key != "text"]
    if not others:
        return "text" if keys else None
    return others[0] if len(others) == 1 else None


def check_messages(messages: list[Message]) -> None:
    """Check the order of the turns. Raises RowError: data_roles."""
    for number, message in enumerate(messages):
        if message["role"] == "system" and number > 0:
            reason = f"turn {number + 1} is a system turn; it may only be the first"
            raise RowError(reason, None, "data_roles")
    if all(message["role"] == "system" for message in messages):
        raise RowError("the row has only a system turn", None, "data_no_answer")
