"""Runs listed and compared: the tables that `launch status` and `launch compare` print and a
notebook shows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from launch.errors import UserError
from launch.evaluation.record import describe_summary, read_summary
from launch.execution.display import format_duration
from launch.execution.record.lock import INTERVAL
from launch.execution.record.outcome import ValidationRecord, describe_cure
from launch.execution.record.run import Run, RunStatus
from launch.pipelines.record import describe_stages, find_pipeline, find_pipelines, stage_runs
from launch.planning.find_runs import resolve_run
from launch.slurm.jobs import JobStatus, find_job_folders, list_job_statuses, read_job_status
from launch.slurm.queue import QueuedJob, list_user_jobs
from launch.table import Column, Table
from launch.terminal import echo, notify, print_json, printable

if TYPE_CHECKING:
    from launch.api.running import RunHandle

T = TypeVar("T")
OVERDUE_HEARTBEAT = 3 * INTERVAL  # seconds without a heartbeat after which the table shows its age


@dataclass(frozen=True, repr=False)
class Shown:
    """What a verb shows: `print` has its text, a notebook its table, `as_json` what it prints with
    --json.
    """

    name: str
    lines: Sequence[str]
    table: Table
    as_json: Any

    def show(self, as_json: bool) -> None:
        """Print it on the terminal."""
        if as_json:
            print_json(self.as_json)
        else:
            echo(self)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def status(*names: str, folder: str | Path = "runs") -> Shown:
    """List all runs and jobs below `folder`, or those named.

    Slurm is queried once, and only if a job was ever submitted from here; it is a warning when it
    does not answer.
    Raises UserError: unknown_run, ambiguous_run.
    """
    runs = Path(folder)
    pipelines = {name: pipeline for name in names if (pipeline := find_pipeline(name, runs))}
    queue = query_queue(runs)
    if names:
        submitted = list(find_job_folders(runs))
        found = [run for pipeline in pipelines.values() for _, run in stage_runs(pipeline)]
        found += [resolve_run(name, runs, submitted) for name in names if name not in pipelines]
        statuses = [read_job_status(run, runs, queue) for run in found]
    else:
        statuses = list_job_statuses(runs, queue)
    table, lines = status_table(statuses)
    listed = pipelines.values() if names else find_pipelines(runs)
    lines += [f"pipeline {pipeline.name}: {describe_stages(pipeline)}" for pipeline in listed]
    content = [{**each.as_json(), "evaluation": read_summary(each.run.path)} for each in statuses]
    shown = lines if statuses else [f"no runs in {runs.absolute()}"]
    return Shown(f"{len(statuses)} runs in {runs}", shown, table, content)


def compare(
    first: str | RunHandle,
    second: str | RunHandle,
    *more: str | RunHandle,
    folder: str | Path = "runs",
) -> Shown:
    """Compare runs, their checkpoints (`sft/x/step_100`) or the scores of a base model with the
    first of them.

    Raises UserError: unknown_run, ambiguous_run, no_checkpoint, other_format.
    """
    from launch.evaluation.compared_run import ComparedBase, compared_run, split_checkpoint
    from launch.evaluation.comparison import compare_runs, describe_comparison, read_noise, tabulate
    from launch.evaluation.models import ModelSource, find_run_or_model
    from launch.execution.report.page import announce_reading

    runs = Path(folder)
    names = [run if isinstance(run, str) else str(run.folder) for run in (first, second, *more)]
    sides = [find_run_or_model(split_checkpoint(name)[0], runs) for name in names]
    folders = [side for side in sides if isinstance(side, Path)]
    for run in map(Run, folders):
        if run.other_format is not None:
            raise UserError(run.other_format)
    announce_reading(folders, notify)
    facts = [
        ComparedBase(name, side.folder, folders)
        if isinstance(side, ModelSource)
        else compared_run(side, split_checkpoint(name)[1])
        for name, side in zip(names, sides, strict=True)
    ]
    comparison = compare_runs(facts, read_noise(runs, [path.parent.name for path in folders]))
    table, names_shown = tabulate(comparison), ", ".join(run.name for run in facts)
    lines = [*table.lines(), *describe_comparison(comparison)]
    return Shown(f"{names_shown} compared", lines, table, comparison.as_json())


def query_queue(runs: Path) -> list[QueuedJob] | None:
    """Return the user's jobs; None if nothing was ever submitted, or Slurm is missing or does not
    answer.
    """
    if not (runs / ".jobs").is_dir() or shutil.which("squeue") is None:
        return None
    try:
        return list_user_jobs()
    except UserError as error:
        notify(f"{error.problems[0]}; continuing without job states")
        return None


def status_table(statuses: Sequence[JobStatus]) -> tuple[Table, list[str]]:
    """Return a table of runs, and as lines, a failed one's cause below it."""
    table = Table.of("", _status_columns(time.time()), statuses)
    header, *rows = table.lines()
    lines = [header]
    for status, row in zip(statuses, rows, strict=True):
        lines.append(row)
        outcome = status.run.outcome if status.state == status.run.state else None
        cause = status.cause or (outcome.cause if outcome else None)
        if cause:
            lines.append(f"  {cause}")
        if status.run.other_format:
            lines.append(f"  {status.run.other_format}")
        if outcome and outcome.validation and outcome.validation.early_stop:
            lines.append(f"  {outcome.validation.early_stop}")
        if outcome and outcome.cure:
            lines.append(f"  {describe_cure(outcome)}")
    return table, [printable(line) for line in lines]


