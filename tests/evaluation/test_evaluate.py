"""The verdict of a task in words, and how the process of the harness ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.errors import UserError
from launch.evaluation.evaluate import TaskResult, _require_room, _run_jobs
from launch.evaluation.verdict import TaskScore
from launch.worker.evaluating import HarnessJob, TaskSpec
from launch.worker.json_codec import to_json
from launch.worker.model_loading import ModelRequest
from tests.messages import values_of


def result(metric: str, *of_models: list[float], higher: bool) -> TaskResult:
    names = ["base", "sft/mine"][-len(of_models) :]
    questions = tuple(f"q{number}" for number in range(len(of_models[0])))
    scores = {
        name: TaskScore(
            metric,
            higher,
            sum(values) / len(values),
            None,
            questions,
            tuple(values),
            None,
            str(values),
        )
        for name, values in zip(names, of_models, strict=True)
    }
    return TaskResult("task", scores, dict.fromkeys(names, Path("answers")))


@pytest.mark.parametrize("name", ["evaluation", "evaluation/digests.json", "evaluation/a/b.json"])
def test_a_link_among_the_results_is_not_followed(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    with pytest.raises(UserError, match=r"\[linked_record\]"):
        _require_room(tmp_path / "run" / "evaluation")
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize(
    ("metric", "base", "run", "higher", "words"),
    [
        ("bits", [2.0, 2.1, 2.2], [1.29, 1.39, 1.49], False, "0.71 bits a byte better than base"),
        ("bits", [1.0, 1.1, 1.2], [2.0, 2.1, 2.2], False, "1 bits a byte worse than base"),
        (
            "exact_answers",
            [0.0] * 6,
            [1.0] * 6,
            True,
            "better than base: 100% of its answers are exact, against 0%",
        ),
        ("acc", [0.0] * 6, [1.0] * 6, True, "1 better than base"),
        ("acc", [0.0, 1.0], [1.0, 0.0], True, "no significant difference from base"),
    ],
)
def test_better_is_said_in_words_and_never_by_a_sign(
    metric: str, base: list[float], run: list[float], higher: bool, words: str
) -> None:
    task = result(metric, base, run, higher=higher)
    assert task.summary == to_json(task)["summary"] == words


def test_a_model_alone_has_scores_and_no_verdict() -> None:
    alone = result("acc", [0.5, 1.0], higher=True)
    assert result("acc", [0.0, 0.0], higher=True).broken == []
    assert alone.summary is None and to_json(alone)["verdict"] is None
    assert to_json(alone)["models"][0]["score"] == 0.75


# what the process of the harness does, and the problem that it becomes, with its place and values
FULL = "OSError: [Errno 28] No space left on device"
ENDS: dict[str, tuple[str, str, str | None, list[str]]] = {
    "a full disk": (f"echo '{FULL}' >&2; exit 1", "no_space", None, []),
    "another error": ("echo 'no luck' >&2; exit 1", "evaluation_failed", None, []),
    "a signal": ("kill -9 $$", "evaluation_failed", None, ["-9"]),
    "an unknown task": (
        """echo '{"refused": "unknown_task", "task": "a", "near": []}'""",
        "unknown_task",
        "override tasks",
        ["a"],
    ),
    "a task of the hub": (
        """echo '{"refused": "task_needs_network", "task": "a"}'""",
        "task_needs_network",
        "override tasks",
        ["a"],
    ),
    "a task that does not load": (
        """echo '{"refused": "task_not_loadable", "task": "a", "reason": "no file 7"}'""",
        "task_not_loadable",
        "override tasks",
        ["7", "a"],
    ),
}


def evaluate_by(folder: Path, does: str) -> list[str]:
    """Evaluate a model by an interpreter that does what the line says; return the notes."""
    python, notes = folder / "python", list[str]()
    python.write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
    python.chmod(0o755)
    request, spec = ModelRequest("m", quantized=False), TaskSpec(("a",))
    job = HarnessJob("base", request, spec, folder / "out.json", folder / "samples.jsonl")
    _run_jobs([job], str(python), folder, limit=None, batch_size=8, notify=notes.append)
    return notes


@pytest.mark.parametrize("case", ENDS)
def test_how_the_process_of_the_harness_ends(tmp_path: Path, case: str) -> None:
    does, id, where, values = ENDS[case]
    with pytest.raises(UserError) as refused:
        evaluate_by(tmp_path, does)
    [problem] = refused.value.problems
    assert (problem.id, problem.where) == (id, where)
    assert values_of(problem.message.replace(str(tmp_path), "")) == values
    assert id != "evaluation_failed" or "limit=2" in values_of(str(problem.cure))


def test_a_harness_that_ends_well(tmp_path: Path) -> None:
    assert evaluate_by(tmp_path, """echo '{"done": "base"}'""") == ["evaluated base"]
