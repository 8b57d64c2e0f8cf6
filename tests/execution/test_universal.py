"""The conversion of a DeepSpeed checkpoint: it fails without a loss, and leaves nothing behind."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.execution.record.attempts import begin_attempt
from launch.execution.record.written import checkpoint_files
from launch.execution.resume import AttemptStart, converted_folder, decide_start
from launch.execution.universal import converted
from launch.planning.plan import Plan
from tests.execution.files import trl_checkpoint
from tests.execution.test_resume import begin, plan_of

ZERO = ("trainer=trl_sft", "parallel=zero2")


def start_at_two(folder: Path) -> tuple[Plan, AttemptStart]:
    """A run of one rank that goes on with two, by this interpreter."""
    before = plan_of(folder, *ZERO, "processes=1")
    begin(before, 20)
    begin_attempt(before.folder, None, (), before)
    trl_checkpoint(before.model_dir / "checkpoint-20", 20, 1, 2)
    plan = plan_of(folder, *ZERO, "processes=2")
    plan = replace(plan, command=(sys.executable, *plan.command[1:]))
    return plan, decide_start(plan)


def files_of(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))


def no_state(_: pytest.MonkeyPatch) -> None:
    """The conversion itself fails, since the files are no state of DeepSpeed's."""


@pytest.mark.parametrize(
    ("harm", "id"), [(no_room, "no_room_to_convert"), (no_state, "conversion_failed")]
)
def test_a_failed_conversion_loses_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[pytest.MonkeyPatch], None],
    id: str,
) -> None:
    plan, start = start_at_two(tmp_path)
    half = converted_folder(plan) / "checkpoint-20" / "global_step20"
    half.mkdir(parents=True)  # what a launcher left that was killed meanwhile
    (half / "zero").write_text("half")
    before = files_of(plan.model_dir)
    states = checkpoint_files(plan.model_dir)  # with the times, by which a resume knows the files
    harm(monkeypatch)
    said: list[str] = []
    with pytest.raises(UserError) as failed, converted(plan, start, said.append):
        pass
    assert [problem.id for problem in failed.value.problems] == [id]
    assert "checkpoint-20" in said[0] and "cpu2" in said[0]
    assert files_of(plan.model_dir) == before
    assert checkpoint_files(plan.model_dir) == states
    assert not converted_folder(plan).exists()
    assert decide_start(plan) == start


def test_what_needs_no_conversion_starts_at_once(tmp_path: Path) -> None:
    plan, _ = start_at_two(tmp_path)
    (converted_folder(plan) / "checkpoint-10").mkdir(parents=True)
    said: list[str] = []
    with converted(plan, AttemptStart(), said.append):
        assert not converted_folder(plan).exists()
    assert not said
