"""Rollouts of the demo stage as a user starts them: real trainers on one, two and four CPU
processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import warm
from tests.integration.reports import read_report
from tests.trials.records import check

pytestmark = pytest.mark.slow

SMALL = ("device=cpu", "recipe.global_batch_size=16", "recipe.per_device_batch_size=4")
TRL = ("stage=demo", "trainer=trl_sft", *SMALL, "recipe.max_steps=6")
# 12 steps x 0.03 are no step of warm-up on one rank and two, and a quarter of one on four
FINETUNE = ("stage=demo", "trainer=finetune", *SMALL, "recipe.max_steps=12")


def command(*words: str) -> list[str]:
    return [warm.python(), "-m", "launch", "rollout", *words]


def rollout(*words: str, cwd: Path, code: int) -> tuple[str, dict[str, Any]]:
    """Run it to its end: what it printed, and its rollout.json."""
    ran = subprocess.run(
        command(*words), cwd=cwd, capture_output=True, text=True, timeout=400, check=False
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    return ran.stdout, read_record(cwd)


def read_record(home: Path) -> dict[str, Any]:
    newest = max(
        (home / "runs" / "demo").glob("rollout-*/rollout.json"),
        key=lambda path: path.stat().st_mtime_ns,
    )
    found: dict[str, Any] = json.loads(newest.read_text(encoding="utf-8"))
    check(found)
    return found


def red(width: dict[str, Any]) -> list[str]:
    return [gate["id"] for gate in width["gates"] if gate["verdict"] == "fail"]


def losses(width: dict[str, Any]) -> list[float]:
    lines = (Path(width["folder"]) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.fixture(scope="module")
def green(home: Path) -> tuple[str, dict[str, Any]]:
    return rollout(*TRL, "processes=1,2,4", "steps=4", cwd=home, code=0)


def test_a_green_rollout_over_three_widths(green: tuple[str, dict[str, Any]]) -> None:
    shown, record = green
    assert record["state"] == "done"
    assert [width["label"] for width in record["runs"]] == ["cpu1", "cpu2", "cpu4"]
    assert [width["batch"]["accumulation"] for width in record["runs"]] == [4, 2, 1]
    assert all(not red(width) for width in record["runs"])
    verdicts = {gate["id"]: gate["verdict"] for gate in record["runs"][2]["gates"]}
    proofs = ("evidence_complete", "all_ranks_step", "same_data", "same_schedule", "loss_parity")
    assert {id: verdicts[id] for id in proofs} == dict.fromkeys(proofs, "pass")
    assert "all 3 widths passed" in shown


def test_the_losses_agree_at_every_width(green: tuple[str, dict[str, Any]]) -> None:
    """In float32: what is left is the order in which the ranks' gradients are added."""
    reference, *others = [losses(width)[:4] for width in green[1]["runs"]]
    for other in others:
        assert other == pytest.approx(reference, rel=1e-4)


def test_the_runs_were_ended_after_their_steps(green: tuple[str, dict[str, Any]]) -> None:
    for width in green[1]["runs"]:
        folder = Path(width["folder"])
        assert json.loads((folder / "DONE").read_text())["exit_code"] == 0
        assert width["measured"]["steps"] == 4 and width["measured"]["total_steps"] == 6
        assert width["projection"]["total_steps"] == 6
    written = {path.name for path in Path(green[1]["runs"][0]["folder"]).parent.iterdir()}
    assert {"rollout.json", "rollout.txt", "rollout.md"} <= written
    assert "3 of 3 widths passed" in read_report(Path(green[1]["runs"][0]["folder"]).parent).text


@pytest.mark.thorough
def test_what_passed_is_kept_and_the_whole_stage_follows(
    home: Path, green: tuple[str, dict[str, Any]]
) -> None:
    before = {width["folder"]: losses(width) for width in green[1]["runs"]}
    shown, record = rollout(*TRL, "processes=1", "steps=4", "then=run", cwd=home, code=0)
    assert record["runs"][0]["reused"] is True and "reused" in shown
    assert losses(record["runs"][0]) == before[record["runs"][0]["folder"]]
    assert record["full_run"] == 0
    done = list((home / "runs" / "demo").glob("cpu1-*/DONE"))
    assert len(done) == 1 and json.loads(done[0].read_text())["steps"] == 6
    assert (done[0].parent / "model" / "config.json").is_file()


