"""`stop` signals the launcher of the run and nothing else, whatever process the run's lock
names.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from launch.commands.stop import stop
from launch.errors import UserError
from launch.execution.record.lock import Holder, lock_path, prove_launcher, this_process
from tests.execution.record.records import write_run
from tests.paths import ROOT

# answers each line of its input until that ends
WAITS = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    print("alive", flush=True)
"""
OPENS = f"import sys; file = open(sys.argv[1])\n{WAITS}"
HOLD = f"""
import sys
from pathlib import Path
from launch.execution.record.lock import run_lock
with run_lock(Path(sys.argv[1]), print):
    exec({WAITS!r})
"""
Start = Callable[..., psutil.Popen]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python with a program, and wait until it is ready."""
    started: list[psutil.Popen] = []

    def run(*argv: str) -> psutil.Popen:
        process = psutil.Popen(
            [sys.executable, "-c", *argv],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
        process.communicate()


def is_alive(process: psutil.Popen) -> bool:
    """Whether a started process answers; a signal that was sent before would have ended it."""
    try:
        process.stdin.write("?\n")
        process.stdin.flush()
    except BrokenPipeError:
        return False
    return bool(process.stdout.readline() == "alive\n")


def name_in_lock(run: Path, pid: int, born: float, **of_machine: str) -> None:
    holder = replace(this_process(), pid=pid, born=born, **of_machine)
    lock_path(run).write_text(json.dumps({"schema_version": 1, **asdict(holder)}))


def refused(run: Path) -> str:
    with pytest.raises(UserError) as caught:
        stop([f"runs={run.parent.parent}", run.name])
    return caught.value.problems[0].id


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "sft" / "mine", steps=1)


@pytest.mark.parametrize(
    "argv",
    [
        (WAITS,),
        (WAITS, "-m", "launch", "run", "stage=sft", "name=mine"),  # only looks like one
        (OPENS, "{run}/plan.json"),  # works in the run's folder
        (OPENS, "{run}"),
        (HOLD, "{run}-other"),  # of another run
    ],
    ids=["any", "looks_like_it", "reads_the_run", "reads_the_folder", "another_run"],
)
def test_a_process_that_a_lock_names_and_that_does_not_hold_it(
    start: Start, run: Path, argv: tuple[str, ...]
) -> None:
    if argv[-1] == "{run}":
        argv = (
            argv[0].replace("open(sys.argv[1])", "__import__('os').open(sys.argv[1], 0)"),
            argv[-1],
        )
    process = start(*(part.replace("{run}", str(run)) for part in argv))
    name_in_lock(run, process.pid, process.create_time())
    assert refused(run) == "launcher_mismatch"
    assert is_alive(process)


def test_a_launcher_of_another_machine_is_stopped_there(start: Start, run: Path) -> None:
    launcher = start(HOLD, str(run))
    born = launcher.create_time()
    name_in_lock(run, launcher.pid, born, machine="another", host="n7")
    with pytest.raises(UserError) as caught:
        stop([f"runs={run.parent.parent}", run.name])
    [problem] = caught.value.problems
    assert problem.id == "runs_elsewhere" and "n7" in problem.message
    assert "launch stop sft/mine" in str(problem.cure) and is_alive(launcher)
    name_in_lock(run, launcher.pid, born)  # as that machine reads it
    assert stop([f"runs={run.parent.parent}", run.name]) == 0


@pytest.mark.parametrize(
    "pid",
    [0, -1, -os.getpid(), 2**31 - 1, 2**40, 2**70],
    ids=["0", "-1", "own group", "int", "40", "70"],
)
def test_a_number_that_is_no_process(run: Path, pid: int) -> None:
    """0 and -1 would be every process of the group and of the user."""
    name_in_lock(run, pid, time.time())
    assert refused(run) == "not_running"


def test_this_process_and_the_first_one(run: Path) -> None:
    for pid in (os.getpid(), os.getppid(), 1):
        try:
            born = psutil.Process(pid).create_time()
        except psutil.Error:
            continue
        name_in_lock(run, pid, born)
        assert refused(run) == "launcher_mismatch"


def test_a_copied_run_names_the_launcher_of_the_original(
    start: Start, run: Path, tmp_path: Path
) -> None:
    process = start(HOLD, str(run))
    shutil.copytree(tmp_path / "runs", tmp_path / "copy")
    assert refused(tmp_path / "copy" / "sft" / "mine") == "launcher_mismatch"
    assert is_alive(process)


@pytest.mark.parametrize("link", ["hard", "symbolic"])
def test_the_lock_of_another_run_under_this_ones_name(start: Start, run: Path, link: str) -> None:
    other = write_run(run.with_name("other"), steps=1)
    process = start(HOLD, str(other))
    if link == "hard":
        os.link(lock_path(other), lock_path(run))
    else:
        lock_path(run).symlink_to(lock_path(other))
    assert refused(run) == ("launcher_mismatch" if link == "hard" else "not_running")
    assert is_alive(process)


def test_a_reused_process_id_that_has_the_lock_open(start: Start, run: Path) -> None:
    lock_path(run).touch()
    process = start(OPENS, str(lock_path(run)))
    born = process.create_time()
    for error, proven in ((0.0, True), (-60.0, False), (60.0, False), (float("nan"), False)):
        holder = Holder("host", "user", process.pid, born + error, "", "token")
        assert (prove_launcher(lock_path(run), holder) is not None) == proven, error


def test_a_lock_that_was_replaced_under_its_launcher(start: Start, run: Path) -> None:
    launcher, other = start(HOLD, str(run)), start(WAITS)
    lock_path(run).unlink()
    name_in_lock(run, other.pid, other.create_time())
    assert refused(run) == "launcher_mismatch"
    assert is_alive(launcher) and is_alive(other)
    name_in_lock(run, launcher.pid, launcher.create_time())  # the right one after all
    assert stop([f"runs={run.parent.parent}", run.name]) == 0
    assert is_alive(other)


@pytest.mark.parametrize("way", ["plain", "stopped", "linked"])
def test_the_launcher_itself_is_stopped(start: Start, run: Path, tmp_path: Path, way: str) -> None:
    launcher = start(HOLD, str(run))
    if way == "stopped":
        launcher.suspend()
    runs = tmp_path / "runs"
    if way == "linked":
        (tmp_path / "link").symlink_to(runs)
        runs = tmp_path / "link"
    assert stop([f"runs={runs}", "mine"]) == 0
    assert launcher.wait(10) == -signal.SIGTERM
