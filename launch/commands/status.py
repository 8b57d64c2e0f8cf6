"""`status`: list the runs and their jobs, and the state of each."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from launch.commands.run_parsers import build_status_parser
from launch.errors import EXIT_DONE, UserError
from launch.evaluation.record import describe_summary, read_summary
from launch.execution.display import format_duration
from launch.execution.record.lock import INTERVAL
from launch.execution.record.outcome import ValidationRecord, describe_cure
from launch.execution.record.reader import resolve_run
from launch.slurm.queue import QueuedJob, list_user_jobs
from launch.slurm.run_status import JobStatus, find_job_folders, list_job_statuses, read_job_status
from launch.terminal import align_columns, echo, notify, print_json, printable

OVERDUE_HEARTBEAT = 3 * INTERVAL  # seconds without a heartbeat after which the table shows its age


def status(argv: list[str]) -> int:
    """Print the state of all runs, or of those named; with `--json` one object per run.

    Slurm is queried once, and only if a job was ever submitted from here; it is a warning when it does not answer.
    Raises UserError: unknown_run, ambiguous_run, unknown_option, usage.
    """
    options = build_status_parser().parse(argv)
    runs: Path = options.runs
    submitted = list(find_job_folders(runs))
    folders = [resolve_run(name, runs, submitted) for name in options.names]
    queue = query_queue(runs)
    if folders:
        statuses = [read_job_status(folder, runs, queue) for folder in folders]
    else:
        statuses = list_job_statuses(runs, queue)
    if options.json:
        objects = [{**status.as_json(), "evaluation": read_summary(status.run.path)} for status in statuses]
        print_json(objects)
    elif not statuses:
        echo(f"no runs in {runs}")
    else:
        echo("\n".join(status_table(statuses, time.time())))
    return EXIT_DONE


def query_queue(runs: Path) -> list[QueuedJob] | None:
    """Return the user's jobs; None if nothing was ever submitted, or Slurm is missing or does not answer."""
    if not (runs / ".jobs").is_dir() or shutil.which("squeue") is None:
        return None
    try:
        return list_user_jobs()
    except UserError as error:
        notify(f"{error.problems[0]}; continuing without job states")
        return None


def status_table(statuses: Sequence[JobStatus], now: float) -> list[str]:
    """Return a header and a line per run, a failed one's cause below it; with columns for jobs if there are any."""
    rows: list[tuple[str, ...]] = [("run", "state", "step", "loss", "tokens/s", "left", "since")]
    rows += [_run_cells(status, now) for status in statuses]
    summaries = [read_summary(status.run.path) for status in statuses]
    more: list[list[tuple[str, ...]]] = [
        [("eval_loss",), *((_describe_validation(status.run.validation),) for status in statuses)],
        [("evaluation",), *((describe_summary(summary) if summary else "",) for summary in summaries)],
        [("job", "nodes", "job left"), *map(_job_cells, statuses)],
    ]
    for columns in more:  # where a run has one
        if any(map(any, columns[1:])):
            rows = [row + cells for row, cells in zip(rows, columns, strict=True)]
    header, *lines = align_columns(rows)
    table = [header]
    for status, line in zip(statuses, lines, strict=True):
        table.append(line)
        outcome = status.run.outcome if status.state == status.run.state else None
        cause = status.cause or (outcome.cause if outcome else None)
        if cause:
            table.append(f"  {cause}")
        if outcome and outcome.validation and outcome.validation.early_stop:
            table.append(f"  {outcome.validation.early_stop}")
        if outcome and outcome.cure:
            table.append(f"  {describe_cure(outcome)}")
    return [printable(line) for line in table]


def _run_cells(status: JobStatus, now: float) -> tuple[str, ...]:
    run = status.run
    since = time.strftime("%m-%d %H:%M", time.localtime(status.since))
    step = "" if run.step is None else f"{run.step}" + (f"/{run.total_steps}" if run.total_steps else "")
    return (
        run.name,
        _describe_state(status),
        step or (run.phase or ""),
        "" if run.loss is None else f"{run.loss:.4f}",
        "" if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}",
        "" if run.seconds_left is None else format_duration(run.seconds_left),
        format_duration(now - status.since) if run.holder else since,
    )


def _describe_validation(validation: ValidationRecord | None) -> str:
    if validation is None:
        return ""
    best = validation.best
    is_last = best is None or best.step == validation.last.step
    return f"{validation.last.loss:.4f}" + (
        "" if is_last or best is None else f" (best {best.loss:.4f} at {best.step})"
    )


def _describe_state(status: JobStatus) -> str:
    run, job, state = status.run, status.job, status.state
    if run.holder and run.heartbeat is not None:
        in_job = job is not None and job.holds_nodes  # the table shows its nodes, and nobody should kill a process
        process = "" if in_job else f", process {run.holder.pid} on {run.holder.host}"
        is_fresh = in_job and run.heartbeat < OVERDUE_HEARTBEAT
        return state + process + ("" if is_fresh else f", heartbeat {run.heartbeat:.0f} s ago")
    if run.outcome and run.outcome.exit_code and state == run.state:
        return f"{state} ({run.outcome.exit_code})"
    if job and job.is_waiting:
        return state + job.reason_suffix
    if job and state in ("ended", "unfinished"):
        return f"{state} ({job.state.lower()})"
    return state


def _job_cells(status: JobStatus) -> tuple[str, str, str]:
    """Return the job's id, the nodes it has or waits for, and how long it may still run."""
    job = status.job
    if job is None or not job.is_live:
        return status.job_id or "", "", ""
    return job.job_id, job.hosts or str(job.nodes), "" if job.left is None else format_duration(job.left)
