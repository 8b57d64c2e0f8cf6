"""Own rows from a drafted stage to a judged model: samples while training, and the held-out rows
that `eval` asks.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launch.__main__ import main
from launch.execution.record.run import Run
from tests.integration.conftest import launch_in, records

pytestmark = pytest.mark.slow

COLOURS = ("red", "blue", "green", "grey")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a finished run of a drafted stage, whose rows the demo's model can learn."""
    pytest.importorskip("lm_eval", reason="the `eval` dependencies are not installed")
    home = tmp_path_factory.mktemp("own")
    draw = random.Random(0)
    with (home / "chats.jsonl").open("w") as stream:
        for number in range(200):
            colour, name = draw.choice(list(enumerate(COLOURS))), f"{number:03}"
            asked = {"role": "user", "content": f"What colour is {'abcd'[colour[0]]}{name}?"}
            row = {"messages": [asked, {"role": "assistant", "content": f"It is {colour[1]}."}]}
            stream.write(json.dumps(row) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAUNCH_CONFIG_DIR", str(home / "conf"))
        patch.chdir(home)
        assert main(["new", "mine", "--data", "chats.jsonl", "--model", "demo"]) == 0
        done = launch_in(
            home,
            "stage=mine",
            "trainer=trl_sft",
            "name=x",
            "recipe.sample_every=30",
            "recipe.epochs=4",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        yield home


@pytest.fixture(scope="module")
def tasks(home: Path) -> dict[str, dict[str, Any]]:
    assert main(["eval", "mine/x", f"runs={home / 'runs'}"]) == 0
    return {
        task["task"]: task
        for task in json.loads((home / "runs/mine/x/evaluation.json").read_text())["tasks"]
    }


def test_the_model_answers_fixed_prompts_before_during_and_after_training(home: Path) -> None:
    run = home / "runs" / "mine" / "x"
    samples = [event for event in records(run / "events.jsonl") if event["kind"] == "completion"]
    assert [sample["step"] for sample in samples] == [
        step for step in (0, 30, 60, 90, 92) for _ in range(3)
    ]
    assert len({sample["prompt"] for sample in samples}) == 3
    held_out = (next((home / "runs/.cache/data").iterdir()) / "validation.jsonl").read_text()
    assert all(sample["prompt"] in held_out for sample in samples)
    assert all(sample["completion"].startswith("It is ") for sample in samples[-3:])
    steps = {step["step"]: step for step in records(run / "metrics.jsonl")}
    assert [step for step, logged in steps.items() if "sample_tokens" in logged] == [30, 60, 90, 92]
    assert steps[92]["sample_ended"] == 1.0 and steps[92]["sample_tokens"] < 20
    assert "Samples while training" in (run / "report.html").read_text()


def test_eval_asks_the_held_out_rows_and_not_the_demos_questions(
    tasks: dict[str, dict[str, Any]],
) -> None:
    assert list(tasks) == ["held_out_exact", "held_out_loss"]
    for task in tasks.values():
        assert (task["questions"], task["verdict"], task["broken"]) == (20, "better", [])
    assert "bits a byte better than base" in tasks["held_out_loss"]["summary"]


def test_the_loss_is_the_trainers_own_on_the_same_rows(
    home: Path, tasks: dict[str, dict[str, Any]]
) -> None:
    """In bits per byte of each answer here, and as a mean over the tokens of all there."""
    [trained] = [
        step for step in records(home / "runs/mine/x/metrics.jsonl") if "eval_loss" in step
    ]
    samples = records(Path(tasks["held_out_loss"]["models"][-1]["samples"]))
    nats = [-row["resps"][0][0][0] for row in samples if row["task"] == "held_out_loss"]
    docs = records(home / "runs/mine/x/evaluation/tasks/held_out_loss.jsonl")
    assert sum(nats) / sum(doc["tokens"] for doc in docs) == pytest.approx(
        trained["eval_loss"], rel=1e-3
    )
    bits = [nat / math.log(2) / len(doc["text"]) for nat, doc in zip(nats, docs, strict=True)]
    assert sum(bits) / len(bits) == pytest.approx(
        tasks["held_out_loss"]["models"][-1]["score"], rel=1e-6
    )


@pytest.mark.thorough
def test_a_base_is_scored_alone_compared_and_asked(
    home: Path, tasks: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    runs, run = home / "runs", home / "runs" / "mine" / "x"
    base = str(Run(run).flags["model_name_or_path"])
    asked = f"tasks={run / 'evaluation' / 'held_out'}"
    assert main(["eval", base, asked, f"runs={runs}", "--json"]) == 0
    alone = {task["task"]: task for task in json.loads(capsys.readouterr().out)["tasks"]}
    [score] = alone["held_out_loss"]["models"]
    assert score["score"] == pytest.approx(tasks["held_out_loss"]["models"][0]["score"], rel=1e-6)
    assert alone["held_out_loss"]["verdict"] is None
    assert main(["compare", base, "mine/x", f"runs={runs}"]) == 0
    printed = capsys.readouterr().out
    assert "not a run" in printed and "unknown" not in printed.split("the noise")[0]
    [row] = [line.split() for line in printed.splitlines() if "held_out_exact" in line]
    assert row[-2:] == ["0.0000", f"{tasks['held_out_exact']['models'][-1]['score']:.4f}"]
    argv = [base, "mine/x", "What colour is a001?", "Which colour?", "max_tokens=8", f"runs={runs}"]
    assert main(["generate", *argv, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["messages"][0]["content"] for row in rows] == argv[2:4]
    assert all(len(row["answers"]) == 2 for row in rows)


@pytest.mark.thorough
def test_a_run_without_held_out_rows_is_not_judged_by_the_demos_questions(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "stage=mine",
        "trainer=trl_sft",
        "name=all",
        "data.validation=null",
        "recipe.max_steps=2",
    )
    done = launch_in(home, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert main(["eval", "mine/all", f"runs={home / 'runs'}"]) == 2
    error = capsys.readouterr().err
    assert "mine/all" in error and "[no_held_out]" in error


@pytest.mark.thorough
def test_two_ranks_of_dpo_answer_the_same_prompts(home: Path) -> None:
    words = (
        "stage=demo_dpo",
        "trainer=trl_dpo",
        "model=demo",
        "processes=2",
        "name=ranks",
        "recipe.max_steps=4",
    )
    done = launch_in(home, *words, "recipe.sample_every=2", "recipe.checkpoint_steps=null")
    assert done.returncode == 0, done.stdout + done.stderr
    run = home / "runs" / "demo_dpo" / "ranks"
    samples = [event for event in records(run / "events.jsonl") if event["kind"] == "completion"]
    assert [sample["step"] for sample in samples] == [step for step in (0, 2, 4) for _ in range(3)]
    assert len({sample["prompt"] for sample in samples}) == 3
    assert [step["step"] for step in records(run / "metrics.jsonl") if "sample_tokens" in step] == [
        2,
        4,
    ]


@pytest.mark.thorough
def test_rows_that_cannot_be_used_are_left_out_of_the_training_and_recorded(home: Path) -> None:
    rows = (home / "chats.jsonl").read_text().splitlines(True)
    asked = json.loads(rows[0])["messages"][0]
    bad = [{"messages": [asked, {"role": "assistant", "content": ""}]}] * 498 + [
        {"text": 1},
        {"chat": []},
    ]
    lines = [json.dumps(row) + "\n" for row in bad]
    (home / "mostly_bad.jsonl").write_text("".join(rows[:1] + lines + rows[1:]))
    words = (
        "stage=mine",
        "trainer=trl_sft",
        "data.mix=mostly_bad.jsonl",
        "name=left_out",
        "recipe.max_steps=3",
    )
    for verb in ("run", "check"):
        refused = launch_in(home, verb, *words)
        shown = " ".join((refused.stdout + refused.stderr).split())
        assert refused.returncode == 2 and "500 of 700 rows can't be used (498: " in shown, shown
        assert (
            "mostly_bad.jsonl:2" in shown
            and "[bad_rows]" in shown
            and "data.bad_rows=skip" in shown
        )
    done = launch_in(home, *words, "data.bad_rows=skip")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "staged 180 rows and 20 for validation" in done.stdout + done.stderr
    plan = json.loads((home / "runs" / "mine" / "left_out" / "plan.json").read_text())
    [data] = plan["data"]
    assert (data["rows"] if "rows" in data else data["read"]) == 180 + 20
    assert any(note.startswith("500 of 700 rows can't be used") for note in data["notes"])
