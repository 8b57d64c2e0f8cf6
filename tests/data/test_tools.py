"""Definitions and calls of tools become what chat templates read; others are named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launch.data.row_errors import RowError
from launch.data.tools import read_calls, read_tools

FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


@pytest.mark.parametrize(
    "value",
    [
        {"name": "f", "arguments": {"a": 1}},
        [{"name": "f", "arguments": {"a": 1}}],
        [{"name": "f", "parameters": {"a": 1}}],
        '{"name": "f", "arguments": {"a": 1}}',
        [{"function": {"name": "f", "arguments": '{"a": 1}'}}],
        [json.dumps(CALL)],
        [{**CALL, "index": None}],
    ],
)
def test_a_call_has_a_function_and_arguments(value: object) -> None:
    assert read_calls(value, "turn 2") == [CALL]


def test_other_keys_of_a_function_stay_unless_they_are_null() -> None:
    function = {"name": "f", "arguments": {"a": 1}, "strict": True}
    assert read_calls([{"function": {**function, "index": None}}], "turn 2") == [
        {"type": "function", "function": function}
    ]


@pytest.mark.parametrize("arguments", [None, "", "{}", {}])
def test_a_call_may_have_no_arguments(arguments: object) -> None:
    [call] = read_calls([{"id": "c1", "function": {"name": "f", "arguments": arguments}}], "turn 2")
    assert call == {
        "type": "function",
        "id": "c1",
        "function": {"name": "f", "arguments": {}},
    }


@pytest.mark.parametrize(
    "value",
    ["call f", [], [3], [{"arguments": {}}], [{"name": "f", "arguments": "a=1"}], '{"name": 3}'],
)
def test_a_call_that_cannot_be_read_is_named(value: object) -> None:
    with pytest.raises(RowError, match="turn 2") as refused:
        read_calls(value, "turn 2")
    assert refused.value.id == "data_row" and '"name"' in str(refused.value.cure)


@pytest.mark.parametrize(
    "value",
    [
        [TOOL],
        [FUNCTION],
        FUNCTION,
        json.dumps([FUNCTION]),
        [json.dumps(TOOL)],
        json.dumps(FUNCTION, indent=2),
    ],
)
def test_tools_are_a_list_of_functions(value: Any) -> None:
    assert read_tools(value, "tools") == [TOOL]


def test_several_objects_behind_each_other_are_tools() -> None:
    text = f"{json.dumps(FUNCTION)}\n\n{json.dumps({**FUNCTION, 'name': 'g'})}\n"
    assert [tool["function"]["name"] for tool in read_tools(text, "tools")] == ["f", "g"]


@pytest.mark.parametrize("value", ["", " ", "[]", []])
def test_a_row_may_have_no_tools(value: object) -> None:
    assert read_tools(value, "tools") == []


@pytest.mark.parametrize("value", ["You may search.", 3, [3], ["search"]])
def test_tools_that_cannot_be_read_are_named(value: object) -> None:
    with pytest.raises(RowError, match="tools"):
        read_tools(value, "tools")
