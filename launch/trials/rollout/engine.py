"""Runs a rollout: its widths one after another, here or as Slurm jobs, and then the whole stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from launch import resources
from launch.config.compose import compose_once, map_all
from launch.config.line import CommandLine
from launch.config.schema import Device
from launch.config.trials import RolloutConfig, Then
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED, UserError, refusal
from launch.execution.display import Display
from launch.execution.engine import RankRunner
from launch.execution.record.lock import run_lock
from launch.host.nvidia import find_gpus
from launch.planning.build import plan_line
from launch.planning.identity import compute_identity
from launch.planning.plan import Plan
from launch.slurm.allocation import Allocation
from launch.slurm.jobs import JobFolder, find_job_ids
from launch.slurm.node.task import NodeTask
from launch.slurm.planned_jobs import (
    PlannedJob,
    job_problems,
    node_overrides,
    plan_job,
    plan_run_job,
    plan_tokenize_job,
)
from launch.slurm.requeue_policy import RestartMark, wait_for_lock
from launch.slurm.schedule import TokenizeFirst, as_chain, needs_tokenize_job
from launch.slurm.submission import refuse_live_jobs, submit_steps
from launch.slurm.submission_report import describe_submission
from launch.table import Table
from launch.trials.measurement import archive_earlier_try
from launch.trials.record import State, archive_other_format, read_earlier
from launch.trials.rollout.plan_differences import find_plan_differences
from launch.trials.rollout.record import RolloutRecord, WidthRun
from launch.trials.rollout.request import (
    RequestedWidth,
    RolloutRequest,
    SubmitMode,
    read_rollout_request,
)
from launch.trials.trial import Runner, finish_trial, plan_probe, say_lines, say_plan
from launch.worker.finding import Finding


def run_rollout(
    request: RolloutRequest, display: Display, *, run_stage: Callable[[CommandLine], int]
) -> tuple[RolloutRecord, int]:
    """Run the stage at each width, and with then=run run the whole stage at the last width.

    `run_stage` runs the whole stage as the verb `run` does: it resumes what an earlier call began.

    Returns the record and the exit code: 0 all widths passed, 3 a gate failed or a width was not
    run, and the exit code of the whole run with then=run. Raises UserError when a width cannot
    work.
    """
    record = plan_rollout(request)
    config = record.plan.config
    if request.submit.makes_jobs:
        refuse_impossible_jobs(record, request)
    with run_lock(record.folder, display.say):
        archive_other_format(record.folder, record.verb, display.say)
        runner = Runner(record, display)
        code = run_and_report(runner, submit=request.submit, restart=config.restart)
        if request.submit.makes_jobs and record.state == State.not_run:
            submitted = list(submit_remaining(record, request))
            record.write()
            say_lines(display, [*submitted, f"{record.verdict}; {record.folder}"])
            code = EXIT_DONE
    all_passed = code == EXIT_DONE and record.state == State.done
    if all_passed and config.rollout.then == Then.run:
        widest = request.widths[-1]
        display.say(f"the whole stage at {request.key}={widest}")
        stage_line = request.stage_line(widest, config.rollout.parallel_at_one)
        code = run_stage(replace(stage_line, verb="run", json=False))
        record.full_run = code
        record.write()
    return record, code


def _compose_options(line: CommandLine) -> RolloutConfig:
    return compose_once(line).config.rollout


def plan_rollout(
    request: RolloutRequest,
    compose_options: Callable[[CommandLine], RolloutConfig] = _compose_options,
    plan: Callable[[CommandLine], Plan] = plan_probe,
) -> RolloutRecord:
    """Plan the short run of every width in a folder of the rollout, <runs>/<stage>/rollout-<id>.

    Raises UserError with the problems of all widths, each problem once.
    """
    narrowest_line = request.stage_line(request.widths[0])
    at_one = compose_options(narrowest_line).parallel_at_one
    plans = map_all(request.widths, lambda width: plan(request.stage_line(width, at_one)))
    first = plans[0]
    config = first.config
    name = f"rollout-{config.name or rollout_id(first)}"
    runs = []
    for width, width_plan in zip(request.widths, plans, strict=True):
        label = str(width_plan.parallel.width)
        renamed = width_plan.renamed(f"{name}/{label}-{width_plan.identity}")
        runs.append(WidthRun(label, renamed, requested=width))
    record = RolloutRecord(
        folder=first.runs / first.stage / name,
        plan=runs[0].plan,
        steps=config.rollout.steps,
        warmup=config.gates.throughput_steady.skip,
        differences=find_plan_differences(plans),
        runs=runs,
    )
    subject = {"stage": first.stage, "trainer": first.trainer}
    read_earlier(record.folder, record.verb, subject, restart=config.restart)
    return record


def run_and_report(
    runner: Runner[WidthRun], *, submit: SubmitMode = SubmitMode.none, **options: Any
) -> int:
    """Show the plan, run the widths and record them.

    Takes the options of `run_widths` and returns its exit code.
    """
    record = runner.record
    display = runner.display
    assert isinstance(record, RolloutRecord)
    widths = [
        [f"  {run.label}", run.plan.parallel.mode.value, f"global {run.plan.batch}"]
        for run in record.runs
    ]
    differences = [f"  differs: {difference}" for difference in record.differences]
    say_plan(display, record, [*Table("", widths).lines(), *differences])
    code = run_widths(runner, submit=submit, **options)
    becomes_jobs = submit.makes_jobs and record.state == State.not_run
    verdict = f"{record.verdict}; {record.folder}"
    finish_trial(display, record, [] if becomes_jobs else [verdict])
    return code


def rollout_id(plan: Plan) -> str:
    """Return the id by which a rollout resumes.

    It is the same for every width, parallel mode and number of steps of one recipe and its data.
    """
    flag_names = plan.config.trainer.launch
    flags_of_width = {flag_names.get("accumulation"), flag_names.get("output")}
    flags = {name: flag.value for name, flag in plan.flags.items() if name not in flags_of_width}
    parts = {
        "stage": plan.stage,
        "trainer": [plan.trainer, plan.config.trainer.entry],
        "upstream": plan.upstream.commit,
        "device": plan.parallel.width.device.value,
        "flags": flags,
        "batch": [plan.batch.global_, plan.batch.per_device],
    }
    folders = {plan.runs: "{runs}", plan.cache: "{cache}", resources.ROOT: "{project}"}
    return compute_identity(parts, folders, {})


_EXITS = {State.done: EXIT_DONE, State.interrupted: EXIT_INTERRUPTED}
_ENDED = (State.failed, State.interrupted)


def run_widths(
    runner: Runner[WidthRun],
    *,
    cards: int | None = None,
    nodes: int = 1,
    submit: SubmitMode = SubmitMode.none,
    restart: bool = False,
    only: WidthRun | None = None,
) -> int:
    """Run one width after another.

    `cards`: GPUs of a node, by default those that are visible; `nodes`: nodes of this Slurm job.
    `submit`: which widths become jobs instead. `restart`: run widths again that passed earlier.
    `only`: the width that this job runs; the widths before it have run already.

    Returns the exit code: 0 when all widths, or `only`, passed; 3 when a gate failed or a width
    cannot run here; 130 when interrupted. Raises UserError when the first width cannot be started.
    """
    record = runner.record
    if cards is None:
        cards = len(find_gpus(record.plan.machine.environ).seen)
    # The nodes of a job may have other GPUs than those of the previous job.
    runner.same_machine = only is None
    waits_for: str | None = None  # why a width does not run that follows one which becomes a job
    for run in record.runs:
        run.message = None
        run.gate_results = ()
        is_ours = only is None or run is only
        runner.reuse = not (restart and is_ours)
        has_passed = runner.find_earlier(run) is not None
        if not has_passed and not is_ours:
            run.state = State.failed
            run.message = "it has not passed, so no wider width may run"
        elif not has_passed:
            run.message = _why_not_here(run.plan, cards, nodes, submit) or waits_for
            if run.message is not None:
                run.state = State.not_run
                waits_for = f"it waits for {run.label}" if submit.makes_jobs else None
        if run.message is None:
            runner.take(run)
        else:
            run.gate_results = ()  # earlier results belong to a measurement that does not count
            runner.show(run)
        if run.state in _ENDED or run is only:
            break
    if record.state in _ENDED:
        _forget_jobs(record.runs)
    state = record.state if only is None else only.state
    return _EXITS.get(state, EXIT_STOPPED)


def _forget_jobs(runs: Iterable[WidthRun]) -> None:
    """Mark the submitted widths as planned: after a failed width, Slurm cancels their jobs."""
    for run in runs:
        if run.state == State.submitted:
            run.state = State.planned
            run.job_id = None


def _why_not_here(plan: Plan, cards: int, nodes: int, submit: SubmitMode) -> str | None:
    """Return why a width does not run now, on nodes of `cards` GPUs; None if it does."""
    if submit == SubmitMode.all:
        return "it becomes a job"
    width = plan.parallel.width
    if width.nodes > nodes:
        return f"it needs {width.nodes} machines"
    if width.device != Device.cuda or width.local <= cards:
        return None
    return f"it needs {_count_gpus(width.local)} and this machine has {_count_gpus(cards)}"


def _count_gpus(count: int) -> str:
    """Return a number of GPUs with its noun."""
    if count == 0:
        return "no GPU"
    return "one GPU" if count == 1 else f"{count} GPUs"


def plan_width_job(width: WidthRun, request: RolloutRequest) -> PlannedJob:
    """Plan the job of a width.

    Its nodes get the overrides of the whole rollout, and the label of their width.
    """
    plan = width.plan
    overrides = node_overrides(
        (*request.line.argv, request.widths_override, f"width={width.requested}")
    )
    title = (
        f"{width.label} of the rollout of {plan.stage} with {plan.trainer} over "
        f"{request.widths_override}"
    )
    return plan_job(plan, JobFolder.of_plan(plan), overrides, title=title)


def refuse_impossible_jobs(record: RolloutRecord, request: RolloutRequest) -> None:
    """Raise UserError if widths can't become jobs, before any width has run."""
    jobs = [plan_width_job(run, request) for run in record.runs]
    problems: list[Finding] = []
    for job in jobs:
        problems += job_problems(job)
    if problems:
        raise UserError(problems)
    refuse_live_jobs(jobs, dry_run=request.dry_run)