@pytest.mark.thorough
def test_a_learning_rate_that_diverges_fails(home: Path, green: tuple[str, dict[str, Any]]) -> None:
    words = (
        *TRL[:-1],
        "recipe.learning_rate=30",
        "recipe.warmup_ratio=0.0",
        "recipe.max_grad_norm=null",
    )
    shown, record = rollout(*words, "processes=1,2", "steps=12", "report=false", cwd=home, code=3)
    assert not (Path(record["runs"][0]["folder"]).parent / "report.html").exists()
    assert [width["state"] for width in record["runs"]] == ["failed", "planned"]
    assert set(red(record["runs"][0])) & {
        "loss_finite",
        "loss_falls",
        "grad_norm_sane",
        "finished_steps",
    }
    assert "not widened to cpu2" in shown


@pytest.mark.thorough
def test_a_rank_that_is_killed_fails_with_the_cause(
    home: Path, green: tuple[str, dict[str, Any]]
) -> None:
    words = (*TRL[:-1], "recipe.max_steps=500", "recipe.seed=7", "name=killed")
    with subprocess.Popen(
        command(*words, "processes=2", "steps=400"), cwd=home, stdout=subprocess.PIPE, text=True
    ) as running:
        os.kill(rank_that_trains(home / "runs" / "demo" / "rollout-killed"), signal.SIGKILL)
        shown, _ = running.communicate(timeout=400)
    assert running.returncode == 3
    width = read_record(home)["runs"][0]
    assert width["state"] == "failed" and red(width) == ["finished_steps"]
    assert width["measured"]["cause"] and "cpu2 failed: finished_steps" in shown
    page = read_report(home / "runs" / "demo" / "rollout-killed")
    assert "0 of 1 widths passed" in page.text and "[finished_steps]" in page.text


def rank_that_trains(folder: Path) -> int:
    """The process of rank 1, once a step was logged."""
    until = time.monotonic() + 400
    while time.monotonic() < until:
        for metrics in folder.glob("cpu2-*/metrics.jsonl"):
            for event in (
                events(metrics.with_name("events.jsonl")) if metrics.stat().st_size else ()
            ):
                if event.get("rank") == 1 and isinstance(event.get("pid"), int):
                    return int(event["pid"])
        time.sleep(0.2)
    pytest.fail("rank 1 never trained")


def events(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):  # it is being written
            yield json.loads(line)


@pytest.mark.thorough
def test_open_instruct_is_the_same_on_one_rank_and_two(home: Path, open_instruct: Path) -> None:
    """Its weights are bf16, so its tolerance is the measured one of the gate."""
    shown, record = rollout(*FINETUNE, "processes=1,2", "steps=5", cwd=home, code=0)
    one, two = (losses(width)[:5] for width in record["runs"])
    assert two == pytest.approx(one, rel=5e-3)
    assert one[0] == pytest.approx(two[0], rel=2e-3)
    assert "warmup_rounding" not in shown


@pytest.mark.thorough
def test_a_schedule_that_the_width_changes_is_reported_and_then_fails(
    home: Path, open_instruct: Path
) -> None:
    """Upstream counts the warm-up in ranks' steps: on four it has a quarter of one, whose first
    rate is 0.
    """
    shown, record = rollout(*FINETUNE, "processes=1,2,4", "steps=5", cwd=home, code=3)
    assert "0 on 1, 0 on 2, 0.25 on 4" in shown and "[warmup_rounding]" in shown
    assert [width["state"] for width in record["runs"]] == ["done", "done", "failed"]
    assert [width["reused"] for width in record["runs"]] == [True, True, False]
    assert red(record["runs"][2]) == ["loss_parity"]


def test_a_width_that_cannot_hold_the_batch_is_reported_in_the_first_second(tmp_path: Path) -> None:
    ran = subprocess.run(
        command("stage=demo", "device=cpu", "processes=1,2,3"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert (
        ran.stderr.count("\n") == 1
        and "a width of 1 or 2" in ran.stderr
        and "[batch_not_divisible]" in ran.stderr
    )
    assert not list(tmp_path.rglob("rollout.json"))


def test_missing_gpus_are_planned_and_reported(tmp_path: Path) -> None:
    ran = subprocess.run(
        command(
            "stage=sft", "trainer=trl_sft", "data.mix=[{name: some/data}]", "gpus=1,2", "--json"
        ),
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 3, ran.stderr
    (path,) = tmp_path.rglob("rollout.json")
    record = json.loads(path.read_text())
    check(record)
    assert (
        record["state"] == "not_run"
        and [width["state"] for width in record["runs"]] == ["not_run"] * 2
    )
    assert json.loads(ran.stdout) == record
    assert "planned but not run here: gpu1, gpu2" in ran.stderr
