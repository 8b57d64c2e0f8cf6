"""The verbs of Slurm: `submit` a plan, a chain of stages or a sweep; `node` runs on each node."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from launch.config.compose import Composed, compose, compose_once
from launch.config.line import CommandLine
from launch.errors import EXIT_DONE, UserError, refusal
from launch.execution.earlier_runs import note_earlier_run
from launch.execution.resume import is_finished
from launch.pipelines.links import Pipeline, plan_pipeline
from launch.pipelines.record import write_record
from launch.planning.build import plan_on_this_machine
from launch.slurm.planned_jobs import PlannedJob, job_problems, plan_run_job, plan_tokenize_job
from launch.slurm.queue import look_at_jobs
from launch.slurm.schedule import (
    TokenizeFirst,
    add_evaluations,
    as_arrays,
    as_chain,
    drop_duplicates,
)
from launch.slurm.submission import submit_steps
from launch.slurm.submission_report import describe_submission, report_json
from launch.terminal import echo, notify, print_json
from launch.worker.finding import Finding

SUBMIT_HELP = """usage: launch submit stage=NAME nodes=N gpus=N [key=value ...] [--json]

examples:
  launch submit stage=sft_25pct nodes=4 gpus=8 cluster=mine
  launch submit stage=sft_25pct nodes=4 gpus=8 dry_run=true                 only write the job folder
  launch submit pipeline=sft_25pct,dpo nodes=4 gpus=8 dpo:nodes=1           DPO from the SFT's model
  launch submit sweep=true stage=dpo gpus=8 recipe.learning_rate=1e-7,3e-7  an array
  launch submit stage=sft gpus=8 cluster.partition=gpu 'cluster.time="24:00:00"'

Plans on this machine, asks Slurm whether it would accept the job, and submits it. The job resumes
after its time limit or a lost node. `launch cluster NAME` drafts the description that
`cluster=NAME` selects.

keys of submit:
  pipeline=A,B        a chain: each stage starts from the previous one's model; A:key=value
                      applies to one stage
  evaluate=true       another job scores each model once its run is done; no run waits for it or
                      fails with it
  dry_run=true        write the job folders and submit nothing; works without Slurm
  tokenize_first=W    auto, true or false: a job on CPUs tokenises the data first