def submit_remaining(record: RolloutRecord, request: RolloutRequest) -> Iterator[str]:
    """Submit the widths that were not run here, each of which starts when the previous one has
    passed, and with then=run the whole stage after them.

    Returns the lines of the report. Raises UserError when they cannot be submitted.
    """
    remaining = {run.plan.folder: run for run in record.runs if run.state == State.not_run}
    narrowest = next(iter(remaining.values()))
    narrowest_stage = _plan_stage_job(narrowest.requested, request, record)
    jobs = []
    if needs_tokenize_job(narrowest_stage, TokenizeFirst.auto):
        jobs.append(plan_tokenize_job(narrowest_stage))
    jobs += [plan_width_job(run, request) for run in remaining.values()]
    if record.config.then == Then.run:
        jobs.append(_plan_stage_job(request.widths[-1], request, record))
    steps = as_chain(jobs, TokenizeFirst.never)
    ids = submit_steps(steps, dry_run=request.dry_run)
    for job, job_id in zip(jobs, ids, strict=False):
        if job.run in remaining:
            run = remaining[job.run]
            run.state = State.submitted
            run.message = None
            run.job_id = job_id
    return describe_submission(steps, ids, {})


def _plan_stage_job(
    width: RequestedWidth, request: RolloutRequest, record: RolloutRecord
) -> PlannedJob:
    """Plan the job that runs the whole stage at one width."""
    line = request.stage_line(width, record.config.parallel_at_one)
    return plan_run_job(plan_line(line))


