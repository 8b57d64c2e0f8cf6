"""`status` lists runs and jobs; `logs RUN` prints a run's display, or the log of a rank or job."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from launch.api import tables
from launch.commands.run_parsers import build_logs_parser, build_status_parser
from launch.errors import EXIT_DONE, refusal
from launch.execution.record.outcome import folder_status, read_outcome
from launch.execution.record.run import command_for, is_running
from launch.execution.replay import Replay, Tail, follow
from launch.planning.find_runs import resolve_newest, run_name
from launch.slurm.job_status import JobStatus, add_accounting, read_job_status
from launch.slurm.jobs import JobFolder, find_job_folder, find_job_folders, find_run_of_job
from launch.slurm.queue import QueuedJob
from launch.table import format_duration
from launch.terminal import echo, notify, printable
from launch.worker.wording import count_of


def status(argv: list[str]) -> int:
    """Print the state of all runs, or of those named; with `--json` one object per run.

    Raises UserError: unknown_run, ambiguous_run, unknown_option, usage.
    """
    options = build_status_parser().parse(argv)
    tables.status(*options.names, folder=options.runs).show(options.json)
    return EXIT_DONE


_QUERY_INTERVAL = 15.0  # seconds between two queries to Slurm, which has other users
_QUERY_INTERVAL_AT_END = 3.0  # seconds between two queries once the run has ended
_POLL_INTERVAL = 1.0  # seconds
# States of a job whose run is about to begin.
_UPCOMING = ("pending", "held", "requeued", "starting")


def logs(argv: list[str]) -> int:
    """Print the display's lines of a run, the log of one rank or that of its Slurm job.

    `--follow` waits for a pending job and continues until the run ends, across requeues. Ctrl-C
    stops following, not the run. Raises UserError: unknown_run, ambiguous_run, no_such_rank,
    no_job_log; those of VerbParser.parse.
    """
    options = build_logs_parser().parse(argv)
    submitted = find_job_folders(options.runs)
    folder = find_run_of_job(options.name, options.runs)
    folder = folder or resolve_newest(options.name, options.runs, notify, list(submitted))
    jobs = _RunJobs(folder, options.runs)
    is_active = jobs.is_active if options.follow else lambda: False
    try:
        if options.job:
            follow(Tail(jobs.find_log(), sys.stdout.buffer), is_active)
            return EXIT_DONE
        if not _has_begun(folder) and not _wait_for_begin(jobs, options.follow):
            return EXIT_DONE
        rank = options.rank
        view: Replay | Tail = Replay(folder, sys.stdout)
        if rank is not None:
            view = Tail(_find_rank_log(folder, rank), sys.stdout.buffer)
        follow(view, is_active)
    except KeyboardInterrupt:
        echo(f"\n{run_name(folder)} continues", file=sys.stderr)
        return EXIT_DONE
    if options.rank is None:
        echo(_describe_end(folder, jobs))
    return EXIT_DONE


class _RunJobs:
    """The jobs of one run; Slurm is queried from time to time."""

    def __init__(self, run: Path, runs: Path) -> None:
        self.run = run
        self.runs = runs
        self.folder: JobFolder | None = find_job_folder(run, runs)
        self._queue: list[QueuedJob] | None = None
        self._queried = 0.0  # time.monotonic() of the last query

    def status(self, max_age: float = _QUERY_INTERVAL) -> JobStatus:
        """Return the run's status, from a query to Slurm at most `max_age` seconds old."""
        age = time.monotonic() - self._queried
        is_outdated = not self._queried or age > max_age
        if self.folder is not None and is_outdated:
            self._queue = tables.query_queue(self.runs)
            self._queried = time.monotonic()
        return read_job_status(self.run, self.runs, self._queue)

    def is_active(self) -> bool:
        """Whether more output may come; a failed job may still be requeued."""
        if is_running(self.run):
            return True
        status = self.status(_QUERY_INTERVAL_AT_END)
        if status.state in _UPCOMING:
            return True
        return status.job is not None and status.job.is_live and status.state != "done"

    def find_log(self) -> Path:
        """Return the log of the last job. Raises UserError: no_job_log."""
        job_id = self.status().job_id
        if self.folder is None or job_id is None or not self.folder.log(job_id).is_file():
            cure = "no job was submitted for it"
            if job_id:
                cure = "it has not started, or its script writes elsewhere"
            raise refusal("no_job_log", f"{run_name(self.run)} has no job log", "--job", cure)
        return self.folder.log(job_id)


