"""TensorBoard beside a run, and runs that are detached from their terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.execution.supervise.fake import wait_for
from tests.integration import warm
from tests.integration.conftest import launch_in, records

pytestmark = pytest.mark.slow


def test_a_detached_run_survives_its_terminal_and_is_followed_from_another(home: Path) -> None:
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    words = [
        "run",
        "stage=demo",
        "trainer=trl_sft",
        "name=away",
        "recipe.max_steps=4",
        "tracking=tensorboard",
    ]
    terminal, theirs = pty.openpty()
    run = subprocess.Popen(
        [warm.python_with_cold_ranks(), "-m", "launch", *words, "detach=true"],
        cwd=home,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    said = _all(terminal)
    assert run.wait(timeout=300) == 0, said
    assert "logs demo/away --follow" in said and "stop demo/away" in said
    (told,) = json.loads(launch_in(home, "status", "away", "--json").stdout)
    assert told["state"] == "running"
    os.close(terminal)
    os.kill(told["pid"], signal.SIGHUP)  # what a terminal's end sends
    followed = launch_in(home, "logs", "demo/away", "--follow")
    lines = followed.stdout.splitlines()
    assert lines[0] == "importing the trainer" and "training" in lines, (
        followed.stdout + followed.stderr
    )
    assert lines[-1].startswith("done: 4 steps in")
    folder = home / "runs" / "demo" / "away"
    log = (folder / "logs" / "launch.log").read_text(encoding="utf-8")
    assert "demo with trl_sft" in log and "done: 4 steps" in log
    assert json.loads((folder / "DONE").read_text())["steps"] == 4
    assert len(list((folder / "tensorboard").glob("events.out.tfevents.*"))) == 1
    (told,) = json.loads(launch_in(home, "status", "away", "--json").stdout)
    assert (told["state"], told["step"]) == ("done", 4)


@pytest.mark.thorough
def test_a_detached_run_that_is_refused_says_so_with_its_exit_code(tmp_path: Path) -> None:
    refused = launch_in(
        tmp_path, "run", "stage=sft", "gpus=64", "detach=true", CUDA_VISIBLE_DEVICES=""
    )
    assert refused.returncode == 2
    assert "[too_few_gpus]" in refused.stderr and "started" not in refused.stdout
    several = launch_in(
        tmp_path, "run", "stage=demo", "recipe.seed=1,2", "detach=true", "--multirun"
    )
    assert several.returncode == 2 and "[detach_one]" in several.stderr


def test_stop_ends_a_detached_run_and_every_process_of_it(home: Path) -> None:
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    words = [
        "run",
        "stage=demo",
        "trainer=trl_sft",
        "name=long",
        "recipe.max_steps=5000",
        "recipe.epochs=1000",
    ]
    assert launch_in(home, *words, "detach=true").returncode == 0
    folder = home / "runs" / "demo" / "long"
    wait_for(lambda: records(folder / "metrics.jsonl"), 300)
    stopped = launch_in(home, "stop", "long")
    assert stopped.returncode == 0, stopped.stdout
    failed = json.loads((folder / "FAILED").read_text())
    assert failed["exit_code"] == 130 and "SIGTERM" in failed["cause"]
    assert not [
        process.pid for process in psutil.process_iter() if str(folder) in " ".join(_words(process))
    ]


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # a zombie has none
        return []


@pytest.mark.thorough
def test_check_of_this_machine(home: Path) -> None:
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    done = launch_in(home, "check", "stage=demo", "trainer=trl_sft", "processes=2", "--json")
    told = json.loads(done.stdout)
    verdicts = {finding["id"]: finding["verdict"] for finding in told["findings"]}
    ready = launch_in(
        home, "check", "stage=demo", "trainer=trl_sft", "processes=2"
    ).stdout.splitlines()[-1]
    assert ready == "ready: launch run stage=demo trainer=trl_sft processes=2"
    assert done.returncode == 0 and told["ok"], done.stdout
    assert verdicts["parser_refuses"] == verdicts["no_collective"] == "pass"
    refused = launch_in(
        home, "check", "stage=sft", "gpus=64", "trainer=trl_sft", "allow=[too_few_gpus]"
    )
    assert "too_few_gpus" in refused.stdout and "1 allowed" in refused.stdout
    assert launch_in(home, "check", "stage=sft", "gpus=64", "trainer=trl_sft").returncode == 2


def _all(terminal: int) -> str:
    """What is printed on a terminal until everybody has closed it."""
    data = b""
    try:
        while piece := os.read(terminal, 4096):
            data += piece
            if b"stop it:" in data and data.endswith(b"\n"):
                break
    except OSError:  # Linux says so instead of an end of file
        pass
    return data.decode(errors="replace")
