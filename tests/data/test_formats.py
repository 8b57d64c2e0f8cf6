"""The usual shapes are recognised and converted; a row that can't be used is named with its place
and its fault.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from launch.config.kinds import DataFormat, Kind
from tests.data.files import CHAT, PAIR, chat, converted, problems, write_lines
from tests.messages import values_of

Row = dict[str, Any]
SYSTEM = {"role": "system", "content": "Be brief."}
EMPTY_SYSTEM = {"role": "system", "content": ""}
QUESTION, ANSWER = CHAT["messages"]
HUMAN, GPT = {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "f"}}],
}
RESULT = {"role": "tool", "content": "42"}


def call(name: str, **arguments: object) -> Row:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def messages(*turns: object) -> Row:
    return {"messages": list(turns)}


def answered(content: object) -> Row:
    return messages(QUESTION, {"role": "assistant", "content": content})


class Converted(NamedTuple):
    name: str
    row: Row
    result: Row
    kind: Kind = Kind.sft
    options: Row | None = None


BRIEF = messages(SYSTEM, QUESTION, ANSWER)
PARTS = messages(
    EMPTY_SYSTEM,
    *answered([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}])["messages"],
)
CALLS = {**messages(QUESTION, CALL, RESULT, ANSWER), "tools": [{"name": "f"}]}
CALL_TURN = {"role": "tool_call", "content": '{"name": "f", "arguments": {}}'}
CALLED = {
    **messages(
        QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [call("f")]},
        RESULT,
        ANSWER,
    ),
    "tools": json.dumps([{"type": "function", "function": {"name": "f"}}]),
}
GERMAN = {"prompt": "frage", "completion": "antwort"}
BY_HAND = {"form": DataFormat.prompt_completion}
PROMPT = {"prompt": [QUESTION], "ground_truth": "4"}
BRIEF_PROMPT = {**PROMPT, "prompt": [SYSTEM, QUESTION]}
ONE_TURN = {"conversations": [HUMAN], "chosen": GPT, "rejected": {"from": "gpt", "value": "No"}}
CONVERTED = (
    Converted("messages", CHAT, CHAT),
    Converted(
        "OpenAI's turns of conversations",
        {"conversations": [QUESTION, ANSWER], "source": "web"},
        CHAT,
    ),
    Converted("ShareGPT", {"conversations": [HUMAN, GPT]}, CHAT),
    Converted(
        "ShareGPT, other names",
        {"conversations": [{**HUMAN, "from": "User"}, {**GPT, "from": "Assistant"}]},
        CHAT,
    ),
    Converted(
        "ShareGPT, as roles",
        {"conversations": [{"role": "human", "value": "Hi"}, {"role": "gpt", "value": "Hello"}]},
        CHAT,
    ),
    Converted("Alpaca", {"instruction": "Hi", "input": "", "output": "Hello"}, CHAT),
    Converted(
        "Alpaca with an input",
        {"instruction": "A", "input": "B", "output": "C"},
        chat("A\n\nB", "C"),
    ),
    Converted(
        "Alpaca, capitals and spaces", {"Instruction": "Hi", " Output ": "Hello", "id": 7}, CHAT
    ),
    Converted(
        "Alpaca with a context",
        {"instruction": "A", "context": "B", "response": "C"},
        chat("A\n\nB", "C"),
    ),
    Converted(
        "Dolly", {"instruction": "Hi", "context": None, "response": "Hello", "category": "qa"}, CHAT
    ),
    Converted("prompt and completion", {"prompt": "Hi", "completion": "Hello"}, CHAT),
    Converted(
        "prompt and completion of turns", {"prompt": [QUESTION], "completion": [ANSWER]}, CHAT
    ),
    Converted("question and answer", {"question": "Hi", "answer": "Hello"}, CHAT),
    Converted(
        "a part of a turn",
        messages({**QUESTION, "content": [{"type": "text", "text": "Hi"}]}, ANSWER),
        CHAT,
    ),
    Converted("messages as JSON text", {"messages": json.dumps([QUESTION, ANSWER])}, CHAT),
    Converted(
        "parts are lines, and an empty system prompt stays",
        PARTS,
        messages(EMPTY_SYSTEM, *answered("Hel\nlo")["messages"]),
    ),
    Converted(
        "system prompt of ShareGPT", {"conversations": [HUMAN, GPT], "system": "Be brief."}, BRIEF
    ),
    Converted(
        "system prompt of Alpaca",
        {"instruction": "Hi", "output": "Hello", "system": "Be brief."},
        BRIEF,
    ),
    Converted(
        "system prompt of a prompt",
        {"prompt": "Hi", "response": "Hello", "system": "Be brief."},
        BRIEF,
    ),
    Converted("developer", messages({**SYSTEM, "role": "developer"}, QUESTION, ANSWER), BRIEF),
    Converted(
        "tool calls",
        CALLS,
        CALLED,
    ),
    Converted(
        "a call with an empty text",
        messages(QUESTION, {**CALL, "content": ""}, RESULT, ANSWER),
        {"messages": CALLED["messages"]},
    ),
    Converted(
        "a call with a text of spaces",
        messages(QUESTION, {**CALL, "content": "\n"}, RESULT, ANSWER),
        messages(QUESTION, {**CALLED["messages"][1], "content": "\n"}, RESULT, ANSWER),
    ),
    Converted(
        "a call with an empty list of parts",
        messages(QUESTION, {**CALL, "content": []}, RESULT, ANSWER),
        {"messages": CALLED["messages"]},
    ),
    Converted(
        "an empty list of calls",
        messages(QUESTION, {**ANSWER, "tool_calls": []}),
        CHAT,
    ),
    Converted(
        "two calls in turns of their own, behind a text",
        messages(QUESTION, ANSWER, CALL_TURN, CALL_TURN, RESULT, ANSWER),
        messages(QUESTION, {**ANSWER, "tool_calls": [call("f"), call("f")]}, RESULT, ANSWER),
    ),
    Converted(
        "a call in a turn of its own, with a thought",
        messages(QUESTION, ANSWER, {**CALL_TURN, "thinking": "Hm"}, RESULT, ANSWER),
        messages(
            QUESTION,
            {**ANSWER, "tool_calls": [call("f")], "thinking": "Hm", "reasoning_content": "Hm"},
            RESULT,
            ANSWER,
        ),
    ),
    Converted(
        "results of tools under other names",
        messages(QUESTION, CALL_TURN, {**RESULT, "role": "environment"}, ANSWER),
        {"messages": CALLED["messages"]},
    ),
    Converted(
        "questions with their answers",
        {"conversation": [{"input": "Hi", "output": "Hello"}]},
        CHAT,
    ),
    Converted(
        "the system prompt in the column and in the chat",
        {"conversations": [SYSTEM, QUESTION, ANSWER], "system": SYSTEM["content"]},
        BRIEF,
    ),
    Converted(
        "history as JSON text, and none",
        {"instruction": "Hi", "output": "Hello", "history": "[]"},
        CHAT,
    ),
    Converted(
        "history of messages",
        {"query": "Hi", "response": "Hello", "history": json.dumps(CHAT["messages"])},
        {"messages": [*CHAT["messages"], *CHAT["messages"]]},
    ),
    Converted(
        "thinking in a column",
        {"prompt": "Hi", "thinking": "Hm", "completion": "Hello"},
        messages(QUESTION, {**ANSWER, "reasoning_content": "Hm", "thinking": "Hm"}),
    ),
    Converted(
        "a text that only begins like a transcript",
        {"prompt": "Human: is it a noun?", "completion": "Yes"},
        chat("Human: is it a noun?", "Yes"),
    ),
    Converted(
        "a pair with tools",
        {**PAIR, "tools": [{"name": "f"}]},
        {**PAIR, "tools": CALLED["tools"]},
        Kind.dpo,
    ),
    Converted(
        "columns in another language",
        {"frage": "Hi", "antwort": "Hello"},
        CHAT,
        options={"columns": GERMAN},
    ),
    Converted(
        "a format that is set",
        {**messages(QUESTION), "prompt": "Hi", "completion": "Hello"},
        CHAT,
        options=BY_HAND,
    ),
    Converted("pair", PAIR, PAIR, Kind.dpo),
    Converted("pair of a reward model", PAIR, PAIR, Kind.rm),
    Converted(
        "pair of texts", {"prompt": "Hi", "chosen": "Hello", "rejected": "No"}, PAIR, Kind.dpo
    ),
    Converted(
        "pair of turns",
        {"prompt": [QUESTION], "chosen": [ANSWER], "rejected": PAIR["rejected"][1:]},
        PAIR,
        Kind.dpo,
    ),
    Converted(
        "pair of Alpaca",
        {"instruction": "Hi", "input": "", "chosen": "Hello", "rejected": "No"},
        PAIR,
        Kind.dpo,
    ),
    Converted(
        "pair, capitals", {"Prompt": "Hi", "Chosen": "Hello", "Rejected": "No"}, PAIR, Kind.dpo
    ),
    Converted(
        "pair with the prompt once more, as in UltraFeedback",
        {"prompt": "Hi", **PAIR},
        PAIR,
        Kind.dpo,
    ),
    Converted("pair of ShareGPT", ONE_TURN, PAIR, Kind.dpo),
    Converted(
        "pair of transcripts",
        {
            "chosen": "\n\nHuman: Hi\n\nAssistant: Hello",
            "rejected": "\n\nHuman: Hi\n\nAssistant: No",
        },
        PAIR,
        Kind.dpo,
    ),
    Converted(
        "prompt",
        {"prompt": "Hi", "ground_truth": "4", "level": 2},
        {**PROMPT, "level": 2},
        Kind.rlvr,
    ),
    Converted("prompt that is a chat", {**CHAT, "ground_truth": "4"}, PROMPT, Kind.rlvr),
    Converted(
        "prompt with a system turn",
        {**messages(SYSTEM, QUESTION), "ground_truth": "4"},
        BRIEF_PROMPT,
        Kind.rlvr,
    ),
    Converted(
        "ground truth of numbers",
        {"prompt": "Hi", "ground_truth": [4]},
        PROMPT,
        Kind.rlvr,
    ),
    Converted(
        "prompt that is an instruction with an input",
        {"instruction": "A", "input": "B", "ground_truth": "4"},
        {**PROMPT, "prompt": [{"role": "user", "content": "A\n\nB"}], "input": "B"},
        Kind.rlvr,
    ),
    Converted(
        "a turn with a text under two names, of which one is empty",
        messages({**QUESTION, "value": ""}, {**ANSWER, "content": "", "value": "Hello"}),
        CHAT,
    ),
)


@pytest.mark.parametrize("case", CONVERTED, ids=lambda case: case.name)
def test_a_row_is_converted(tmp_path: Path, case: Converted) -> None:
    path = write_lines(tmp_path / "a.jsonl", [case.row])
    assert converted(path, kind=case.kind, **(case.options or {})) == [case.result]


class Refused(NamedTuple):
    name: str
    row: object
    id: str
    values: tuple[str, ...] = ()
    kind: Kind = Kind.sft


TWO_CHATS = {**PAIR, "rejected": chat("Other", "No")["messages"]}
EQUAL = {"prompt": "Hi", "chosen": "Hello", "rejected": "Hello"}
REFUSED = (
    Refused("a list", [1, 2], "data_row"),
    Refused("null", None, "data_row"),
    Refused("unknown columns", {"text": "once"}, "data_columns", ("text",)),
    Refused("no columns", {}, "data_columns"),
    Refused(
        "messages is null",
        {"messages": None},
        "data_columns",
        ("messages",),
    ),
    Refused(
        "other language", {"frage": "Hi", "antwort": "Hello"}, "data_columns", ("antwort", "frage")
    ),
    Refused("a pair for SFT", PAIR, "data_columns"),
    Refused("no turns", messages(), "data_no_answer"),
    Refused("messages is a text", {"messages": "Hi"}, "data_row"),
    Refused(
        "a turn is a text",
        messages("Hi"),
        "data_row",
        ("1",),
    ),
    Refused(
        "two texts in a turn",
        messages(QUESTION, {**ANSWER, "value": "No"}),
        "data_row",
        ("2",),
    ),
    Refused(
        "two roles in a turn",
        messages(QUESTION, {**ANSWER, "from": "human"}),
        "data_row",
        ("2",),
    ),
    Refused(
        "two thoughts in a turn",
        messages(QUESTION, {**ANSWER, "thinking": "Hm", "reasoning_content": "Ha"}),
        "data_row",
        ("2", "reasoning_content"),
    ),
    Refused(
        "a question with its answer and a third text",
        {"conversation": [{"human": "Hi", "assistant": "Hello", "content": "No"}]},
        "data_roles",
        ("1", "assistant", "content", "human", "role"),
    ),
    Refused("a list of answers", {"prompt": "Hi", "completion": ["Hello", "Hey"]}, "data_row"),
    Refused(
        "a prompt that is an object",
        {"question": {"full_text": "Hi", "id": 7}, "answer": "Hello"},
        "data_roles",
        ("full_text", "id", "role"),
    ),
    Refused(
        "the number of a choice",
        {"question": "Which?", "choices": ["red", "blue"], "answer": 1},
        "data_row",
    ),
    Refused("a talk that is a text", {"dialogue": "A: Hi", "summary": "A greets."}, "data_row"),
    Refused("no answer", messages(QUESTION), "data_no_answer"),
    Refused("system only", messages(SYSTEM), "data_no_answer"),
    Refused(
        "system later",
        messages(QUESTION, SYSTEM, ANSWER),
        "data_roles",
        ("2",),
    ),
    Refused(
        "unknown role",
        messages({"role": "bard", "content": "x"}),
        "data_roles",
        ("1", "bard"),
    ),
    Refused(
        "no role",
        messages({"content": "x"}),
        "data_roles",
        ("1", "content", "role"),
    ),
    Refused(
        "content is null",
        answered(None),
        "data_row",
        ("2",),
    ),
    Refused(
        "content is a list",
        answered(["a"]),
        "data_row",
        ("2",),
    ),
    Refused(
        "content is a number",
        answered(42),
        "data_row",
        ("2",),
    ),
    Refused("content is empty", answered(" \n"), "data_row", ("2",)),
    Refused("an image", answered([{"type": "image_url"}]), "data_row", ("2", "image_url")),
    Refused(
        "a part without text",
        answered([{"type": "text"}]),
        "data_row",
        ("2",),
    ),
    Refused(
        "a weight",
        messages(QUESTION, {**ANSWER, "weight": 0}),
        "data_marks",
        ("0", "2", "data.train_on=all"),
    ),
    Refused(
        "a weight of 0.0",
        messages(QUESTION, {**ANSWER, "weight": 0.0}),
        "data_marks",
        ("0.0", "2", "data.train_on=all"),
    ),
    Refused(
        "not to train",
        messages(QUESTION, {**ANSWER, "train": False}),
        "data_marks",
        ("2", "data.train_on=all"),
    ),
    Refused(
        "function_call without a name",
        messages(QUESTION, {"role": "assistant", "function_call": {}}),
        "data_row",
        ("2",),
    ),
    Refused(
        "a weight that is a share",
        messages(QUESTION, {**ANSWER, "weight": 0.5}),
        "data_marks",
        ("0", "0.5", "1", "2"),
    ),
    Refused(
        "a completion that is no turn",
        {"prompt": "Hi", "completion": {"a": 1}},
        "data_roles",
        ("1", "a", "role"),
    ),
    Refused(
        "an answer that is marked as bad",
        {"prompt": "Hi", "completion": "No", "label": False},
        "data_row",
    ),
    Refused(
        "a bad answer, as LLaMA-Factory marks it in a table",
        {"instruction": "Hi", "output": "No", "kto_tag": "False"},
        "data_row",
        ("kto_tag",),
    ),
    Refused("a bad chat", {**CHAT, "label": False}, "data_row"),
    Refused("pictures", {**CHAT, "images": ["a.png"]}, "data_row"),
    Refused("a picture", {"question": "Hi", "answer": "Hello", "image": "a.png"}, "data_row"),
    Refused("a path of a picture", {**CHAT, "image_path": "a.png"}, "data_row", ("image_path",)),
    Refused(
        "a call that is a text",
        {"conversations": [HUMAN, {"from": "function_call", "value": "f()"}, GPT]},
        "data_row",
        ("2",),
    ),
    Refused("tools that are prose", {**CHAT, "tools": "You may search."}, "data_row"),
    Refused(
        "history that is a text",
        {"query": "Hi", "response": "Hello", "history": "long"},
        "data_row",
    ),
    Refused(
        "history of three",
        {"query": "Hi", "response": "Hello", "history": [["a", "b", "c"]]},
        "data_row",
        ("1",),
    ),
    Refused(
        "a system prompt beside another one",
        {**BRIEF, "system": "Be long."},
        "data_roles",
        ("2",),
    ),
    Refused(
        "a pair of an answer and a chat",
        {"prompt": "Hi", "chosen": [ANSWER], "rejected": PAIR["rejected"]},
        "data_pair",
        (),
        Kind.dpo,
    ),
    Refused(
        "a chat with a third answer",
        {**chat("Hi", "Hey"), "chosen": "Hello", "rejected": "No"},
        "data_pair",
        (),
        Kind.dpo,
    ),
    Refused("an empty output", {"instruction": "Hi", "output": ""}, "data_row"),
    Refused(
        "half of a character pair",
        {"prompt": "Hi", "completion": "\ud83d"},
        "data_row",
        (r"\ud83d",),
    ),
    Refused(
        "a chat for DPO",
        CHAT,
        "data_columns",
        ("messages",),
        Kind.dpo,
    ),
    Refused(
        "no prompt",
        {"chosen": "Hello", "rejected": "No"},
        "data_pair",
        (),
        Kind.dpo,
    ),
    Refused("no ground truth", {"prompt": "Hi"}, "no_ground_truth", ("ground_truth",), Kind.rlvr),
    Refused(
        "an empty ground truth",
        {"prompt": "Hi", "ground_truth": []},
        "no_ground_truth",
        ("ground_truth",),
        Kind.rlvr,
    ),
    Refused(
        "no turn to answer",
        {**messages(ANSWER), "ground_truth": "4"},
        "data_no_answer",
        (),
        Kind.rlvr,
    ),
    Refused(
        "no answer in a pair",
        {**PAIR, "rejected": [QUESTION]},
        "data_no_answer",
        (),
        Kind.dpo,
    ),
    Refused(
        "two chats",
        TWO_CHATS,
        "data_pair",
        (),
        Kind.dpo,
    ),
    Refused(
        "an equal pair",
        EQUAL,
        "data_pair",
        (),
        Kind.dpo,
    ),
    Refused(
        "a list in a pair",
        {**EQUAL, "rejected": [["No"]]},
        "data_row",
        ("1",),
        Kind.dpo,
    ),
)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_a_row_that_cannot_be_used(tmp_path: Path, case: Refused) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(case.row) + "\n", encoding="utf-8")
    [problem] = problems(path, kind=case.kind)
    assert (problem.id, problem.where) == (case.id, f"{path}:1")
    assert values_of(problem.message) == list(case.values)


class Files(NamedTuple):
    name: str
    rows: list[Any]
    id: str
    lines: tuple[int, ...]  # of the rows that are named
    ways: tuple[str, ...] = ()  # what the cure of the first one names, besides others


BROKEN = messages(QUESTION)
SKIP = ("data.bad_rows=skip",)
COLUMNS = ("data.columns.prompt=frage", "data.columns.completion=antwort")
FILES = (
    Files("no format fits: once", [{"text": "once"}] * 5, "data_columns", (1,)),
    Files(
        "columns in another language",
        [{"frage": "Hi", "antwort": "Hello"}],
        "data_columns",
        (1,),
        COLUMNS,
    ),
    Files(
        "rows inside one object",
        [{"version": 1, "data": [CHAT, CHAT]}],
        "data_columns",
        (1,),
        (".data[]",),
    ),
    Files(
        "a list of objects that are no rows",
        [{"text": "once", "scores": [{"score": 1}]}],
        "data_columns",
        (1,),
        ("data.format=text",),
    ),
    Files(
        "two kinds of rows",
        [CHAT, CHAT, {"instruction": "Hi", "output": "Hello"}],
        "data_mixed",
        (3,),
        SKIP,
    ),
    Files(
        "the first faults together",
        [CHAT, BROKEN, CHAT, BROKEN, BROKEN],
        "data_no_answer",
        (2, 4, 5),
        SKIP,
    ),
)


@pytest.mark.parametrize("case", FILES, ids=lambda case: case.name)
def test_a_file_that_cannot_be_used(tmp_path: Path, case: Files) -> None:
    path = write_lines(tmp_path / "a.json", case.rows)
    found = problems(path)
    assert [(problem.id, problem.where) for problem in found] == [
        (case.id, f"{path}:{line}") for line in case.lines
    ]
    assert set(case.ways) <= set(values_of(str(found[0].cure)))


@pytest.mark.parametrize("content", ["", "\n\n", "[]"])
def test_a_file_without_rows(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    assert [problem.id for problem in problems(path)] == ["data_empty"]
