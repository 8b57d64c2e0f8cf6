"""Jobs that squeue no longer shows: what sacct prints of them, and what is left without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launch.slurm.accounting import find_ended_jobs, parse_ended_jobs
from launch.slurm.job_status import add_accounting, list_job_statuses
from launch.slurm.jobs import JobFolder
from launch.slurm.queue import QueuedJob, folder_tag

# as Slurm 22.05 prints it
PRINTED = """12|FAILED|7:0|1763740900|None
13|CANCELLED by 1001|0:0|1763740900|None
14|RUNNING|0:0|Unknown|None
15_[0-1,3]|CANCELLED by 0|0:0|1763740900|None
16|TIMEOUT|0:0|1763740900|None
"""


@pytest.mark.parametrize(
    ("job_id", "described"),
    [
        ("12", "job 12, failed with exit code 7"),
        ("13", "job 13, cancelled by user 1001"),
        ("14", None),
        ("15_1", "job 15_1, cancelled by user 0"),
        ("15_3", "job 15_3, cancelled by user 0"),
        # a task that alone was cancelled while it waited has no record
        ("15_2", "job 15_2, cancelled (before it started)"),
        ("16", "job 16, timeout"),
        ("17", None),
        ("17_1", None),
    ],
)
def test_what_accounting_records(job_id: str, described: str | None) -> None:
    ended = parse_ended_jobs(PRINTED, [job_id])
    assert (str(ended[job_id]) if job_id in ended else None) == described


def sacct(folder: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> Path:
    """A sacct that does what the lines say, and records its calls."""
    calls = folder / "calls"
    binary = folder / "bin" / "sacct"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\necho "$@" >>{calls}\n{does}\n', encoding="utf-8")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(binary.parent), prepend=os.pathsep)
    return calls


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs that were submitted as the jobs 12, 13 and 14."""
    for number in (12, 13, 14):
        folder = JobFolder.of(tmp_path / "runs", "sft", f"run-{number}")
        folder.write_script("#!/bin/bash\n")
        folder.record_submission(str(number))
    return tmp_path / "runs"


def test_accounting_is_queried_once_for_all_runs(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = sacct(tmp_path, monkeypatch, f"cat <<'END'\n{PRINTED}END")
    first, second, third = add_accounting(list_job_statuses(runs, []), runs)
    assert len(calls.read_text().splitlines()) == 1
    assert (first.cause, second.cause) == (
        "job 12, failed with exit code 7",
        "job 13, cancelled by user 1001",
    )
    assert third.cause is not None and "submitted" in third.cause


@pytest.mark.parametrize(
    "does", ["echo 'Slurm accounting storage is disabled' >&2; exit 1", "exit 1"]
)
def test_without_accounting_the_folder_has_what_was_last_known(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    sacct(tmp_path, monkeypatch, does)
    assert find_ended_jobs(["12"]) is None
    tag = folder_tag(JobFolder.of(runs, "sft", "run-12").path)
    waiting = QueuedJob("12", "PENDING", "Priority", None, 0.0, 0, 1, "", tag)
    [seen, *_] = list_job_statuses(runs, [waiting])
    assert seen.state == "pending"
    first, second, _ = add_accounting(list_job_statuses(runs, []), runs)
    assert first.state == second.state == "ended"
    assert "as pending (Priority)" in str(first.cause), first.cause
    assert "no longer knows job 13: it was submitted 20" in str(second.cause), second.cause


@pytest.mark.parametrize(
    ("state", "reason", "shown"),
    [
        ("PENDING", "JobHeldUser", "held"),
        ("REQUEUE_HOLD", "None", "held"),
        ("PENDING", "job requeued in held state", "held"),
        ("PENDING", "launch failed requeued held", "held"),
        ("PENDING", "BadConstraints", "held"),
        ("SUSPENDED", "None", "suspended"),
        ("PENDING", "JobHoldMaxRequeue", "held"),
        ("PENDING", "Priority", "pending"),
        ("PENDING", "ReqNodeNotAvail, UnavailableNodes:household1", "pending"),
    ],
)
def test_what_a_job_waits_for(runs: Path, state: str, reason: str, shown: str) -> None:
    tag = folder_tag(JobFolder.of(runs, "sft", "run-12").path)
    job = QueuedJob("12", state, reason, None, 0.0, 0, 1, "", tag)
    assert list_job_statuses(runs, [job])[0].state == shown
