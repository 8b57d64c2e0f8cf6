"""Why Slurm ended a job's tasks: what scontrol and sinfo would print, and the job's log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launch.slurm.allocation import Allocation
from launch.slurm.job_log import JobLog
from launch.slurm.node.signal_cause import find_signal_cause

ALLOCATION = Allocation(job_id="12", number=12, restarts=1, node_rank=0, hosts=("n1", "n2"))
RECORD = "JobId=12 JobState={state} Reason={reason} Restarts={restarts} TimeLimit=01:00:00 "
DOWN = "n1|allocated|none\nn2|down*|Not responding\n"
SRUN = "srun: error: n2: task 1: Killed\nsrun: Force Terminated StepId=12.0\n"


def stand_in(folder: Path, name: str, prints: str | None) -> None:
    """Write a command of Slurm that prints the text, or, without one, fails."""
    lines = "exit 1" if prints is None else f"cat <<'END'\n{prints}END"
    (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
    (folder / name).chmod(0o755)


def record(state: str, reason: str = "None", restarts: int = 1, more: str = "") -> str:
    return RECORD.format(state=state, reason=reason, restarts=restarts) + more + "\n"


@pytest.mark.parametrize(
    ("shown", "nodes", "printed", "absent", "cause"),
    [
        (record("COMPLETING", "TimeLimit"), "", "", [], "job 12 reached its time limit (01:00:00)"),
        (record("TIMEOUT"), "", SRUN, [], "job 12 reached its time limit (01:00:00)"),
        (record("PREEMPTED"), "", "", [], "job 12 was preempted"),
        (record("RUNNING", more="PreemptTime=2026-11-21T13:00:00 "), "", SRUN, [],
         "job 12 was preempted"),
        (record("CANCELLED"), "", SRUN, [], "job 12 was cancelled"),
        (record("COMPLETING", restarts=2), DOWN, "", [],
         "Slurm counts node n2 as down (Not responding)"),
        (record("NODE_FAIL"), DOWN, "", [], "Slurm counts node n2 as down (Not responding)"),
        (record("PENDING", restarts=2), "n1|idle|none\n", "", [],
         "job 12 was requeued (scontrol requeue)"),
        (record("RUNNING"), "", SRUN, [], "the launcher on node n2 ended: Killed"),
        (record("RUNNING"), "", "", ["n2"], "node n2 ended before it reported: see the job's log"),
        (record("RUNNING"), "", "", [], "a signal was sent to job 12 (scancel --signal)"),
        (None, None, "", [], "job 12 was ended by Slurm, which does not answer here"),
    ],
)  # fmt: skip
def test_the_cause_of_a_signal(  # noqa: PLR0917
    shown: str | None,
    nodes: str | None,
    printed: str,
    absent: list[str],
    cause: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in(tmp_path, "scontrol", shown)
    stand_in(tmp_path, "sinfo", nodes)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("launch.slurm.node.signal_cause._SHOWN_AFTER", 0.0)
    log = tmp_path / "job-12.log"
    log.write_text(printed)
    assert find_signal_cause(ALLOCATION, JobLog(log, 0), absent).text == cause
