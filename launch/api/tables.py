"""Lists and compares runs: the tables of `launch status`, `launch compare` and a notebook."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.errors import UserError
from launch.evaluation.record import describe_summary, read_summary
from launch.execution.record.lock import INTERVAL
from launch.execution.record.run import Run
from launch.execution.run_facts import RunFact, facts_in
from launch.pipelines.record import describe_stages, find_pipeline, find_pipelines, stage_runs
from launch.planning.find_runs import resolve_newest
from launch.slurm.job_status import (
    JobStatus,
    add_accounting,
    list_job_statuses,
    read_job_status,
)
from launch.slurm.jobs import find_job_folders
from launch.slurm.queue import QueuedJob, list_user_jobs
from launch.table import Column, Table, format_duration
from launch.terminal import echo, notify, print_json, printable
from launch.worker.json_codec import versioned

if TYPE_CHECKING:
    from launch.api.running import RunHandle

OVERDUE_HEARTBEAT = 3 * INTERVAL  # seconds without a heartbeat after which the table shows its age


@dataclass(frozen=True, repr=False)
class Shown:
    """What a verb shows, as text for `print`, as a table for a notebook and as JSON."""

    name: str
    lines: Sequence[str]
    table: Table
    as_json: Any  # the JSON that the verb prints with --json

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

    Slurm is queried once, and only if a job was ever submitted from here. If it does not respond,
    that is a warning.

    Raises UserError: unknown_run, ambiguous_run.
    """
    runs = Path(folder)
    queue = query_queue(runs)
    if names:
        pipelines, paths = _find_named(names, runs)
        statuses = [read_job_status(path, runs, queue) for path in paths]
    else:
        pipelines = find_pipelines(runs)
        statuses = list_job_statuses(runs, queue)
    if queue is not None:
        statuses = add_accounting(statuses, runs)
    table, lines = status_table(statuses)
    lines += [f"pipeline {pipeline.name}: {describe_stages(pipeline)}" for pipeline in pipelines]
    if not statuses:
        lines = [f"no runs in {runs.absolute()}; runs=DIR lists those of another folder"]
    content = []
    for run_status in statuses:
        evaluation = read_summary(run_status.run.path)
        content.append({**versioned(run_status), "evaluation": evaluation})
    return Shown(f"{len(statuses)} runs in {runs}", lines, table, content)


