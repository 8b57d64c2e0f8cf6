"""`status`, `logs` and `stop`: their output, and which run a name resolves to."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.commands.runs import logs, status
from launch.commands.stop import stop
from launch.errors import UserError
from launch.execution.record.folder import RunFolder
from launch.execution.record.lock import run_lock
from launch.execution.record.outcome import Outcome
from launch.execution.record.run import command_for
from launch.planning.find_runs import find_runs, resolve_run, run_name
from tests.conftest import Launch
from tests.execution.record.records import write_run
from tests.paths import ROOT

AT_A_TERMINAL = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell without job control has its background ignore it
runpy.run_module("launch", run_name="__main__", alter_sys=True)
"""
# holds the run until its input ends
HOLD = """
import sys
from pathlib import Path
from launch.execution.record.lock import run_lock
with run_lock(Path(sys.argv[1]), print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs: one done, one failed, one whose launcher has ended without an outcome."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    for name, code in (("demo/good", 0), ("demo/bad", 1)):
        write_run(folder / name, steps=3)
        cause = None if code == 0 else "rank 1: CUDA out of memory"
        outcome = Outcome(code, 75.0, 3, 2.0, cause=cause, detail=("train.py:12",) if code else ())
        RunFolder(folder / name).finish(outcome)
    write_run(folder / "sft/gpu8-abc", steps=2, total=4)
    (folder / "sft/gpu8-abc/logs/rank-0.log").write_text("hello from rank 0\n", encoding="utf-8")
    (folder / ".cache").mkdir()
    return folder


def refusal(argv: list[str], verb: str = "logs") -> tuple[str, str]:
    with pytest.raises(UserError) as refused:
        {"logs": logs, "status": status, "stop": stop}[verb](argv)
    (problem,) = refused.value.problems
    return problem.id, str(problem.cure or "")


def test_a_run_is_known_by_the_id_of_its_job(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = runs / ".jobs" / "sft" / "gpu8-abc"
    job.mkdir(parents=True)
    (job / "job.sbatch").write_text("#!/bin/bash\n", encoding="utf-8")
    (job / "jobs.jsonl").write_text('{"job_id": "4711"}\n', encoding="utf-8")
    assert logs(["4711", "--rank", "0"]) == 0
    assert capsys.readouterr().out == "hello from rank 0\n"
    assert refusal(["4712"], "stop") == (
        "unknown_run",
        "`scancel 4712` ends a job that launch did not submit",
    )


def test_status_lists_every_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status([]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "run state step loss tokens/s left since"
    assert lines[1].startswith("demo/bad failed (1) 3/3 2.0000 300")
    assert lines[2] == "rank 1: CUDA out of memory"
    assert lines[3].startswith("demo/good done 3/3 2.0000 300")
    assert lines[4].startswith("sft/gpu8-abc unfinished 2/4 3.0000 200")
    assert len(lines) == 5


def test_status_of_a_live_run_names_its_process(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_lock(runs / "sft/gpu8-abc", pytest.fail):
        assert status(["sft/gpu8", "--json"]) == 0
        (run,) = json.loads(capsys.readouterr().out)
    assert (run["schema_version"], run["state"], run["pid"]) == (1, "running", os.getpid())
    assert (run["step"], run["total_steps"], run["seconds_left"]) == (2, 4, 2.0)
    assert run["heartbeat_seconds"] < 5 and run["phase"] == "training"


def test_a_folder_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status([f"runs={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"no runs in {tmp_path};") and "runs=DIR" in printed


def test_which_run_a_name_resolves_to(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("sft/gpu8-abc", "gpu8-abc", "gpu", "sft", str(runs / "sft" / "gpu8-abc")):
        assert resolve_run(name, runs) == runs / "sft" / "gpu8-abc"
    shutil.copytree(runs / "sft" / "gpu8-abc", runs / "sft_lora" / "gpu8-def")
    assert resolve_run("sft", runs) == runs / "sft" / "gpu8-abc"
    later = time.time() + 60
    os.utime(runs / "sft_lora" / "gpu8-def" / "plan.json", (later, later))
    assert resolve_run("latest", runs) == runs / "sft_lora" / "gpu8-def"
    assert refusal(["gpu8"], "stop")[0] == "ambiguous_run"
    assert len(re.findall(r"demo/\w+ \(2", refusal(["demo/"], "stop")[1])) == 2
    assert logs(["gpu8"]) == 0  # what only reads takes the newest
    assert "note: sft_lora/gpu8-def, the newest of the 2 runs" in capsys.readouterr().err
    assert refusal(["god"])[0] == "unknown_run" and "'good'" in refusal(["god"])[1]
    assert refusal([])[0] == "usage"
    assert refusal(["good"], "stop")[0] == "not_running"


def test_logs_print_what_the_display_showed_and_how_it_ended(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logs(["bad"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "importing the trainer",
        "loading the model",
        "training",
        "step 1/3  loss 4.0000  100 tokens/s",
        "step 3/3  loss 2.0000  300 tokens/s  0 s left",
        "failed (1) after step 3: rank 1: CUDA out of memory",
        "  train.py:12",
    ]
    assert logs(["gpu8", "--follow"]) == 0  # nobody runs it: there is nothing to wait for
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "unfinished: its launcher ended without recording an outcome"
    )


def test_the_log_of_a_rank(runs: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert logs(["gpu8", "--rank", "0"]) == 0
    assert capfdbinary.readouterr().out == b"hello from rank 0\n"
    second = runs / "sft/gpu8-abc/nodes/1/logs"
    second.mkdir(parents=True)
    (second / "rank-10.log").write_text("hello from the second node\n", encoding="utf-8")
    assert logs(["gpu8", "--rank", "10"]) == 0
    assert capfdbinary.readouterr().out == b"hello from the second node\n"
    assert refusal(["gpu8", "--rank=3"]) == ("no_such_rank", "its ranks: 0, 10")
    assert refusal(["gpu8", "--rank=x"])[0] == "bad_value"


@pytest.mark.parametrize("several", ["rollout-1", "bench-1", "tune-1"])
def test_runs_that_belong_together_are_listed_below_their_folder(runs: Path, several: str) -> None:
    width = write_run(runs / f"sft/{several}/gpu1-abc", steps=1)
    assert width in find_runs(runs)
    assert run_name(width) == f"sft/{several}/gpu1-abc"
    assert resolve_run(f"sft/{several}/gpu1-abc", runs) == resolve_run("gpu1", runs) == width


def test_the_printed_command_finds_the_run(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = write_run(runs / "sft/rollout-1/gpu1-abc", steps=1)
    assert command_for("logs", runs / "demo/good", "-f") == "launch logs demo/good -f"
    assert command_for("stop", width) == "launch stop sft/rollout-1/gpu1-abc"
    monkeypatch.chdir("/")
    argv = shlex.split(command_for("logs", runs / "demo/good"))
    assert argv[1:] == ["logs", "demo/good", f"runs={runs}"] and logs(argv[2:]) == 0


def test_ctrl_c_stops_following_and_stop_stops_the_run(runs: Path) -> None:
    folder = runs / "sft" / "gpu8-abc"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        argv = [sys.executable, "-c", AT_A_TERMINAL, "logs", "gpu8", "--follow", f"runs={runs}"]
        follower = subprocess.Popen(
            argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert follower.stdout is not None
        assert follower.stdout.readline() == "importing the trainer\n"  # it follows from here on
        follower.send_signal(signal.SIGINT)
        _, error = follower.communicate(timeout=30)
        assert follower.returncode == 0 and "sft/gpu8-abc continues" in error
        assert holder.poll() is None
        assert stop([f"runs={runs}", "gpu8"]) == 0
        assert holder.wait(timeout=10) == -signal.SIGTERM
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.parametrize("verb", ["status", "logs", "stop", "cluster"])
def test_help_without_a_run(verb: str, launch: Launch) -> None:
    shown = launch(verb, "--help")
    assert (
        shown.stdout.startswith(f"usage: launch {verb} ")
        and "example" in shown.stdout
        and not shown.stderr
    )
    assert shown.returncode == 0 and max(map(len, shown.stdout.splitlines())) <= 120


def test_a_prompt_without_quotes_is_not_only_an_unknown_run(launch: Launch) -> None:
    for prompt, is_split in ((("What", "is a deque?"), True), (("What is a deque?",), False)):
        done = launch("generate", "demo/r2", *prompt)
        assert done.returncode == 2 and ("a prompt is put in quotes" in done.stderr) is is_split
