"""A real CPU run killed in the middle, by SIGKILL, goes on where it was: same steps, same data, same losses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration import warm
from tests.integration.demo_kit import give_demo
from tests.integration.reports import read_report

pytestmark = pytest.mark.slow

# 20 batches an epoch in steps of 3: an epoch ends in a shorter step, so that upstream's own arithmetic would go on at a
# wrong batch; and there is an epoch after the one that is resumed, of which dpo_tune_cache.py itself would skip a part
SHAPE = (
    *("recipe.epochs=3", "recipe.max_steps=null", "recipe.checkpoint_steps=2"),
    *("recipe.global_batch_size=12", "recipe.per_device_batch_size=4", "processes=1"),
)
STAGES = {
    "finetune": ("stage=demo", "data.fraction=0.02", "recipe.balanced=true", "recipe.loss_averaging=tokens"),
    "dpo_tune_cache": ("stage=demo_dpo", "data.fraction=0.05", "recipe.balanced=true"),
    "trl_sft": ("stage=demo", "data.fraction=0.02"),
}
LAST = 21  # three epochs of 7 steps
KILLED_AFTER = 10


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return give_demo(tmp_path_factory, tmp_path_factory.mktemp("resume"))


def start(home: Path, *words: str) -> subprocess.Popen[str]:
    log = (home / "launch.log").open("w")
    command = [warm.python(), "-m", "launch", "run", *words]
    return subprocess.Popen(command, cwd=home, stdout=log, stderr=subprocess.STDOUT, text=True)


def finish(home: Path, *words: str) -> tuple[int, str]:
    """The exit code of a run and what it printed."""
    code = start(home, *words).wait(timeout=300)
    return code, (home / "launch.log").read_text()


def steps(folder: Path) -> list[dict[str, Any]]:
    metrics = folder / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.is_file() else []


def kill_after(home: Path, folder: Path, checkpoint: str, *words: str) -> None:
    """Start a run and kill its launcher once a step after `checkpoint` was logged."""
    running = start(home, *words)
    deadline = time.monotonic() + 240
    wanted = int("".join(filter(str.isdigit, checkpoint)))
    while not (folder / "model" / checkpoint).is_dir() or steps(folder)[-1]["step"] <= wanted:
        assert running.poll() is None, (home / "launch.log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert not (folder / "DONE").exists()
    assert not (folder / "FAILED").exists()


@pytest.mark.parametrize("trainer", STAGES)
def test_a_killed_run_goes_on(trainer: str, home: Path, request: pytest.FixtureRequest) -> None:
    if trainer != "trl_sft":
        request.getfixturevalue("open_instruct")
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    words = (f"trainer={trainer}", *STAGES[trainer], *SHAPE)
    stage = STAGES[trainer][0].removeprefix("stage=")
    whole, cut = (home / "runs" / stage / f"{trainer}-{name}" for name in ("whole", "cut"))
    code, told = finish(home, *words, f"name={whole.name}")
    assert code == 0, told

    prefix = "checkpoint-" if trainer == "trl_sft" else "step_"
    kill_after(home, cut, f"{prefix}{KILLED_AFTER}", *words, f"name={cut.name}")
    command = [sys.executable, "-m", "launch", "report", str(cut)]
    subprocess.run(command, cwd=home, check=True, capture_output=True, timeout=60)
    assert "its launcher ended without recording an outcome" in read_report(cut).text
    # what a checkpoint's own mark is worth: upstream would take this one
    bogus = cut / "model" / f"{prefix}{LAST - 2}"
    bogus.mkdir()
    (bogus / "COMPLETED").write_text("COMPLETED")

    code, told = finish(home, *words, f"name={cut.name}")
    assert code == 0, told
    assert "took over the lock of" in told
    resumed = json.loads((cut / "attempts.jsonl").read_text().splitlines()[-1])
    assert f"resumes from {resumed['resumed_from']} (attempt 2)" in told
    first = int(resumed["resumed_from"].removeprefix(prefix))
    assert KILLED_AFTER <= first < LAST - 2
    assert bogus.name in resumed["set_aside"]
    assert f"{bogus.name} is incomplete" in told
    assert not bogus.exists()

    expected, seen = steps(whole), steps(cut)
    assert [one["step"] for one in seen] == [one["step"] for one in expected] == list(range(1, LAST + 1))
    assert [one["loss"] for one in seen] == pytest.approx([one["loss"] for one in expected], rel=1e-6)
    assert [one.get("tokens") for one in seen] == [one.get("tokens") for one in expected]
    assert json.loads((cut / "DONE").read_text())["steps"] == LAST
    assert f"resumed from {resumed['resumed_from']}" in read_report(cut).text

    code, told = finish(home, *words, f"name={cut.name}")
    assert (code, "already done" in told) == (0, True)
    assert len((cut / "attempts.jsonl").read_text().splitlines()) == 2
