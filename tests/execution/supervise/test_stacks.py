"""Stack dumps of real processes, and the message when py-spy is missing."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from launch.execution.supervise import stacks
from launch.execution.supervise.stacks import describe_place, dump_stacks, find_py_spy

C10D = """Process 1: python train.py
Python v3.11.7 (python3.11)

Thread 1 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2820)
    wrapper (torch/distributed/c10d_logger.py:83)
    gather_loss (train.py:30)
    <module> (train.py:90)
Thread 2 (active): "pin_memory"
    get (queue.py:1)
"""


def test_a_rank_in_a_collective_is_told_from_one_at_work() -> None:
    assert describe_place(C10D) == (
        "waits in all_reduce (torch/distributed/distributed_c10d.py:2820), from gather_loss "
        "(train.py:30)"
    )
    assert describe_place(
        C10D.replace("torch/distributed/distributed_c10d.py", "loader.py")
    ).startswith("is in all_reduce")


def test_a_dump_without_python_frames() -> None:
    assert describe_place("Process 1: python\n\nThread 1 (idle)\n") == "runs no Python code"


def test_the_first_process_counts_and_the_thread_without_a_name_too() -> None:
    child = "\nProcess 8: python\nParent Process 7: python\n\nThread 8 (idle)\n    other (b.py:1)\n"
    text = "Process 7: python\n\nThread 7 (idle)\n    inner (a.py:3)\n" + child
    assert describe_place(text) == "is in inner (a.py:3)"


def test_real_processes_in_parallel_and_one_that_is_not_known(tmp_path: Path) -> None:
    if find_py_spy() is None:
        pytest.skip("py-spy is not installed")
    code = "import time\ndef waiting_for_{}():\n    time.sleep(60)\nwaiting_for_{}()\n"
    started = [subprocess.Popen([sys.executable, "-c", code.format(at, at)]) for at in range(2)]
    time.sleep(1)
    try:
        stacks = dump_stacks(
            {at: psutil.Process(one.pid) for at, one in enumerate(started)},
            range(3),
            tmp_path / "s",
        )
    finally:
        for one in started:
            one.kill()
            one.wait()
    if any("could not be inspected" in line for line in stacks.summary):
        pytest.skip("py-spy may not look into other processes here")
    assert [path.name for path in stacks.files] == ["rank-0.txt", "rank-1.txt"]
    assert "waiting_for_1" in (tmp_path / "s" / "rank-1.txt").read_text()
    assert stacks.summary[0].startswith("rank 0 is in waiting_for_0 (<string>:3)")
    assert stacks.summary[2] == "rank 2: process unknown"


def test_a_process_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    if find_py_spy() is None:
        pytest.skip("py-spy is not installed")
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    known = psutil.Process(process.pid)
    process.wait()
    (line,) = dump_stacks({0: known}, [0], tmp_path).summary
    assert line.startswith("rank 0 could not be inspected: ") and line.endswith("(exited)")


def test_without_py_spy_the_run_is_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    result = dump_stacks({0: psutil.Process()}, [0], tmp_path)
    assert result.files == ()
    assert "py-spy is not installed" in result.summary[0]
