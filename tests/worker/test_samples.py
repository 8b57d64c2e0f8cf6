"""The description of tokenised samples in the worker: text, turns, truncation, and rows that are
streamed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launch.worker import samples


class Words:
    """A tokenizer of single words, with the parts of transformers' interface that a report uses."""

    all_special_ids = (0,)
    bos_token_id, eos_token_id, pad_token_id = None, 0, 1
    added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012

    def __init__(self, text: str) -> None:
        self._ids = {
            word: number
            for number, word in enumerate(["</s>", "<pad>", *sorted(set(text.split()))])
        }

    def __call__(self, text: str, **options: Any) -> dict[str, Any]:
        spans, at = [], 0
        for word in text.split():
            at = text.index(word, at)
            spans.append((at, at + len(word)))
            at += len(word)
        return {
            "input_ids": [self._ids.get(text[a:b], 0) for a, b in spans],
            "offset_mapping": spans,
        }

    def apply_chat_template(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        return TEXT

    def decode(self, ids: list[int]) -> str:
        return f"<{ids[0]}>"


TEXT = "user: what is this assistant: this is it </s>"
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what is this"},
    {"role": "assistant", "content": "this is it"},
]


def report(
    tmp_path: Path,
    ids: list[int] | None = None,
    limit: int = 99,
    messages: Sequence[dict[str, Any]] = MESSAGES,
    tools: Any = None,
) -> dict[str, Any]:
    tokenizer = Words(TEXT)
    whole = tokenizer(TEXT)["input_ids"]
    request = samples.SamplesRequest(
        tmp_path / "out.json", detail=1, rows=None, hub_data=tmp_path, per_device=1
    )
    written = samples.SampleReport(request, tokenizer)
    written.begin_dataset()
    loss = [False] * len(ids or whole)
    side = samples.TokenizedSide("messages", messages, ids or whole, loss, tools)
    written.add([side], kept=True, limit=limit)
    written.add([side], kept=False, limit=limit)
    written.write()
    content: dict[str, Any] = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize(("name", "drops"), [("search", True), ("this", False), (None, False)])
def test_a_call_is_rendered_if_its_tool_is_named(
    tmp_path: Path, name: str | None, drops: bool
) -> None:
    calls = [{"type": "function", "function": {"name": name, "arguments": {}}}] if name else None
    messages = [*MESSAGES[:2], {**MESSAGES[2], "tool_calls": calls}]
    [side] = report(tmp_path, messages=messages)["samples"][0]["sides"]
    assert side["drops_calls"] is drops


def tool(name: str, **more: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"properties": more}}}


@pytest.mark.parametrize(
    ("tools", "drops"),
    [
        (None, False),
        ("[]", False),
        ([tool("this")], False),
        (json.dumps([tool("this")]), False),
        ([tool("search")], True),
        (json.dumps([tool("search")]), True),
        ([tool("it")], True),  # the answer alone has the word
        ([tool("user")], False),
    ],
)
def test_a_tool_is_rendered_if_it_is_named(tmp_path: Path, tools: Any, drops: bool) -> None:
    [side] = report(tmp_path, tools=tools)["samples"][0]["sides"]
    assert side["drops_calls"] is drops


@pytest.mark.parametrize(
    ("message", "drops"),
    [
        ({"role": "tool", "content": "this"}, False),
        ({"role": "tool", "content": "42 metres"}, True),
        ({"role": "environment", "content": "42 metres"}, True),
        ({"role": "assistant", "content": "", "function_calls": "search()"}, True),
        ({"role": "assistant", "content": "", "function_calls": " this "}, False),
    ],
)
def test_results_and_calls_that_are_texts_are_rendered(
    tmp_path: Path, message: dict[str, Any], drops: bool
) -> None:
    [side] = report(tmp_path, messages=[*MESSAGES, message])["samples"][0]["sides"]
    assert side["drops_calls"] is drops


def test_what_the_last_answer_thinks_is_rendered(tmp_path: Path) -> None:
    def drops(*thoughts: str) -> bool:
        answers = [{**MESSAGES[2], "reasoning_content": thought} for thought in thoughts]
        [side] = report(tmp_path, messages=[*MESSAGES[:2], *answers])["samples"][0]["sides"]
        return bool(side["dropped_fields"])

    assert drops("hm")
    assert not drops("this is")
    assert not drops("hm", "this is")  # templates leave out what earlier answers thought


def test_null_keys_of_tools_are_found(tmp_path: Path) -> None:
    def has_null_keys(tools: Any) -> bool:
        [side] = report(tmp_path, tools=tools)["samples"][0]["sides"]
        return bool(side["has_null_keys"])

    assert has_null_keys([tool("this", city=None)])
    assert not has_null_keys([tool("this", city={"enum": [None, "Ulm"]})])


def test_tokens_have_their_text_and_their_turn(tmp_path: Path) -> None:
    content = report(tmp_path)
    [sample] = content["samples"]  # the second is only counted
    [side] = sample["sides"]
    assert side["pieces"] == TEXT.split()
    assert side["turns"] == [None, 1, 1, 1, None, 2, 2, 2, None]
    assert side["messages"] == [["system", False], ["user", True], ["assistant", True]]
    counts = {"tokens": [9, 9], "untruncated": [9, 9], "loss": [0, 0]}
    assert content["lengths"] == [
        {"kept": [True, False], **{name: {"messages": numbers} for name, numbers in counts.items()}}
    ]
    assert [content[name] for name in ("bos", "eos", "pad", "special")] == [None, 0, 1, [0]]


@pytest.mark.parametrize("part", [slice(None, 4), slice(-4, None)])
def test_what_is_cut_off_is_counted_at_either_end(tmp_path: Path, part: slice) -> None:
    whole = Words(TEXT)(TEXT)["input_ids"]
    content = report(tmp_path, whole[part], limit=4)
    [side] = content["samples"][0]["sides"]
    assert side["pieces"] == TEXT.split()[part]
    assert side["untruncated"] == 9
    assert content["lengths"][0]["untruncated"]["messages"] == [9, 9]


def test_tokens_that_are_not_those_of_the_text_are_decoded_one_by_one(tmp_path: Path) -> None:
    [side] = report(tmp_path, [7, 7])["samples"][0]["sides"]
    assert (side["pieces"], side["turns"]) == (["<7>", "<7>"], [None, None])


def test_the_first_rows_are_streamed(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the `train` dependencies are not installed")
    (tmp_path / "data").mkdir()
    lines = "".join(json.dumps({"prompt": str(number)}) + "\n" for number in range(9))
    (tmp_path / "data" / "train.jsonl").write_text(lines, encoding="utf-8")
    request = samples.SamplesRequest(
        tmp_path / "out.json", detail=1, rows=2, hub_data=tmp_path / "cache", per_device=1
    )
    assert samples.stream_rows(str(tmp_path / "data"), "train", request)["prompt"] == ["0", "1"]


def test_the_mismatched_answers_of_kto_are_no_rows_of_a_batch() -> None:
    torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    batch = {
        "input_ids": torch.tensor([[1, 2, 3], [4, 5, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        "KL_input_ids": torch.tensor([[1, 2, 5, 0], [4, 3, 0, 0]]),
        "KL_attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]),
    }
    described = samples.describe_batch(batch, 0)
    assert described == {"rows": 2, "width": 3, "padding": 1, "documents": 2}