exit codes: 0 submitted; 2 one of the jobs cannot work or Slurm refuses it, and none was submitted
"""


def submit(line: CommandLine) -> int:
    """Write the job folders and submit them.

    Raises UserError if one cannot be submitted; then none is.
    """
    dry_run, tokenize_first, line = _parse_options(line)
    pipeline = plan_pipeline(line, notify)
    planned = drop_duplicates(_plan_jobs(line, pipeline))
    jobs, finished = _split_finished(planned, dry_run=dry_run)
    steps = as_chain(jobs, tokenize_first) if pipeline else as_arrays(jobs, tokenize_first)
    steps = add_evaluations(steps, finished)
    _print_warnings(jobs)
    ids = submit_steps(steps, dry_run=dry_run)
    if pipeline and not dry_run:
        write_record(pipeline)
    # A dry run has no ids. For an array, the first task is looked up.
    first_ids = [step.job_ids(id_)[0] for step, id_ in zip(steps, ids, strict=False)]
    records = look_at_jobs(first_ids)
    if line.json:
        print_json(report_json(steps, ids, records))
    else:
        for text in describe_submission(steps, ids, records):
            echo(text)
    return EXIT_DONE


def _print_warnings(jobs: Sequence[PlannedJob]) -> None:
    """Print the values of the plans that could not be verified here, each once."""
    warnings: dict[str, None] = {}  # a dictionary keeps the order, without duplicates
    for job in jobs:
        for warning in job.plan.warnings:
            if warning.id == "unverified":
                warnings[str(warning)] = None
    for text in warnings:
        notify(f"warning: {text}")


def _plan_jobs(line: CommandLine, pipeline: Pipeline | None) -> list[PlannedJob]:
    """Plan and check the jobs of a pipeline's stages, or of every run that `line` composes.

    Raises UserError.
    """
    plans = list(pipeline.plans) if pipeline else []

    def add(composed: Composed) -> int:
        planned = plan_on_this_machine(composed, is_swept=bool(line.sweeps))
        note_earlier_run(planned, notify)
        plans.append(planned)
        return EXIT_DONE

    if not pipeline:
        compose(line, add)
    jobs = [plan_run_job(plan) for plan in plans]
    problems: list[Finding] = []
    for job in jobs:
        problems += job_problems(job)
    if problems:
        raise UserError(problems)
    return [plan_tokenize_job(job) if job.plan.config.cache_only else job for job in jobs]


def _split_finished(
    jobs: list[PlannedJob], *, dry_run: bool
) -> tuple[list[PlannedJob], list[PlannedJob]]:
    """Return the jobs to submit, and those whose runs are done, unless it is a dry run."""
    if dry_run:
        return jobs, []
    unfinished: list[PlannedJob] = []
    finished: list[PlannedJob] = []
    for job in jobs:
        if not job.is_singleton and is_finished(job.plan):
            echo(f"already done: {job.plan.folder}", file=sys.stderr)
            finished.append(job)
        else:
            unfinished.append(job)
    return unfinished, finished


def _parse_options(line: CommandLine) -> tuple[bool, TokenizeFirst, CommandLine]:
    """Split off the keys that only `submit` has: dry_run and tokenize_first.

    Raises UserError: bad_value, submit_conflict, duplicate_override.
    """
    dry_run, line = line.pop_flag("dry_run")
    values, kept = line.pop_overrides(("tokenize_first",))
    tokenize_first = values.get("tokenize_first", "auto").lower()
    if tokenize_first not in list(TokenizeFirst):
        message = f"tokenize_first={tokenize_first} is not one of {', '.join(TokenizeFirst)}"
        raise refusal("bad_value", message, "override tokenize_first")
    if kept.sets("detach"):
        message = "'submit' sets detach itself"
        raise refusal("submit_conflict", message, "override detach", "remove it")
    return dry_run, TokenizeFirst(tokenize_first), kept


NODE_HELP = """usage: launch node stage=NAME [key=value ...]

Runs one node's part of a Slurm job. The batch scripts of `submit` start it through srun.
"""


def node(line: CommandLine) -> int:
    """Run this node's part of the composed stage, or, with `width=`, of one width of a rollout.

    Raises UserError; returns the exit code of this node's Slurm task.
    """
    from launch.slurm.allocation import ENDED, check_shared, fit_line, read_allocation
    from launch.slurm.node.lifecycle import record_killed, run_stage, run_task
    from launch.slurm.node.task import TIME_LIMIT_NEAR
    from launch.slurm.signals import NodeSignals
    from launch.trials.rollout.engine import width_task

    options, stage_line = line.pop_overrides(("width",))
    is_first = os.environ.get("SLURM_NODEID") == "0"

    def on_warning() -> None:
        if is_first:
            notify(f"Slurm warns: {TIME_LIMIT_NEAR}")

    signals = NodeSignals(on_warning)
    with signals.handled():
        allocation = read_allocation(os.environ)
        check_shared(allocation)
        ended = os.environ.get(ENDED)
        if ended is not None:
            code = int(ended)
            if "width" in options:  # the rollout finds that this width has no outcome
                return code

            def record(composed: Composed) -> int:
                return record_killed(composed.config, composed.stage, allocation, code)

            return compose(line, record)
        if "width" in options:
            task = width_task(stage_line, options["width"], allocation)
            return run_task(task, allocation, signals)

        def run(composed: Composed) -> int:
            fitted_line = fit_line(stage_line, composed.config, allocation)
            if fitted_line != stage_line:
                composed = compose_once(fitted_line)
            return run_stage(composed, allocation, signals)

        return compose(stage_line, run)
