"""`generate` with two seeds of the demo's model: which model answers which prompt, and in which
form.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from launch.__main__ import main
from launch.commands.models import find_newest
from launch.demo import make_model
from launch.errors import UserError
from tests.execution.report.folders import DONE, write_run

pytest.importorskip("torch", reason="the train group is not installed")

PROMPT = "What does `os.path.join` do?"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two untrained models, which never end an answer."""
    folder = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        make_model.build(folder / str(seed), seed)
    return str(folder / "0"), str(folder / "1")


@pytest.mark.slow
def test_models_answer_side_by_side(
    models: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *models, PROMPT, "And a heap?", "max_tokens=4"]) == 0
    output = capsys.readouterr().out
    headings = [line for line in output.splitlines() if line.startswith(("# ", "== "))]
    labels = [f"== {model}" for model in models]
    assert headings == [f"# {PROMPT}", *labels, "# And a heap?", *labels]
    assert output.count("[cut off after 4 tokens; max_tokens=N allows more]") == 4


@pytest.mark.thorough
@pytest.mark.slow
def test_models_answer_a_file_into_a_file(
    models: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    rows = [{"prompt": PROMPT}, {"messages": [{"role": "user", "content": PROMPT}]}]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    line = ["generate", *models, f"prompts={prompts}", "max_tokens=8"]
    assert main([*line, f"out={tmp_path}/none/answers.jsonl"]) == 2
    assert "[out_not_writable]" in capsys.readouterr().err, "before a model is loaded"
    assert main([*line, f"out={out}"]) == 0
    answers = [json.loads(line)["answers"] for line in out.read_text(encoding="utf-8").splitlines()]
    assert answers[0] == answers[1], "each prompt begins with the same seed"
    assert answers[0][models[0]]["text"] != answers[0][models[1]]["text"]


def test_a_chat_goes_on_from_the_turns_before(
    models: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"Sort\n\nSort\n{'word ' * 3000}\n"))
    assert main(["generate", models[0], "--chat", "max_tokens=6", "temperature=1"]) == 2
    output = capsys.readouterr()
    half = len(output.out) // 2
    assert output.out[:half] != output.out[half:], "the second answer depends on the first turn"
    assert (
        output.err.startswith(f"launch: loading {models[0]}\n")
        and "[prompt_too_long]" in output.err
    )


def test_a_name_of_several_runs_means_the_newest_finished_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (name, outcome) in enumerate([("old", DONE), ("new", DONE), ("running", None)]):
        run = write_run(tmp_path / "demo" / name, [{"loss": 2.0}], outcome)
        make_model.build(run / "model", 0)
        os.utime(run / "plan.json", (1e9 + number, 1e9 + number))
    assert find_newest("demo", tmp_path).label == "demo/new"
    note = capsys.readouterr().err
    assert "demo/new" in note and "3 runs" in note
    (tmp_path / "demo" / "old" / "DONE").unlink()
    (tmp_path / "demo" / "new" / "DONE").unlink()
    with pytest.raises(UserError) as refused:
        find_newest("demo", tmp_path)
    assert refused.value.problems[0].id == "ambiguous_run"