_SUBMIT_TIMEOUT = 300.0  # seconds that `rollout` may need to submit its jobs to a busy Slurm


def width_task(line: CommandLine, label: str, allocation: Allocation) -> NodeTask:
    """Plan the width `label` of the rollout in `line` as the task of a Slurm job.

    The task runs the width if those before it passed, and applies the gates to it. Raises
    UserError: bad_width (`label` is not a width of this rollout).
    """
    request = read_rollout_request(line)
    record = plan_rollout(request)
    chosen = [run for run in record.runs if str(run.requested) == label]
    if not chosen:
        message = f"width={label} is not one of {request.widths_override}"
        cure = "submit the rollout's jobs with `rollout ... submit=all`"
        raise refusal("bad_width", message, "override width", cure)
    only = chosen[0]
    plan = only.plan
    only.job_id = allocation.job_id
    restart_mark = RestartMark(plan, allocation)

    def lead(ranks: RankRunner, display: Display) -> int:
        def start(width: WidthRun, seconds: float | None) -> None:
            archive_earlier_try(width.plan)
            restart_mark.set()
            runner.measure(width, seconds)

        runner = Runner(record, display, start, run_ranks=ranks)
        if allocation.restarts:
            wait_for_lock(plan.folder, display.say)
        # The `rollout` that submits this job holds the lock until all its jobs are submitted.
        wait_for_lock(
            record.folder,
            display.say,
            _SUBMIT_TIMEOUT,
            "another launcher holds this rollout's record",
        )
        with run_lock(record.folder, display.say):
            for later in record.runs[record.runs.index(only) + 1 :]:
                ids = find_job_ids(JobFolder.of_plan(later.plan))
                if ids:
                    later.state = State.submitted
                    later.job_id = ids[-1]
            nodes = plan.parallel.width.nodes
            return run_and_report(runner, nodes=nodes, only=only, restart=restart_mark.is_due)

    return NodeTask(plan, lead, record.steps)
