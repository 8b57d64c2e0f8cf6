"""Prompt files: text, JSON lines, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.errors import UserError
from launch.evaluation.generation import read_prompts

USER = {"role": "user", "content": "Hi"}


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_text_file_has_one_prompt_a_line(tmp_path: Path) -> None:
    prompts = read_prompts(write(tmp_path, "p.txt", "one\n\n two\n"), system="Be brief.")
    assert [messages[-1]["content"] for messages in prompts] == ["one", "two"]
    assert prompts[0][0] == {"role": "system", "content": "Be brief."}


def test_reference_answers_after_the_last_question_are_left_out(tmp_path: Path) -> None:
    row = (
        '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}'
    )
    assert read_prompts(write(tmp_path, "p.jsonl", row)) == [[USER]]


@pytest.mark.parametrize(
    "row",
    ["nonsense", "[]", '{"prompt": 3}', '{"messages": []}', '{"messages": [{"role": "user"}]}', ""],
)
def test_other_rows_are_refused_with_their_line(tmp_path: Path, row: str) -> None:
    path = write(tmp_path, "p.jsonl", f"{row}\n")
    with pytest.raises(UserError) as refused:
        read_prompts(path)
    assert refused.value.problems[0].id == "bad_prompts"
    assert not row or refused.value.problems[0].where == f"{path}:1"
