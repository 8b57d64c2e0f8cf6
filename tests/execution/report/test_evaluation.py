"""The evaluation on a run's page: the scores of evaluation.json and some answers, whatever the
files hold.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launch.execution.record.run import Run
from launch.execution.report.evaluation import read_evaluation
from launch.execution.report.page import render_runs
from tests.execution.report.folders import write_run
from tests.execution.report.test_page import HOSTILE, STEPS, Page


def evaluate(folder: Path, text: str) -> None:
    """Write what `launch eval` writes: one task that generates and one that scores given texts."""
    samples = folder / "evaluation" / "0123.samples.jsonl"
    samples.parent.mkdir()
    rows: list[dict[str, Any]] = [
        {
            "task": "ifeval",
            "arguments": [[f"Write haiku {number}.", {}]],
            "filtered_resps": [text],
            "target": 0,
        }
        for number in range(5)
    ]
    rows.append(
        {"task": "arc", "arguments": [["Q", "A"]], "filtered_resps": [[-3.5, False]], "target": "A"}
    )
    samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = [
        {"model": "base", "score": 0.5166, "stderr": 0.065, "samples": "absent"},
        {"model": "demo/x", "score": 0.9833, "stderr": None, "samples": str(samples)},
    ]
    task = {
        "task": "ifeval",
        "verdict": "better",
        "summary": "0.467 better than base",
        "gain": 0.4667,
        "gain_half_interval": 0.1412,
        "questions": 60,
    }
    task |= {"metric": "acc", "higher_is_better": True, "broken": [], "models": models}
    summary = {
        "model": "demo/x",
        "harness": "lm-eval 0.4.13",
        "tasks": [task, {**task, "broken": ["cut off"]}],
    }
    (folder / "evaluation.json").write_text(json.dumps(summary))


def test_scores_and_answers(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo" / "x", STEPS[:3])
    evaluate(folder, "An old silent pond")
    text = Page(render_runs([Run(folder)])).text
    scores = "0.5166 ± 0.065 0.9833 0.467 better than base (± 0.1412 at 95 %, 60 questions)"
    assert f"ifeval acc, higher is better {scores}" in text
    assert "broken: cut off" in text
    for number in range(3):
        assert f"ifeval Write haiku {number}. 0 An old silent pond" in text
    assert "Write haiku 3." not in text


def test_answers_stay_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo" / "x", STEPS[:3])
    evaluate(folder, HOSTILE)
    page = render_runs([Run(folder)])
    assert "\x1b" not in page
    assert not [tag for tag, _ in Page(page).tags if tag == "img"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"tasks": 3}',
        '{"tasks": []}',
        '{"tasks": [3]}',
        '{"tasks": [{}]}',
        '{"tasks": [{"models": [{"samples": 4}], "gain": "x", "broken": 3, "questions": []}]}',
    ],
)
def test_a_broken_record_has_no_section_or_a_bare_one(text: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo" / "x", STEPS[:3])
    (folder / "evaluation.json").write_text(text)
    section = read_evaluation(folder)
    assert ("Evaluation" in Page(render_runs([Run(folder)])).text) == (section is not None)
    assert section is None or len(section.answers) == 1


def test_a_run_that_was_not_evaluated_has_no_section(tmp_path: Path) -> None:
    assert read_evaluation(write_run(tmp_path / "demo" / "x", STEPS[:3])) is None
