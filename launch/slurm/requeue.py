"""Requeues or ends this job, once an attempt, and without a node that was lost.

The batch script does it, which has Slurm's commands even if the tasks run in a container. Only if
its node, the first one, was lost does another node's task run the same function, in requeue.bash.

A file, the mailbox, tells the batch script what to do. An exit code of the tasks cannot: srun's is
the highest of all tasks, comes only once Slurm has given up the task of a dead node, and names no
host to exclude.

Slurm (22.05) accepts an exclusion of nodes only for waiting jobs, so the job is requeued first. It
cannot start in between: it is completing until every node of it has ended or counts as down. If no
other node fits, that shows only later, when no process is left to undo the exclusion and the job is
held for good (BadConstraints); so `sbatch --test-only` checks that first.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from launch.external import run_command
from launch.files import read_json_object, write_file, write_json
from launch.slurm.allocation import Allocation
from launch.slurm.jobs import JobFolder
from launch.slurm.queue import JobRecord, parse_job_record
from launch.slurm.script import REQUEUE
from launch.slurm.slurm_cli import query_slurm
from launch.worker.json_codec import versioned

_DECISION = "requeue.json"
_TIMEOUT = 120.0  # seconds for the few commands of a requeue, while the controller is busy


def claim_decision(attempt: Path) -> bool:
    """Claim the decision about this attempt's requeue.

    Returns whether this node is the first of the survivors to do so.
    """
    try:
        with (attempt / _DECISION).open("x", encoding="utf-8"):
            return True
    except FileExistsError:
        return False


def write_decision(
    attempt: Path, messages: Sequence[str], *, requeued: bool, is_retry: bool = False
) -> None:
    """Record how an attempt ended: when the first node is lost, so is the job's log.

    `is_retry` is whether a fault of the hardware ended it.
    """
    content = versioned({"messages": messages, "requeued": requeued, "retry": is_retry})
    write_json(attempt / _DECISION, content)


def read_decision(attempt: Path) -> list[str]:
    """Return the messages of `write_decision`; empty if there are none."""
    messages: list[str] = _read_decision(attempt).get("messages", [])
    return messages


def _read_decision(attempt: Path) -> dict[str, Any]:
    return read_json_object(attempt / _DECISION)


def count_requeues(folder: JobFolder, allocation: Allocation, *, retries: bool = False) -> int:
    """Count the earlier starts of this job that launch requeued; preemption and `scontrol requeue`
    do not count.

    `retries` counts those after a fault of the hardware, else the others are counted.
    """
    count = 0
    for attempt in folder.earlier_attempts(allocation.job_id, allocation.restarts):
        decision = _read_decision(attempt)
        if decision.get("requeued") and bool(decision.get("retry")) == retries:
            count += 1
    return count


def instruct_batch_script(
    mailbox: Path, action: Literal["requeue", "retry"], lost_host: str | None = None
) -> None:
    """Have the batch script requeue the job, without the host `lost_host`.

    If no other node fits, `requeue` waits for that host to come back, and `retry` lets the job end.
    """
    _write_mailbox(mailbox, f"{action} {lost_host or ''}")


def end_batch_script(mailbox: Path, exit_code: int, patience: int) -> None:
    """Have the batch script end with an exit code, at most `patience` seconds before srun does."""
    _write_mailbox(mailbox, f"exit {exit_code} {patience}")


def _write_mailbox(mailbox: Path, line: str) -> None:
    # Writing would create the folder, on a disk that the batch script does not see.
    if not mailbox.parent.is_dir():
        raise FileNotFoundError(mailbox.parent)
    write_file(mailbox, f"{line}\n")


def requeue(
    allocation: Allocation, script: Path, lost_host: str | None = None
) -> tuple[bool, list[str]]:
    """Requeue the job from this node without `lost_host`: the batch script was lost with its node.

    Returns whether Slurm accepted, and the messages about it. `script` is the job's batch script,
    with its #SBATCH options. From then on Slurm ends the processes of this job, this one too.
    """
    # Slurm sends SIGTERM to every process of the step, including the commands that follow.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    environ = {
        "job": allocation.job_id,
        "script": str(script),
        "SLURM_RESTART_COUNT": str(allocation.restarts),
        "SLURM_JOB_NUM_NODES": str(len(allocation.hosts)),
    }
    function = REQUEUE.read_text(encoding="utf-8")
    argv = ["bash", "-pc", f'{function}requeue "$@"', "requeue", "requeue", lost_host or ""]
    try:
        done = run_command(argv, timeout=_TIMEOUT, env={**os.environ, **environ}, own_session=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, [f"job {allocation.job_id} cannot be requeued: {error}"]
    lines = (done.stdout if done.returncode == 0 else done.stdout + done.stderr).splitlines()
    return done.returncode == 0, [line.removeprefix("launch: ") for line in lines]


def cancel_job(allocation: Allocation) -> None:
    """Cancel the job if Slurm still runs this attempt of it. Raises UserError.

    srun alone would wait for the task of a lost node as long as Slurm does.
    """
    record = _read_record(allocation)
    if record is not None and is_this_attempt(record, allocation):
        query_slurm(["scancel", allocation.job_id])


def is_this_attempt(record: JobRecord, allocation: Allocation) -> bool:
    """Return whether the job still runs as it did when this node's task began.

    A node that comes back after Slurm restarted the job elsewhere must not end that attempt.
    """
    if record.number != allocation.number or record.state != "RUNNING":
        return False
    return record.restarts == allocation.restarts


def _read_record(allocation: Allocation) -> JobRecord | None:
    result = query_slurm(["scontrol", "--oneliner", "show", "job", allocation.job_id])
    return None if result.status else parse_job_record(result.output)
