"""Reads tool definitions and calls of tools, and writes them as chat templates expect them.

Templates read `{type: function, function: {name, ...}}`, and the arguments of a call as an object:
several of them write a text of arguments with its quotes escaped, or raise an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launch.data.row_errors import (
    STRICT_DECODER,
    KeyTwiceError,
    RowError,
    describe_type,
    read_json,
)

_ARGUMENTS = ("arguments", "parameters", "args")  # names of a call's arguments
_DECLARATIONS = ("functionDeclarations", "function_declarations")  # Gemini's
_EXPECTED_CALL = 'expected is {"name": ..., "arguments": {...}}, or a list of such objects'


def read_calls(value: object, place: str) -> list[dict[str, Any]]:
    """Return the calls of a turn. A text holds them as JSON.

    Raises RowError: data_row.
    """
    calls = read_json(value, place) if isinstance(value, str) else value
    if isinstance(calls, dict):
        calls = [calls]
    if not isinstance(calls, list) or not calls:
        raise RowError(f"{place} calls a tool, and its call is not JSON", _EXPECTED_CALL)
    return [_read_call(call, place) for call in calls]


def _read_call(call: object, place: str) -> dict[str, Any]:
    """Return a call as `{type: function, function: {name, arguments}}`, with its other keys."""
    if isinstance(call, str):
        call = read_json(call, place)
    if not isinstance(call, Mapping):
        raise RowError(f"a call of {place} is {describe_type(call)}", _EXPECTED_CALL)
    function: Any = call.get("function")
    rest = {key: value for key, value in call.items() if key != "function" and value is not None}
    if not isinstance(function, Mapping):
        function = {"name": function if isinstance(function, str) else call.get("name")}
        for name in _ARGUMENTS:
            if call.get(name) is not None:
                function["arguments"] = call[name]
                break
        rest = {key: rest[key] for key in rest if key not in ("name", *_ARGUMENTS)}
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RowError(f"a call of {place} has no name", _EXPECTED_CALL)
    arguments = function.get("arguments")
    parsed = read_json(arguments, place) if isinstance(arguments, str) else arguments
    if parsed is None and not isinstance(arguments, str):
        parsed = {}
    if isinstance(arguments, str) and not arguments.strip():
        parsed = {}
    if not isinstance(parsed, dict):
        message = f"the arguments of {name!r} in {place} are not an object"
        raise RowError(message, _EXPECTED_CALL)
    others = {key: value for key, value in function.items() if key not in ("name", "arguments")}
    written = {"name": name, "arguments": parsed, **_without_nulls(others)}
    return {"type": "function", **rest, "function": written}


def read_tools(value: object, column: str) -> list[dict[str, Any]]:
    """Return the definitions of a row's tools; a text holds them as JSON, and may hold none.

    Raises RowError: data_row.
    """
    if isinstance(value, str) and not value.strip():
        return []
    tools = read_json(value, column) if isinstance(value, str) else value
    if tools is None and isinstance(value, str):
        tools = _parse_lines(value, column)
    if isinstance(tools, dict):
        tools = [tools]
    if tools is None or not isinstance(tools, list):
        message = f"{column} is {describe_type(value)} that is no list of definitions"
        raise RowError(
            message, "write it as a JSON list of functions, each with name and parameters"
        )
    return [_read_tool(tool, column) for tool in _flatten(tools)]


def _flatten(tools: list[Any]) -> Iterator[Any]:
    """Yield the definitions in a list; Gemini's has lists of them."""
    for tool in tools:
        names = () if not isinstance(tool, dict) else _DECLARATIONS
        declared = next((tool[name] for name in names if tool.get(name)), None)
        yield from declared if isinstance(declared, list) else (tool,)


def _parse_lines(text: str, column: str) -> object:
    """Return the objects that a text holds as JSON behind each other; None if it holds others.

    Raises RowError: data_row, for an object that has a key twice.
    """
    found = []
    rest = text.strip()
    while rest:
        try:
            value, end = STRICT_DECODER.raw_decode(rest)
        except KeyTwiceError as error:
            raise RowError(f"{column}: {error}", "leave one of them") from error
        except ValueError:
            return None
        found.append(value)
        rest = rest[end:].lstrip()
    return found


def _read_tool(tool: object, column: str) -> dict[str, Any]:
    if isinstance(tool, str):
        tool = read_json(tool, column)
    if not isinstance(tool, dict):
        message = f"{column} has {describe_type(tool)} where the definition of a function belongs"
        raise RowError(message, "write each as an object with name and parameters")
    if isinstance(tool.get("function"), dict) or "name" not in tool:
        return tool
    return {"type": "function", "function": tool}


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
