"""The status of a run and its job: the run's own record, Slurm's queue and its accounting."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.execution.record.lock import STALE, age_of
from launch.execution.record.run import Run
from launch.execution.record.run_status import RunStatus
from launch.files import first_written
from launch.planning.find_runs import find_runs, run_name
from launch.slurm.accounting import EndedJob, find_ended_jobs
from launch.slurm.job_log import last_message
from launch.slurm.jobs import (
    EVALUATE_SUFFIX,
    TOKENIZE_SUFFIX,
    JobFolder,
    find_job_folder,
    find_job_folders,
    find_job_ids,
    find_jobs,
)
from launch.slurm.queue import QueuedJob
from launch.worker.json_codec import to_json

_CLOCK_SKEW = 5.0  # seconds by which the clocks of two machines may differ


@dataclass(frozen=True)
class JobStatus:
    """The status of a run and its job."""

    run: RunStatus
    # The run's state, or pending, held, requeued, suspended, starting (the job runs, its launcher
    # not yet), lost (the job runs, its launcher no longer), ended (the job ended before the run
    # began) or submitted (Slurm was not queried).
    state: str
    since: float  # unix seconds
    record: Run | None = None  # what `run` is read from; None if it cannot be read
    job_id: str | None = None  # id of the last recorded job
    job: QueuedJob | None = None  # None once Slurm has forgotten it
    ended: EndedJob | None = None  # what accounting knows of a job that Slurm has forgotten
    cause: str | None = None

    def json_fields(self) -> dict[str, Any]:
        fields = {
            **to_json(self.run),
            "state": self.state,
            "since": round(self.since, 3),
            "job_id": self.job_id,
        }
        if self.cause:
            fields["cause"] = self.cause
        return {**fields, "job": self.job, "accounting": self.ended}


def list_job_statuses(runs: Path, queue: Sequence[QueuedJob] | None) -> list[JobStatus]:
    """List the runs below `runs`, also those that were only submitted.

    `queue` is None without a response from Slurm.
    """
    paths = set(find_runs(runs))
    for run, folder in find_job_folders(runs).items():
        # A folder without a job was written by a dry run.
        if find_job_ids(folder) or find_jobs(folder, queue or ()):
            paths.add(run)
    return [_read_any_status(path, runs, queue) for path in sorted(paths)]


def _read_any_status(run: Path, runs: Path, queue: Sequence[QueuedJob] | None) -> JobStatus:
    """Read a run's status; one that cannot be read is listed as such and hides no other."""
    try:
        return read_job_status(run, runs, queue)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        now = time.time()
        unreadable = RunStatus(path=run, name=run_name(run), state="unreadable", since=now)
        return JobStatus(unreadable, "unreadable", now, cause=f"its record can't be read: {error}")


def read_job_status(run: Path, runs: Path, queue: Sequence[QueuedJob] | None) -> JobStatus:
    """Read the status of the run in the folder `run`, whether it has started or not."""
    record = Run(run)
    run_status = record.status
    folder = find_job_folder(run.resolve(), runs)
    if folder is None:
        return JobStatus(run_status, run_status.state, run_status.since, record)
    ids = find_job_ids(folder)
    jobs = find_jobs(folder, queue or ())
    job = jobs[-1] if jobs else None
    job_id = ids[-1] if ids else None
    if job is not None:
        job_id = job.job_id
        folder.note(job)
    state = run_status.state
    if job_id is not None:
        state = _combined_state(run_status, job, folder, queried=queue is not None)
    since = run_status.since
    if run_status.state == "absent":
        since = first_written(folder.path, ("jobs.jsonl", "job.sbatch", ".")) or time.time()
    cause = None
    if job_id and (job is None or job.state != "COMPLETED"):
        if state == "ended":
            cause = last_message(folder.log(job_id)) or _describe_unstarted(job)
        elif state == "unfinished" and job is not None:
            cause = last_message(folder.log(job_id))
    return JobStatus(run_status, state, since, record, job_id, job, None, cause)


