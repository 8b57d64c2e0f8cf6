"""The columns that ask: what stands beside a question or an instruction is part of the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.data.structure import read_structure
from tests.data.files import converted, local, problems, write_lines

Row = dict[str, Any]
QUESTION = "What is tea made of?"
PASSAGE = "Tea is made of dried leaves."
TASK = "Answer in a word."

# what a row asks with, and the prompt
PROMPTS: tuple[tuple[Row, str], ...] = (
    ({"context": PASSAGE, "question": QUESTION}, f"{PASSAGE}\n\n{QUESTION}"),
    ({"question": QUESTION, "context": PASSAGE}, f"{PASSAGE}\n\n{QUESTION}"),
    ({"prompt": QUESTION, "context": PASSAGE}, f"{PASSAGE}\n\n{QUESTION}"),
    ({"question": QUESTION, "input": PASSAGE}, f"{QUESTION}\n\n{PASSAGE}"),
    ({"instruction": TASK, "context": PASSAGE}, f"{TASK}\n\n{PASSAGE}"),
    ({"instruction": TASK, "question": QUESTION}, f"{TASK}\n\n{QUESTION}"),
    ({"instruction": TASK, "query": QUESTION}, f"{TASK}\n\n{QUESTION}"),
    (
        {"question": QUESTION, "context": PASSAGE, "instruction": TASK},
        f"{TASK}\n\n{PASSAGE}\n\n{QUESTION}",
    ),
    ({"instruction": QUESTION, "context": "", "input": PASSAGE}, f"{QUESTION}\n\n{PASSAGE}"),
    ({"instruction": "", "input": QUESTION}, QUESTION),
    ({"prompt": "", "question": QUESTION}, QUESTION),
    # a text that the question repeats, or that repeats the question
    ({"instruction": QUESTION, "question": f" {QUESTION} "}, QUESTION),
    ({"prompt": f"{PASSAGE} {QUESTION}", "context": PASSAGE}, f"{PASSAGE} {QUESTION}"),
    ({"instruction": QUESTION, "prompt": f"### Task: {QUESTION} ### Answer:"}, QUESTION),
)


@pytest.mark.parametrize(("row", "prompt"), PROMPTS)
def test_each_kind_of_stage_asks_with_the_same_texts(tmp_path: Path, row: Row, prompt: str) -> None:
    asked = [{"role": "user", "content": prompt}]
    path = write_lines(tmp_path / "sft.jsonl", [{**row, "answer": "Leaves."}])
    assert converted(path)[0]["messages"][:-1] == asked
    path = write_lines(tmp_path / "dpo.jsonl", [{**row, "chosen": "Leaves.", "rejected": "Salt."}])
    [pair] = converted(path, kind=Kind.dpo)
    assert pair["chosen"][:-1] == pair["rejected"][:-1] == asked
    path = write_lines(tmp_path / "rlvr.jsonl", [{**row, "ground_truth": "leaves"}])
    assert converted(path, kind=Kind.rlvr)[0]["prompt"] == asked


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    row = {"question": QUESTION, "context": {"sentences": [PASSAGE]}, "answer": "Leaves."}
    path = write_lines(tmp_path / "a.jsonl", [row])
    assert converted(path)[0]["messages"][0]["content"] == QUESTION
    assert read_structure(local(path)).describe().endswith("not used: 'context'")


@pytest.mark.parametrize(
    ("asks", "other"), [("prompt", "question"), ("instruction", "prompt"), ("prompt", "query")]
)
def test_two_prompts_are_not_joined(tmp_path: Path, asks: str, other: str) -> None:
    row = {asks: TASK, other: QUESTION, "answer": "Leaves."}
    path = write_lines(tmp_path / "a.jsonl", [row])
    assert converted(path)[0]["messages"][0]["content"] == TASK
    assert f"not used: '{other}'" in read_structure(local(path)).describe()


def test_a_context_stands_in_the_last_question_of_a_conversation(tmp_path: Path) -> None:
    before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    asked = [*before, {"role": "user", "content": QUESTION}]
    transcript = f"Human: Hi\nAssistant: Hello\nHuman: {QUESTION}\nAssistant:"
    rows = [
        {"prompt": prompt, "context": PASSAGE, "completion": "Leaves."}
        for prompt in (asked, transcript)
    ]
    path = write_lines(tmp_path / "a.jsonl", rows)
    for row in converted(path):
        assert row["messages"][:2] == before
        assert row["messages"][2]["content"] == f"{PASSAGE}\n\n{QUESTION}"


def test_an_answer_that_is_a_whole_conversation_asks_once(tmp_path: Path) -> None:
    whole = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "Leaves."}]
    system = {"role": "system", "content": TASK}
    rows = [
        {"prompt": QUESTION, "completion": whole},
        {"prompt": QUESTION, "system": TASK, "completion": whole},
        {"prompt": [system, whole[0]], "completion": [system, *whole]},
        {"prompt": "Something else?", "completion": whole},
    ]
    path = write_lines(tmp_path / "a.jsonl", rows[:3])
    turns = [row["messages"] for row in converted(path)]
    assert turns == [whole, [system, *whole], [system, *whole]]
    labelled = write_lines(tmp_path / "kto.jsonl", [{**rows[0], "label": True}])
    assert converted(labelled, kind=Kind.kto)[0]["messages"] == whole
    [problem] = problems(write_lines(tmp_path / "b.jsonl", rows[3:]))
    assert problem.id == "data_row"


def test_rows_with_and_without_a_context_are_one_format(tmp_path: Path) -> None:
    rows = [{"question": QUESTION, "context": text, "answer": "Leaves"} for text in (PASSAGE, "")]
    path = write_lines(tmp_path / "a.jsonl", rows)
    assert len(read_structure(local(path)).formats) == 1
