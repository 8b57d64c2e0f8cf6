"""Runs a rollout: plans its widths, takes them through the gates and reports them; then the whole stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from launch import resources
from launch.config.compose import Composed, compose_once
from launch.config.line import CommandLine
from launch.config.schema import RootConfig
from launch.config.trials import Then
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED, Problem
from launch.execution.display import Display
from launch.execution.record.lock import run_lock
from launch.planning.identity import compute_identity
from launch.planning.machine import this_machine
from launch.planning.plan import Plan, build_plan
from launch.trials.measurement import Measurement
from launch.trials.record import State, read_earlier
from launch.trials.rollout.gate import GateCase
from launch.trials.rollout.gates import apply_gates
from launch.trials.rollout.jobs import refuse_impossible_jobs, submit_remaining
from launch.trials.rollout.plan_differences import find_plan_differences
from launch.trials.rollout.record import RolloutRecord, WidthRun, compute_efficiency, project
from launch.trials.rollout.request import RequestedWidth, RolloutRequest, SubmitMode
from launch.trials.trial import (
    Runner,
    card_gib,
    gpus_for,
    measure,
    plan_all,
    probe_line,
    say_lines,
    say_row,
    say_warnings,
)
from launch.trials.view import gate_cells, write_trial_report


def run_rollout(
    request: RolloutRequest, display: Display, *, run_stage: Callable[[CommandLine], int]
) -> tuple[RolloutRecord, int]:
    """Take the stage through its widths, and with then=run run the whole of it at the last width by `run_stage`.

    Returns the record and the exit code: 0 all widths passed, 3 a gate failed or a width was not run, and the exit code
    of the whole run with then=run. Raises UserError when a width cannot work.
    """
    record = plan_rollout(request)
    config = record.plan.config
    if request.submit.makes_jobs:
        refuse_impossible_jobs(record, request)
    with run_lock(record.folder, display.say):
        code = run_and_report(record, _this_machine(record, request, display), display, restart=config.restart)
        if request.submit.makes_jobs and record.state == State.not_run:
            submitted = list(submit_remaining(record, request))
            record.write()
            say_lines(display, [*submitted, f"{record.verdict}; {record.folder}"])
            code = EXIT_DONE
    if code == EXIT_DONE and record.state == State.done and config.rollout.then == Then.run:
        widest = request.widths[-1]
        display.say(f"the whole stage at {request.key}={widest}")
        # as `run` would: with its own model, and resumed if an earlier call began it
        stage_line = request.stage_line(widest, config.rollout.parallel_at_one if widest.ranks == 1 else None)
        code = record.full_run = run_stage(replace(stage_line, verb="run", json=False))
        record.write()
    return record, code


def plan_rollout(request: RolloutRequest) -> RolloutRecord:
    """Plan every width. Raises UserError with the problems of all widths."""
    record = plan_widths(
        request,
        lambda width, mode: compose_once(probe_line(request.stage_line(width, mode))),
        lambda composed: build_plan(composed, this_machine(composed)),
    )
    read_earlier(record.folder, record.verb, {"stage": record.plan.stage, "trainer": record.plan.trainer})
    return record


def run_and_report(
    record: RolloutRecord, runner: WidthRunner, display: Display, *, restart: bool, only: WidthRun | None = None
) -> int:
    """Run the widths, or `only` one of them, show and record them. Returns the exit code of `run_widths`."""
    _print_plan(record, display)

    def on_change(run: WidthRun) -> None:
        record.write()
        if run.state == State.running:
            return
        shown = say_row(display, record, run)
        cells = [gate_cells(gate) for gate in shown["gates"] if gate["verdict"] != "pass"]
        say_lines(display, (f"  {verdict:<7} {id:<21} {message}" for id, verdict, message in cells))

    code = run_widths(record, runner, on_change, restart=restart, only=only, say=display.say)
    record.write()
    if not (runner.submit.makes_jobs and record.state == State.not_run):
        display.say(f"{record.verdict}; {record.folder}")
    if record.plan.config.report:
        write_trial_report(record.folder, display.say)
    return code


def _this_machine(record: RolloutRecord, request: RolloutRequest, display: Display) -> WidthRunner:
    def start(run: WidthRun, seconds: float | None) -> Measurement:
        display.say(f"{run.label}: {record.steps} steps; {run.plan.batch}; {run.plan.folder}")
        return measure(run.plan, record.steps, display, after_another=record.started)

    gpus = gpus_for(record.plan)
    return WidthRunner(start, len(gpus.seen), card_gib(gpus), submit=request.submit)


def _print_plan(record: RolloutRecord, display: Display) -> None:
    plan = record.plan
    display.say(f"rollout of {plan.stage} with {plan.trainer}, {plan.upstream.description}")
    for run in record.runs:
        display.say(f"  {run.label:<6} {run.plan.parallel.mode.value:<13} global {run.plan.batch}")
    say_lines(display, (f"  differs: {difference}" for difference in record.differences))
    say_warnings(display, [run.plan for run in record.runs])


def plan_widths(
    request: RolloutRequest,
    compose: Callable[[RequestedWidth, str | None], Composed],
    build: Callable[[Composed], Plan],
) -> RolloutRecord:
    """Plan the short run of every width, below the folder that they share, <runs>/<stage>/rollout-<id>.

    `compose(width, parallel)` composes one. Raises UserError with the problems of all widths, each problem once.
    """

    def plan_width(width: RequestedWidth) -> Plan:
        composed = compose(width, None)
        mode = composed.config.rollout.parallel_at_one
        return build(compose(width, mode) if width.ranks == 1 and mode else composed)

    plans = plan_all(request.widths, plan_width, _check_numbers)
    name = f"rollout-{plans[0].config.name or rollout_id(plans[0])}"
    runs = []
    for width, plan in zip(request.widths, plans, strict=True):
        label = str(plan.parallel.width)
        runs.append(WidthRun(label, plan.renamed(f"{name}/{label}-{plan.identity}"), requested=width))
    return RolloutRecord(plans[0].runs / plans[0].stage / name, runs, find_plan_differences(plans))


def _check_numbers(config: RootConfig) -> Iterator[Problem]:
    steps, price = config.rollout.steps, config.rollout.price_per_gpu_hour
    if steps < 1:
        message = f"steps={steps} measures nothing"
        yield Problem("bad_steps", message, "rollout.steps", "use 1 or more; 50 to 200 is usual")
    if price is not None and not 0 <= price < float("inf"):
        message = f"price_per_gpu_hour must be 0 or greater, got {price}"
        yield Problem("bad_price", message, "rollout.price_per_gpu_hour", "set a finite number")


def rollout_id(plan: Plan) -> str:
    """The id by which a rollout resumes: the same for every width, mode and number of steps of one recipe and data."""
    carried = plan.config.trainer.launch
    own = {carried.get("accumulation"), carried.get("output")}
    parts = {
        "stage": plan.stage,
        "trainer": [plan.trainer, plan.config.trainer.entry],
        "upstream": plan.upstream.commit,
        "device": plan.parallel.width.device.value,
        "flags": {name: flag.value for name, flag in plan.flags.items() if name not in own},
        "batch": [plan.batch.global_, plan.batch.per_device],
    }
    return compute_identity(parts, {plan.runs: "{runs}", plan.cache: "{cache}", resources.ROOT: "{project}"}, {})


_EXITS = {State.done: EXIT_DONE, State.interrupted: EXIT_INTERRUPTED}
_ENDED = (State.failed, State.interrupted)


@dataclass(frozen=True)
class WidthRunner:
    """Where and how a rollout runs its widths."""

    start: Callable[[WidthRun, float | None], Measurement]  # see Runner
    cards: int = 0  # visible GPUs of a node
    card_gib: float | None = None  # memory of one GPU
    nodes: int = 1  # of this Slurm job
    submit: SubmitMode = SubmitMode.none  # which widths become jobs instead


def run_widths(
    record: RolloutRecord,
    machine: WidthRunner,
    on_change: Callable[[WidthRun], None],
    *,
    restart: bool = False,
    only: WidthRun | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Take every width in its turn; `on_change` is called with a width that has changed.

    `restart`: run widths again that passed earlier. `only`: the width that this job runs; those before it have run
    already.

    Returns the exit code: 0 when all widths, or `only`, passed; 3 when a gate failed or a width cannot run here; 130
    when interrupted. Raises UserError when the first width cannot be started.
    """
    before: Measurement | None = None
    waits_for: str | None = None
    config = record.plan.config

    def accepts(run: WidthRun, measured: Measurement) -> bool:
        return not (restart and only in (None, run)) and passes_gates(run, measured)

    def passes_gates(run: WidthRun, measured: Measurement) -> bool:
        run.gate_results = apply_gates(GateCase(measured, before, config.gates), config.allow)
        return not run.failed_gates

    def judge(run: WidthRun) -> None:
        if run.measured is not None and run.state != State.interrupted:
            run.state = State.done if passes_gates(run, run.measured) else State.failed
            run.message = None  # the gates have it

    def changed(run: WidthRun) -> None:
        _project(record)
        on_change(run)

    runner = Runner(record, machine.start, changed, accepts, judge, card_gib=machine.card_gib, say=say)
    runner.same_machine = only is None  # the nodes of a job may have other cards than those of the job before
    for run in record.runs:
        run.message, run.gate_results = None, ()
        if runner.find_earlier(run) is None:
            # once a width becomes a job, the wider ones, which wait for it, do as well
            run.message = _why_not_here(run, machine) or (waits_for if machine.submit.makes_jobs else None)
            if only not in (None, run):
                run.state, run.message = State.failed, "it has not passed, so no wider width may run"
            elif run.message is not None:
                run.state, waits_for = State.not_run, f"it waits for {run.label}"
        if run.message is not None:
            run.gate_results = ()
            changed(run)
        else:
            runner.take(run)
            before = run.measured or before
        if run.state in _ENDED or run is only:
            break
    if record.state in _ENDED:
        _forget_jobs(record)
    return _EXITS.get(record.state if only is None else only.state, EXIT_STOPPED)


