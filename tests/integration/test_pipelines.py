"""Real pipelines on the CPU: killed in each stage and between them, the same command gives the same
losses.
"""

from __future__ import annotations

import html
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import finish, launch_in, records, stop_once
from tests.integration.demo_kit import write_few_questions
from tests.thorough import mark_others

pytestmark = pytest.mark.slow

STEPS, EVERY = 6, 2
SHAPE = (
    "pipeline=demo,demo_dpo",
    *(f"recipe.max_steps={STEPS}", f"recipe.checkpoint_steps={EVERY}", "data.fraction=0.1"),
)
TRL = ("demo:trainer=trl_sft", "demo_dpo:trainer=trl_dpo")
# test_resume.py has whole models, each alone
CASES = {
    "trl, an adapter trained further": (
        *TRL,
        "recipe.lora.rank=8",
        "demo_dpo:recipe.lora.start=continue",
    ),
    "open-instruct, an adapter on the merged one": ("recipe.lora.rank=8",),
}
FIRST = next(iter(CASES))


def losses(run: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in records(run / "metrics.jsonl")]


def assert_same_losses(cut: Path, whole: Path) -> None:
    """Compare a run whose launcher was killed with one that was not.

    The trainer may take a step more, and write its checkpoint, after the launcher that records its
    steps is gone: the row of the step that the run goes on from can be missing.
    """
    expected, found = dict(losses(whole)), dict(losses(cut))
    assert found == {step: loss for step, loss in expected.items() if step in found}
    missing = expected.keys() - found.keys()
    attempts = records(cut / "attempts.jsonl")
    resumed = {re.split("[_-]", row["resumed_from"])[1] for row in attempts if row["resumed_from"]}
    assert {str(step) for step in missing} <= resumed and len(missing) <= 1


def has_checkpoint(run: Path) -> Callable[[], bool]:
    return lambda: any((run / "model").glob(f"*[_-]{EVERY}")) and len(losses(run)) > EVERY


@pytest.mark.parametrize("case", mark_others(list(CASES), [FIRST]))
def test_a_killed_pipeline_gives_the_losses_of_one_that_is_not(
    case: str, home: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("peft", reason="the `train` dependencies are not installed")
    if not case.startswith("trl"):
        request.getfixturevalue("open_instruct")
    words, names = (
        (*SHAPE, *CASES[case]),
        [f"name={list(CASES).index(case)}-{end}" for end in ("whole", "cut")],
    )
    whole, cut = (
        [home / "runs" / stage / name.removeprefix("name=") for stage in ("demo", "demo_dpo")]
        for name in names
    )
    code, output = finish(home, *words, names[0])
    assert code == 0, output
    assert [len(losses(run)) for run in whole] == [STEPS, STEPS]

    stop_once(home, has_checkpoint(cut[0]), signal.SIGKILL, *words, names[1])  # in the first stage
    assert not (cut[0] / "DONE").exists() and not (cut[0] / "FAILED").exists()
    # between the stages
    stop_once(home, (cut[0] / "DONE").exists, signal.SIGKILL, *words, names[1])
    assert not cut[1].exists()
    # in the second stage
    code = stop_once(home, has_checkpoint(cut[1]), signal.SIGINT, *words, names[1])
    output = (home / "launch.log").read_text()
    assert code == 130 and "ended in demo_dpo; to continue: the same command" in output, output
    code, output = finish(home, *words, names[1])
    assert code == 0 and "resumes from" in output, output
    assert_same_losses(cut[0], whole[0])
    assert losses(cut[1]) == losses(whole[1])


def test_a_pipeline_that_is_done(home: Path) -> None:
    """It trains nothing again; status and its page show its stages, and what each answers to the
    same three prompts.
    """
    pytest.importorskip("peft", reason="the `train` dependencies are not installed")
    name = "0-whole"  # of the first case above, which has trained it
    words = (*SHAPE, *CASES[FIRST], f"name={name}")
    code, output = finish(home, *words)
    assert code == 0, output
    runs = [home / "runs" / stage / name for stage in ("demo", "demo_dpo")]
    before = [(run / "metrics.jsonl").stat().st_mtime_ns for run in runs]
    assert launch_in(home, *words).stdout.count("already done") == 2
    assert [(run / "metrics.jsonl").stat().st_mtime_ns for run in runs] == before

    status = launch_in(home, "status", name)
    assert status.stdout.splitlines()[-1] == f"pipeline {name}: demo done, demo_dpo done"
    folder = home / "runs" / "pipelines" / name
    answers = [json.loads((run / "samples.json").read_text())["answers"] for run in runs]
    assert len(answers[0]) == 3 and answers[0].keys() == answers[1].keys()
    page = (folder / "report.html").read_text()
    assert f"pipeline {name}" in page and page.count("What each stage answers") >= 1
    assert next(iter(answers[0])) in html.unescape(page)

    # the first stage is trained anew: the second is stale
    again = launch_in(home, *words, "demo:restart=true")
    assert (
        again.returncode == 2
        and f"demo_dpo/{name} is stale" in again.stderr
        and "[stale_stage]" in again.stderr
    )


@pytest.mark.thorough
def test_a_failed_stage_ends_it_with_its_code(home: Path) -> None:
    """The loss of the first stage is not finite: its guard stops it (3), and the second is not
    begun.
    """
    words = (
        *SHAPE,
        *TRL,
        "name=failed",
        "demo:recipe.learning_rate=1e30",
        "demo:recipe.max_grad_norm=null",
    )
    code, output = finish(home, *words)
    assert code == 3, output
    assert "pipeline failed ended in demo; demo_dpo not started" in output
    assert not (home / "runs" / "demo_dpo" / "failed").exists()


@pytest.mark.thorough
def test_a_significant_loss_ends_it(home: Path) -> None:
    """The second stage unlearns what the first has learned: how likely are the answers to the
    demo's questions?
    """
    pytest.importorskip("lm_eval", reason="the `eval` dependencies are not installed")
    tasks = write_few_questions(home / "runs" / ".cache", home / "few")
    words = ("pipeline=demo,demo_dpo", *TRL, "name=judged", "evaluate=true", "stop_if_worse=true")
    words += (f"stage.tasks=[{tasks}]", "demo:recipe.max_steps=25")
    words += ("demo_dpo:recipe.max_steps=8", "demo_dpo:recipe.learning_rate=0.1")
    code, output = finish(home, *words)
    assert code == 3, output
    assert "demo_dpo/judged is worse than the model that it started from" in output
    [task] = json.loads((home / "runs" / "demo_dpo" / "judged" / "evaluation.json").read_text())[
        "tasks"
    ]
    assert len(task["models"]) == 3
    page = (home / "runs" / "pipelines" / "judged" / "report.html").read_text()
    assert "Evaluations side by side" in page