def add_accounting(statuses: Sequence[JobStatus], runs: Path) -> list[JobStatus]:
    """Add what is known of jobs that Slurm has forgotten, to the runs without an end of their own.

    Slurm's accounting is queried once for all of them. Where it does not answer, the job folder
    has what Slurm reported last.
    """

    def is_forgotten(status: JobStatus) -> bool:
        return status.job is None and status.state in ("ended", "unfinished")

    ids = [status.job_id for status in statuses if is_forgotten(status) and status.job_id]
    if not ids:
        return list(statuses)
    ended = find_ended_jobs(ids)
    return [
        _with_accounting(status, runs, ended) if is_forgotten(status) else status
        for status in statuses
    ]


def _with_accounting(
    status: JobStatus, runs: Path, ended: Mapping[str, EndedJob] | None
) -> JobStatus:
    """Add what accounting knows of a job, else what was last known of it, and when."""
    job_id = status.job_id
    folder = find_job_folder(status.run.path.resolve(), runs)
    if job_id is None or folder is None:
        return status
    job = (ended or {}).get(job_id)
    if job is not None:
        cause = status.cause
        if job.state != "COMPLETED" and cause is None:
            cause = str(job)
        return replace(status, ended=job, cause=cause)
    if status.cause is not None:
        return status
    note = folder.read_note(job_id)
    known = f"it was submitted {_submitted_at(folder, job_id)}"
    if note:
        reason = note.get("reason")
        why = f" ({reason})" if reason and reason != "None" else ""
        known = f"it was last seen {note.get('seen')} as {str(note.get('state')).lower()}{why}"
    return replace(status, cause=f"Slurm no longer knows job {job_id}: {known}")


def _submitted_at(folder: JobFolder, job_id: str) -> str:
    """Return when a job was submitted; by hand, that is not recorded."""
    times = [
        line.get("submitted") for line in folder.read_submissions() if line["job_id"] == job_id
    ]
    return str(times[-1]) if times else "by hand"


def _describe_unstarted(job: QueuedJob | None) -> str | None:
    """Return why a job without a log ended; None if Slurm no longer knows it or it had started."""
    if job is None or job.state != "CANCELLED" or job.used:
        return None
    if "Depend" in job.reason:
        return "cancelled before it started: a job that it waited for failed"
    return "cancelled before it started"


def _combined_state(
    run: RunStatus, job: QueuedJob | None, folder: JobFolder, *, queried: bool
) -> str:
    """Return the state of a run and its job; `queried` is whether Slurm responded."""
    if job is not None and job.state == "SUSPENDED":
        return "suspended"
    if run.state == "running":
        return "running"
    if job is None or not job.is_live:
        without_run = "ended" if queried else "submitted"
        return without_run if run.state == "absent" else run.state
    return _waiting_state(job) or _started_state(run, job, folder)


def _waiting_state(job: QueuedJob) -> str | None:
    """Return the state of a job that waits; None if it does not."""
    if job.is_held:
        return "held"
    if job.is_waiting:
        return "requeued" if job.is_requeued else "pending"
    return None


def _started_state(run: RunStatus, job: QueuedJob, folder: JobFolder) -> str:
    """Return the state of a job that has started, and whose run has no living launcher."""
    if run.name.endswith((TOKENIZE_SUFFIX, EVALUATE_SUFFIX)):
        return "running"
    # An end before this job's start is that of an earlier job.
    job_started = time.time() - job.used - _CLOCK_SKEW
    if run.state in ("done", "failed", "stopped") and run.since > job_started:
        return run.state
    return "lost" if _has_fallen_silent(folder, job) else "starting"


def _has_fallen_silent(folder: JobFolder, job: QueuedJob) -> bool:
    """Return whether the first node's launcher has begun this start of the job, and gives no
    heartbeat any more.
    """
    attempts = folder.attempts(job.job_id, job.restarts)
    age = age_of(attempts[-1] / "node-0.json") if attempts else None
    return age is not None and age > STALE