def _forget_jobs(record: RolloutRecord) -> None:
    """Reset the widths whose jobs Slurm has cancelled because a width before them failed."""
    for run in record.runs:
        if run.state == State.submitted:
            run.state, run.job_id = State.planned, None


def _why_not_here(run: WidthRun, runner: WidthRunner) -> str | None:
    width = run.plan.parallel.width
    if runner.submit == SubmitMode.all:
        return "it becomes a job"
    if width.nodes > runner.nodes:
        return f"it needs {width.nodes} machines"
    if width.device != "cuda" or width.local <= runner.cards:
        return None
    visible = {0: "no GPU", 1: "one GPU"}.get(runner.cards, f"{runner.cards} GPUs")
    needed = "one GPU" if width.local == 1 else f"{width.local} GPUs"
    return f"it needs {needed} and this machine has {visible}"


def _project(record: RolloutRecord) -> None:
    measured = [run.measured for run in record.runs if run.measured is not None]
    one_rank = next((measurement for measurement in measured if measurement.plan.batch.width == 1), None)
    for run in record.runs:
        price = record.config.price_per_gpu_hour
        run.projection = project(run.requested.ranks, run.label, measured, record.warmup, price)
        if run.measured is not None and run.measured.finished:
            run.efficiency = compute_efficiency(run.measured, one_rank, record.warmup)