def _find_named(names: Sequence[str], runs: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders of the named pipelines, and those of their runs and of the named runs."""
    pipelines: list[Path] = []
    of_pipelines: list[Path] = []
    others: list[Path] = []
    submitted = list(find_job_folders(runs))
    for name in names:
        pipeline = find_pipeline(name, runs)
        if pipeline is None:
            others.append(resolve_newest(name, runs, notify, submitted))
        elif pipeline not in pipelines:
            pipelines.append(pipeline)
            of_pipelines.extend(run for _, run in stage_runs(pipeline))
    return pipelines, of_pipelines + others


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
    from launch.evaluation.compared_run import (
        ComparedBase,
        ComparedRun,
        compared_run,
        split_checkpoint,
    )
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
    compared: list[ComparedRun | ComparedBase] = []
    for name, side in zip(names, sides, strict=True):
        if isinstance(side, ModelSource):
            compared.append(ComparedBase(name, side.folder, folders))
        else:
            _, checkpoint = split_checkpoint(name)
            compared.append(compared_run(side, checkpoint))
    noise = read_noise(runs, [path.parent.name for path in folders])
    comparison = compare_runs(compared, noise)
    table = tabulate(comparison)
    lines = [*table.lines(), *describe_comparison(comparison)]
    title = f"{', '.join(run.name for run in compared)} compared"
    return Shown(title, lines, table, versioned(comparison))


def query_queue(runs: Path) -> list[QueuedJob] | None:
    """Return the user's jobs.

    None is returned if nothing was ever submitted, or Slurm is missing or does not respond.
    """
    if not (runs / ".jobs").is_dir() or shutil.which("squeue") is None:
        return None
    try:
        return list_user_jobs(users=_find_other_users(runs))
    except UserError as error:
        notify(f"{error.problems[0]}; continuing without job states")
        return None


def _find_other_users(runs: Path) -> set[str]:
    """Return the other users who submitted jobs of the runs below a folder."""
    users: set[str] = set()
    for folder in find_job_folders(runs).values():
        users |= folder.other_users()
    return users


def status_table(statuses: Sequence[JobStatus]) -> tuple[Table, list[str]]:
    """Return a table of runs, and its lines with the cause below each failed run."""
    table = Table.of("", _status_columns(time.time()), statuses)
    header, *rows = table.lines()
    lines = [header]
    for status, row in zip(statuses, rows, strict=True):
        lines.append(row)
        lines += [f"  {note}" for note in _notes_of(status)]
    return table, [printable(line) for line in lines]


def _status_columns(now: float) -> list[Column[JobStatus]]:
    """Return the columns of the table: the state, the facts of the run, and those of its job."""
    facts = [_fact_column(fact) for fact in facts_in("status")]
    # The reward stands where its readers look for the loss.
    first = [column for column in facts if not column.optional or column.head == "reward"]
    return [
        Column("run", lambda status: status.run.name),
        Column("state", _describe_state),
        *first,
        Column("since", lambda status: _describe_since(status, now)),
        *(column for column in facts if column not in first),
        Column("evaluation", _describe_evaluation, optional=True),
        Column("job", lambda status: _job_cells(status)[0], optional=True),
        Column("nodes", lambda status: _job_cells(status)[1], optional=True),
        Column("job left", lambda status: _job_cells(status)[2], optional=True),
    ]


def _notes_of(status: JobStatus) -> Iterator[str]:
    """Yield the lines below a run in the table: why it failed, what ended it, and what to do.

    A job whose state is not its run's has none of the run's outcome.
    """
    outcome = status.run.outcome if status.state == status.run.state else None
    if status.cause:
        yield status.cause
    elif outcome and outcome.cause:
        yield outcome.cause
    if status.run.other_format:
        yield str(status.run.other_format)
    if outcome is None:
        return
    if outcome.validation and outcome.validation.early_stop:
        yield outcome.validation.early_stop
    not_risen = outcome.reward.finding() if outcome.reward else None
    if not_risen is not None:
        yield str(not_risen)
    if outcome.cure_line:
        yield outcome.cure_line


def _fact_column(fact: RunFact) -> Column[JobStatus]:
    def describe(status: JobStatus) -> str:
        if status.record is None:
            return ""
        return fact.describe(status.record) or ""

    return Column(fact.heading, describe, optional=fact.optional)


def _describe_evaluation(status: JobStatus) -> str:
    summary = read_summary(status.run.path)
    return "" if summary is None else describe_summary(summary)


def _describe_since(status: JobStatus, now: float) -> str:
    if status.run.holder:
        return format_duration(now - status.since)
    return time.strftime("%m-%d %H:%M", time.localtime(status.since))


def _describe_state(status: JobStatus) -> str:
    run = status.run
    job = status.job
    state = status.state
    if run.holder and run.heartbeat is not None:
        text = state
        # The table shows a job's nodes instead, because its processes should not be killed by hand.
        in_job = job is not None and job.holds_nodes
        if not in_job:
            text += f", process {run.holder.pid} on {run.holder.host}"
        if not in_job or run.heartbeat >= OVERDUE_HEARTBEAT:
            text += f", heartbeat {run.heartbeat:.0f} s ago"
        return text
    if run.outcome and run.outcome.exit_code and state == run.state:
        return f"{state} ({run.outcome.exit_code})"
    if job and job.is_waiting and not run.holder:
        return state + job.reason_suffix
    known = job or status.ended
    if known and state in ("ended", "unfinished"):
        return f"{state} ({known.state.lower()})"
    return state


def _job_cells(status: JobStatus) -> tuple[str, str, str]:
    """Return the job's id, the nodes it has or waits for, and how long it may still run."""
    job = status.job
    if job is None or not job.is_live:
        return status.job_id or "", "", ""
    time_left = "" if job.left is None else format_duration(job.left)
    return job.job_id, job.hosts or str(job.nodes), time_left
