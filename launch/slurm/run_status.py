"""The status of a run, from its own record and Slurm's queue together: it may also be pending or requeued."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.execution.record.reader import RunRecord, RunStatus, find_runs, run_name
from launch.files import first_written
from launch.slurm.jobs import EVALUATE_SUFFIX, TOKENIZE_SUFFIX, JobFolder, find_job_ids, find_jobs
from launch.slurm.queue import QueuedJob

_CLOCK_SKEW = 5.0  # seconds by which the clocks of two machines may differ
_TAIL = 1 << 14  # bytes at the end of a log that are searched for its last message
_PROBLEM = re.compile(r"launch: .*\[\w+\]")  # as `__main__` prints it
_SLURM_LINE = re.compile(r"(srun|slurmstepd(-\S+)?|slurmd\[.*\]): (?!.*\bexecve\(\))")  # execve: the program is missing


@dataclass(frozen=True)
class JobStatus:
    """The status of a run and its job."""

    run: RunStatus
    # the run's, or pending, requeued, starting (the job runs, its launcher not yet), ended (the job, before the run
    # began) or submitted (Slurm was not queried)
    state: str
    since: float  # unix seconds
    job_id: str | None = None  # of the last recorded job
    job: QueuedJob | None = None  # None once Slurm has forgotten it
    cause: str | None = None

    def as_json(self) -> dict[str, Any]:
        fields = {**self.run.as_json(), "state": self.state, "since": round(self.since, 3), "job_id": self.job_id}
        if self.cause:
            fields["cause"] = self.cause
        return {**fields, "job": self.job}


def find_job_folders(runs: Path) -> dict[Path, JobFolder]:
    """Find the job folders below `runs`, by run folder, including those that were written but not submitted."""
    root = runs / ".jobs"
    scripts = [*root.glob("*/*/job.sbatch"), *root.glob("*/*/*/job.sbatch")]
    return {runs / script.parent.relative_to(root): JobFolder(script.parent) for script in sorted(scripts)}


def find_job_folder(run: Path, runs: Path) -> JobFolder | None:
    """Find the job folder of the run folder `run` below `runs`, None if there is none.

    A run that was started by a script in scripts/ has one as well.
    """
    if not run.is_relative_to(runs.resolve()):
        return None
    folder = JobFolder(runs.resolve() / ".jobs" / run.relative_to(runs.resolve()))
    return folder if folder.path.is_dir() else None


def list_job_statuses(runs: Path, queue: Sequence[QueuedJob] | None) -> list[JobStatus]:
    """List the runs below `runs`, also those only submitted; `queue` is None without a response from Slurm."""
    folders = find_job_folders(runs).items()  # also those that dry_run=true wrote
    submitted = {run for run, folder in folders if find_job_ids(folder) or find_jobs(folder, queue or ())}
    return [_read_any_status(run, runs, queue) for run in sorted({*find_runs(runs), *submitted})]


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
    run_status = RunRecord(run).status()
    folder = find_job_folder(run.resolve(), runs)
    if folder is None:
        return JobStatus(run_status, run_status.state, run_status.since)
    ids, jobs = find_job_ids(folder), find_jobs(folder, queue or ())
    job = jobs[-1] if jobs else None
    job_id = job.job_id if job else ids[-1] if ids else None
    state = run_status.state if job_id is None else _combined_state(run_status, job, queried=queue is not None)
    since = _submission_time(folder) if run_status.state == "absent" else run_status.since
    completed = job is not None and job.state == "COMPLETED"
    cause = None
    if state == "ended" and job_id and not completed:
        cause = last_message(folder.log(job_id)) or _describe_unstarted(job)
    return JobStatus(run_status, state, since, job_id, job, cause)


def _describe_unstarted(job: QueuedJob | None) -> str | None:
    """Why a job without a log ended; None if Slurm no longer knows it or it had started."""
    if job is None or job.state != "CANCELLED" or job.used:
        return None
    return "cancelled before it started" + (": a job that it waited for failed" if "Depend" in job.reason else "")


def _combined_state(run: RunStatus, job: QueuedJob | None, queried: bool) -> str:
    if run.state == "running":
        return "running"
    if job is None or not job.is_live:
        return run.state if run.state != "absent" else "ended" if queried else "submitted"
    if job.is_waiting:
        return "requeued" if job.is_requeued else "pending"
    if run.name.endswith((TOKENIZE_SUFFIX, EVALUATE_SUFFIX)):
        return "running"
    ended = run.state in ("done", "failed", "stopped") and run.since > time.time() - job.used - _CLOCK_SKEW
    return run.state if ended else "starting"


def _submission_time(folder: JobFolder) -> float:
    written = first_written(folder.path, ("jobs.jsonl", "job.sbatch", "."))
    return time.time() if written is None else written


def last_message(log: Path) -> str | None:
    """The line of a job's log that explains its end, None if the log is empty or missing.

    That is the last problem that launch reported, else the last line not from Slurm, which reports later that it ended
    the tasks, else the last line.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    lines = [line.strip() for line in lines if line.strip()]
    problems = [line for line in lines if _PROBLEM.fullmatch(line)]
    others = [line for line in lines if not _SLURM_LINE.match(line)]
    return next((candidates[-1] for candidates in (problems, others, lines) if candidates), None)