def _status_columns(now: float) -> list[Column[JobStatus]]:
    return [
        Column("run", lambda status: status.run.name),
        Column("state", _describe_state),
        Column("step", lambda status: _describe_step(status.run)),
        Column("loss", lambda status: _shown(status.run.loss, lambda loss: f"{loss:.4f}")),
        Column(
            "tokens/s",
            lambda status: _shown(status.run.tokens_per_second, lambda rate: f"{rate:,.0f}"),
        ),
        Column("left", lambda status: _shown(status.run.seconds_left, format_duration)),
        Column("since", lambda status: _describe_since(status, now)),
        Column(
            "eval_loss",
            lambda status: _shown(status.run.validation, _describe_validation),
            optional=True,
        ),
        Column(
            "evaluation",
            lambda status: _shown(read_summary(status.run.path), describe_summary),
            optional=True,
        ),
        Column("job", lambda status: _job_cells(status)[0], optional=True),
        Column("nodes", lambda status: _job_cells(status)[1], optional=True),
        Column("job left", lambda status: _job_cells(status)[2], optional=True),
    ]


def _shown(value: T | None, form: Callable[[T], str]) -> str:
    return "" if value is None else form(value)


def _describe_step(run: RunStatus) -> str:
    if run.step is None:
        return run.phase or ""
    return f"{run.step}" + (f"/{run.total_steps}" if run.total_steps else "")


def _describe_since(status: JobStatus, now: float) -> str:
    if status.run.holder:
        return format_duration(now - status.since)
    return time.strftime("%m-%d %H:%M", time.localtime(status.since))


def _describe_validation(validation: ValidationRecord) -> str:
    best = validation.best
    is_last = best is None or best.step == validation.step
    return f"{validation.eval_loss:.4f}" + (
        "" if is_last or best is None else f" (best {best.eval_loss:.4f} at {best.step})"
    )


def _describe_state(status: JobStatus) -> str:
    run, job, state = status.run, status.job, status.state
    if run.holder and run.heartbeat is not None:
        # the table shows its nodes, and nobody should kill a process
        in_job = job is not None and job.holds_nodes
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
    return (
        job.job_id,
        job.hosts or str(job.nodes),
        "" if job.left is None else format_duration(job.left),
    )
