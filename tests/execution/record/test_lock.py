"""One launcher per folder, and no lock survives its holder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.execution.record import lock
from tests.paths import ROOT

HOLD = """
import sys, time
from pathlib import Path
from launch.execution.record import lock
with lock.run_lock(Path(sys.argv[1]), print):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True, env=environ
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def write(folder: Path, holder: lock.Holder, age: float = 0.0) -> Path:
    path = lock.lock_path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema_version": 1, **asdict(holder)}))
    heartbeat = path.stat().st_mtime - age
    os.utime(path, (heartbeat, heartbeat))
    return path


def test_the_second_launcher_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    folder = tmp_path / "stage" / "run"
    first = hold(folder)
    lines: list[str] = []
    try:
        with pytest.raises(UserError) as refused, lock.run_lock(folder, lines.append):
            pass
        [problem] = refused.value.problems
        assert problem.id == "run_is_locked"
        assert f"process {first.pid}" in problem.message
        assert lines == []
    finally:
        first.kill()
        first.wait()
    with lock.run_lock(folder, lines.append):
        assert "took over the lock of" in lines[0]
        assert str(first.pid) in lines[0]
    assert not lock.lock_path(folder).exists()
    assert list(folder.parent.iterdir()) == []


def test_a_reused_process_id_does_not_hold_the_lock(tmp_path: Path) -> None:
    own = lock.this_process()
    write(tmp_path / "run", replace(own, born=own.born - 1000, token="old"))
    lines: list[str] = []
    with lock.run_lock(tmp_path / "run", lines.append):
        assert len(lines) == 1


@pytest.mark.parametrize("age", [0.0, lock.STALE - 10, lock.STALE + 10])
def test_another_host_holds_the_lock_while_its_heartbeats_come(tmp_path: Path, age: float) -> None:
    path = write(
        tmp_path / "run", lock.Holder("elsewhere", "ada", 1, 0.0, "another boot", "theirs"), age
    )
    lines: list[str] = []
    if age < lock.STALE:
        assert lock.find_holder(path) is not None
        with (
            pytest.raises(UserError, match="ada@elsewhere"),
            lock.run_lock(tmp_path / "run", lines.append),
        ):
            pass
        assert json.loads(path.read_text())["token"] == "theirs"
    else:
        assert lock.find_holder(path) is None
        with lock.run_lock(tmp_path / "run", lines.append):
            assert "ada@elsewhere" in lines[0]


def test_an_unreadable_file_is_held_by_its_age_alone(tmp_path: Path) -> None:
    path = lock.lock_path(tmp_path / "run")
    path.write_text("")
    with pytest.raises(UserError), lock.run_lock(tmp_path / "run", print):
        pass
    os.utime(path, (1, 1))
    with lock.run_lock(tmp_path / "run", print):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_the_holder_sends_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "INTERVAL", 0.02)
    path = lock.lock_path(tmp_path / "run")
    with lock.run_lock(tmp_path / "run", print):
        os.utime(path, (1, 1))
        for _ in range(200):
            if path.stat().st_mtime > 1:
                break
            subprocess.run(["sleep", "0.02"], check=True)
        assert path.stat().st_mtime > 1


def test_one_of_several_launchers_takes_over_a_dead_lock(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(
        folder, lock.Holder("elsewhere", "ada", 1, 0.0, "another boot", "theirs"), lock.STALE + 60
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    launchers = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD.replace("sleep(60)", "sleep(3)"), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environ,
        )
        for _ in range(5)
    ]
    outputs = [process.communicate()[0] for process in launchers]
    assert sum("held\n" in output for output in outputs) == 1


def test_a_refused_run_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "sft" / "gpu1"
    with pytest.raises(ValueError, match="refused"), lock.run_lock(folder, print):
        assert folder.parent.is_dir()
        raise ValueError("refused")
    assert list(tmp_path.iterdir()) == []
    with lock.run_lock(folder, print):
        folder.mkdir()
    assert folder.is_dir()


def test_a_signal_right_after_the_file_was_made_leaves_neither_file_nor_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_and_interrupt(source: Path, target: Path) -> None:
        link(source, target)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(os, "link", link_and_interrupt)
    # which a background process of a shell has not
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with (
        pytest.raises(KeyboardInterrupt),
        lock.run_lock(tmp_path / "runs" / "demo" / "r", pytest.fail),
    ):
        pytest.fail("it was interrupted before")
    assert list(tmp_path.iterdir()) == []
