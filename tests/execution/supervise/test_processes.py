"""Processes that a killed launcher left are waited for before the run goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.execution.supervise.processes import wait_for_orphans
from tests.messages import values_of


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the folder `model` on its command line, which ends with its input."""
    argv = [sys.executable, "-c", "import sys; sys.stdin.read()", str(tmp_path / "model")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_that_goes_on_writing_is_named(
    writer: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    notes: list[str] = []
    with pytest.raises(UserError) as refused:
        wait_for_orphans(tmp_path / "model", notes.append, patience=0.0)
    [problem] = refused.value.problems
    assert problem.id == "still_running" and "name=" in values_of(str(problem.cure))
    assert str(writer.pid) in values_of(problem.message)
    wait_for_orphans(tmp_path / "model-2", pytest.fail, patience=0.0)  # as the cure does
    writer.communicate()
    wait_for_orphans(tmp_path / "model", pytest.fail, patience=0.0)


def test_one_that_ends_meanwhile_is_waited_for(
    writer: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    notes: list[str] = []

    def end(note: str) -> None:
        notes.append(note)
        writer.communicate()

    wait_for_orphans(tmp_path / "model", end, patience=60.0)
    assert [values_of(note) for note in notes] == [["1"]]
