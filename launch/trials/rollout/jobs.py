"""The widths of a rollout as Slurm jobs, each of which waits for the gates of the one before."""

from __future__ import annotations

from collections.abc import Iterator

from launch.config.trials import Then
from launch.errors import Problem, UserError
from launch.planning.plan import plan_line
from launch.slurm.jobs import JobFolder
from launch.slurm.planned_jobs import (
    PlannedJob,
    job_problems,
    node_overrides,
    plan_job,
    plan_run_job,
    plan_tokenize_job,
)
from launch.slurm.schedule import TokenizeFirst, as_chain, needs_tokenize_job
from launch.slurm.slurm_cli import slurm_is_installed
from launch.slurm.submission import refuse_live_jobs, report_lines, submit_steps
from launch.trials.record import State
from launch.trials.rollout.record import RolloutRecord, WidthRun
from launch.trials.rollout.request import RequestedWidth, RolloutRequest


def plan_width_job(width: WidthRun, request: RolloutRequest) -> PlannedJob:
    """The job of a width: its nodes get the overrides of the whole rollout, and which of the widths is theirs."""
    plan = width.plan
    overrides = node_overrides((*request.line.argv, request.widths_override, f"width={width.requested}"))
    title = f"{width.label} of the rollout of {plan.stage} with {plan.trainer} over {request.widths_override}"
    return plan_job(plan, JobFolder.of(plan.runs, plan.stage, plan.name), overrides, title=title)


def refuse_impossible_jobs(record: RolloutRecord, request: RolloutRequest) -> None:
    """Raise UserError with what keeps widths from being jobs, before any width has run."""
    jobs = [plan_width_job(run, request) for run in record.runs]
    problems = [problem for job in jobs for problem in job_problems(job)]
    if not (request.dry_run or slurm_is_installed()):
        cure = "run it on a login node of the cluster; submit=all dry_run=true only writes the job folders"
        problems.append(Problem("no_slurm", "sbatch is not installed on this machine", "override submit", cure))
    if problems:
        raise UserError(problems)
    refuse_live_jobs(jobs, dry_run=request.dry_run)


def submit_remaining(record: RolloutRecord, request: RolloutRequest) -> Iterator[str]:
    """Submit the widths that were not run here, each to start when the one before has passed, and with then=run the
    whole stage after them. Yields the report's lines. Raises UserError when they cannot be submitted."""
    remaining = {run.plan.folder: run for run in record.runs if run.state == State.not_run}
    narrowest = next(iter(remaining.values())).requested
    first = _plan_stage_job(narrowest, request, record)
    jobs = [plan_tokenize_job(first)] if needs_tokenize_job(first, TokenizeFirst.auto) else []
    jobs += [plan_width_job(run, request) for run in remaining.values()]
    if record.config.then == Then.run:
        jobs.append(_plan_stage_job(request.widths[-1], request, record))
    steps = as_chain(jobs, TokenizeFirst.never)
    ids = submit_steps(steps, dry_run=request.dry_run)
    for job, job_id in zip(jobs, ids, strict=False):
        if job.run in remaining:
            run = remaining[job.run]
            run.state, run.message, run.job_id = State.submitted, None, job_id
    return report_lines(steps, ids, {})


def _plan_stage_job(width: RequestedWidth, request: RolloutRequest, record: RolloutRecord) -> PlannedJob:
    return plan_run_job(plan_line(request.stage_line(width, record.config.parallel_at_one)))
