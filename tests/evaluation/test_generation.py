"""Prompt files: text, JSON lines, and what is wrong with others; a model that ends too early."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.evaluation.generation import Responder, Sampling, read_prompts
from launch.evaluation.models import ModelSource
from launch.host.interpreter import open_worker
from tests.messages import values_of

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


def test_a_model_whose_process_was_killed_gives_no_answer(tmp_path: Path) -> None:
    """As the kernel does where memory runs out; with a process that lives: tests/commands."""
    model = ModelSource("sft/mine", tmp_path, None, sys.executable)
    with open_worker(model.python, "generating", model.request) as worker:
        worker.process.kill()
        with pytest.raises(UserError) as refused:
            Responder(model, worker).answer([USER], Sampling())
    [problem] = refused.value.problems
    assert (problem.id, problem.where) == ("generation_failed", str(tmp_path))
    assert "sft/mine" in problem.message and "-9" in values_of(problem.message)