def _has_begun(folder: Path) -> bool:
    return is_running(folder) or folder_status(folder) != "absent"


def _wait_for_begin(jobs: _RunJobs, following: bool) -> bool:
    """Wait for a submitted run to begin, and print why it waits.

    Returns False if it never begins, or without `following`.
    """
    printed = ""
    while not _has_begun(jobs.run):
        status = jobs.status()
        if status.state not in (*_UPCOMING, "submitted"):
            time.sleep(_POLL_INTERVAL if following else 0)  # its last output may still arrive
            if not _has_begun(jobs.run):
                echo(_describe_never_began(jobs, status))
                return False
            break
        reason = f"job {status.job_id}, about which Slurm reports nothing"
        if status.job:
            reason = str(status.job)
        if reason != printed:
            printed = reason
            echo(f"{run_name(jobs.run)} has not started: {reason}", flush=True)
        if not following:
            echo(f"to wait for it: {command_for('logs', jobs.run, '--follow')}")
            return False
        time.sleep(_POLL_INTERVAL)
    return True


def _describe_never_began(jobs: _RunJobs, status: JobStatus) -> str:
    """Return the job's own log, the only output of a run that never began, and the job's state."""
    name = run_name(jobs.run)
    if status.job_id is None or jobs.folder is None:
        return f"{name} has not started and was not submitted"
    [known] = add_accounting([status], jobs.runs)
    job = known.job or known.ended
    state = f"is {job.state.lower()}" if job else "no longer exists"
    summary = f"{name} has not started: job {status.job_id} {state}"
    try:
        log = jobs.folder.log(status.job_id).read_text(encoding="utf-8", errors="replace").rstrip()
    except OSError:
        return f"{summary}, without a log"
    return f"{log}\n{summary}" if log else summary


def _find_rank_log(folder: Path, rank: int) -> Path:
    """Return the log of a rank, on whichever of the run's nodes it ran.

    Raises UserError: no_such_rank.
    """
    paths = [*folder.glob("nodes/*/logs/rank-*.log"), *folder.glob("logs/rank-*.log")]
    logs = {path.stem.removeprefix("rank-"): path for path in paths if path.is_file()}
    if str(rank) not in logs:
        ranks = sorted(logs, key=lambda name: (len(name), name))
        cure = f"its ranks: {', '.join(ranks)}" if ranks else "no rank has printed anything yet"
        raise refusal("no_such_rank", f"{run_name(folder)} has no rank {rank}", "--rank", cure)
    return logs[str(rank)]


def _describe_live_job(job: QueuedJob | None) -> str:
    """Return the sentence that says whether a job continues by itself, or which command it needs."""
    if job is not None and job.is_held:
        return f"it does not continue by itself: {job}; scontrol release {job.job_id}"
    if job is not None and job.state == "SUSPENDED":
        return f"it continues after scontrol resume {job.job_id}: {job}"
    return f"it will continue: {job}"


def _describe_end(folder: Path, jobs: _RunJobs) -> str:
    """Return how a run ended, with its cause and cure; that it runs, or that its job waits."""
    if is_running(folder):
        return f"running; to follow it: {command_for('logs', folder, '--follow')}"
    job = jobs.status().job
    if jobs.status().state in ("running", "suspended", *_UPCOMING):
        return _describe_live_job(job)
    outcome = read_outcome(folder)
    if outcome is None:
        reported = f"; Slurm reports {job}" if job else ""
        return f"unfinished: its launcher ended without recording an outcome{reported}"
    if outcome.exit_code == EXIT_DONE:
        steps = count_of(outcome.steps, "step")
        result = f", {outcome.result}" if outcome.result else ""
        return f"done: {steps} in {format_duration(outcome.seconds)}{result}"
    lines = [f"{outcome.state} ({outcome.exit_code}) after step {outcome.steps}: {outcome.cause}"]
    lines += [f"  {line}" for line in outcome.detail]
    if outcome.cure_line:
        lines.append(outcome.cure_line)
    return printable("\n".join(lines))
