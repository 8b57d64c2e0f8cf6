"""Runs a rollout: plans its widths, takes them through the gates and reports them; then the whole stage."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from launch import resources
from launch.config.compose import Composed
from launch.config.line import CommandLine
from launch.config.trials import GatesConfig, Then
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED, Problem, UserError
from launch.execution.display import Display
from launch.execution.engine import run_steps
from launch.execution.record.lock import run_lock
from launch.execution.record.outcome import Outcome
from launch.planning.identity import compute_identity
from launch.planning.machine import this_machine
from launch.planning.plan import Plan, build_plan
from launch.trials.measurement import Measurement, archive_earlier_try, read_measurement
from launch.trials.record import State, read_earlier
from launch.trials.rollout.gate import GateCase
from launch.trials.rollout.gates import apply_gates
from launch.trials.rollout.jobs import refuse_impossible_jobs, submit_remaining
from launch.trials.rollout.plan_differences import find_plan_differences
from launch.trials.rollout.record import RolloutRecord, WidthRun, compute_efficiency, project
from launch.trials.rollout.request import RequestedWidth, RolloutRequest, SubmitMode
from launch.trials.trial import (
    attempt,
    card_gib,
    composed_probe,
    gpus_for,
    say_lines,
    say_row,
    say_warnings,
    wait_for_gpus,
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
    folder, runs = plan_widths(
        request,
        lambda width, mode: composed_probe(request.stage_line(width, mode)),
        lambda composed: build_plan(composed, this_machine(composed)),
    )
    config = runs[0].plan.config
    record = RolloutRecord(
        folder,
        steps=config.rollout.steps,
        then=config.rollout.then.value,
        price=config.rollout.price_per_gpu_hour,
        skip=config.gates.throughput_steady.skip,
        differences=find_plan_differences([run.plan for run in runs]),
        runs=runs,
    )
    read_earlier(folder, record.verb, {"stage": record.plan.stage, "trainer": record.plan.trainer})
    return record


def run_and_report(
    record: RolloutRecord, runner: WidthRunner, display: Display, *, restart: bool, only: WidthRun | None = None
) -> int:
    """Run the widths, or `only` one of them, show and record them. Returns the exit code of `run_widths`."""
    config = record.plan.config
    _print_plan(record, display)

    def on_change(run: WidthRun) -> None:
        record.write()
        if run.state == State.running:
            return
        shown = say_row(display, record.verb, record.run_json(run))
        cells = [gate_cells(gate) for gate in shown["gates"] if gate["verdict"] != "pass"]
        say_lines(display, (f"  {verdict:<7} {id:<21} {message}" for id, verdict, message in cells))

    code = run_widths(record, runner, config.gates, on_change, allow=config.allow, restart=restart, only=only)
    record.write()
    if not (runner.submit.makes_jobs and record.state == State.not_run):
        display.say(f"{record.verdict}; {record.folder}")
    if config.report:
        write_trial_report(record.folder, display.say)
    return code


def _this_machine(record: RolloutRecord, request: RolloutRequest, display: Display) -> WidthRunner:
    def run_width(run: WidthRun) -> Outcome:
        display.say(f"{run.label}: {record.steps} steps; {run.plan.batch}; {run.plan.folder}")
        if run is not record.runs[0]:  # another run has just ended here
            wait_for_gpus(run.plan, display.say)
        return run_steps(run.plan, display, record.steps)

    gpus = gpus_for(record.plan)
    return WidthRunner(run_width, len(gpus.seen), card_gib(gpus), submit=request.submit)


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
) -> tuple[Path, list[WidthRun]]:
    """Plan the short run of every width, below the folder that they share, <runs>/<stage>/rollout-<id>.

    `compose(width, parallel)` composes one. Raises UserError with the problems of all widths, each problem once.
    """
    plans: list[Plan] = []
    problems: list[Problem] = []
    for width in request.widths:
        try:
            composed = compose(width, None)
            mode = composed.config.rollout.parallel_at_one
            if width.ranks == 1 and mode:
                composed = compose(width, mode)
            _check_numbers(composed)
            plans.append(build(composed))
        except UserError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise UserError(problems)
    name = f"rollout-{plans[0].config.name or rollout_id(plans[0])}"
    runs = [
        WidthRun(
            str(plan.parallel.width), plan.renamed(f"{name}/{plan.parallel.width}-{plan.identity}"), requested=width
        )
        for width, plan in zip(request.widths, plans, strict=True)
    ]
    return plans[0].runs / plans[0].stage / name, runs


def _check_numbers(composed: Composed) -> None:
    """Raises UserError: bad_steps, bad_price."""
    rollout = composed.config.rollout
    if rollout.steps < 1:
        message = f"steps={rollout.steps} measures nothing"
        raise UserError(Problem("bad_steps", message, "rollout.steps", "use 1 or more; 50 to 200 is usual"))
    price = rollout.price_per_gpu_hour
    if price is not None and not 0 <= price < float("inf"):
        message = f"price_per_gpu_hour must be 0 or greater, got {price}"
        raise UserError(Problem("bad_price", message, "rollout.price_per_gpu_hour", "set a finite number"))


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

    run: Callable[[WidthRun], Outcome]  # to the end of its steps, in a new folder; UserError if it cannot start
    cards: int = 0  # visible GPUs of a node
    card_gib: float | None = None  # memory of one GPU
    nodes: int = 1  # of this Slurm job
    submit: SubmitMode = SubmitMode.none  # which widths become jobs instead


def run_widths(
    record: RolloutRecord,
    runner: WidthRunner,
    gates: GatesConfig,
    on_change: Callable[[WidthRun], None],
    *,
    allow: Collection[str] = (),
    restart: bool = False,
    only: WidthRun | None = None,
) -> int:
    """Take every width in its turn; `on_change` is called with a width that has changed.

    `allow`: ids of gates whose failure stops nothing. `restart`: run widths again that passed earlier. `only`: the
    width that this job runs; those before it have run already.

    Returns the exit code: 0 when all widths, or `only`, passed; 3 when a gate failed or a width cannot run here; 130
    when interrupted. Raises UserError when the first width cannot be started.
    """
    before: Measurement | None = None
    waits_for: str | None = None

    def passes_gates(run: WidthRun) -> bool:
        """Whether the run in the width's folder, if there is one, passes."""
        run.measured = read_measurement(run.plan, record.steps, runner.card_gib)
        run.gate_results = () if run.measured is None else apply_gates(GateCase(run.measured, before, gates), allow)
        return run.measured is not None and not run.failed_gates

    def start(run: WidthRun) -> Measurement:
        archive_earlier_try(run.plan)
        runner.run(run)
        passes_gates(run)
        assert run.measured is not None  # the run wrote its outcome
        return run.measured

    for run in record.runs:
        run.reused = (not restart or only not in (None, run)) and passes_gates(run)
        if run.reused:
            run.state = State.done
        elif only not in (None, run):
            run.state, run.message = State.failed, "it has not passed, so no wider width may run"
        else:
            # once a width becomes a job, the wider ones, which wait for it, do as well
            run.message = _why_not_here(run, runner) or (waits_for if runner.submit.makes_jobs else None)
            run.measured, run.gate_results = None, ()
            if run.message is not None:
                run.state, waits_for = State.not_run, f"it waits for {run.label}"
            elif attempt(run, start, on_change, is_first=run is record.runs[0]) and run.state != State.interrupted:
                run.state, run.message = State.failed if run.failed_gates else State.done, None  # the gates decide
        before = run.measured if run.message is None else before
        _project(record)
        on_change(run)
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
        run.projection = project(run.requested.ranks, run.label, measured, record.skip, record.price)
        if run.measured is not None and run.measured.finished:
            run.efficiency = compute_efficiency(run.measured, one_rank, record.skip)
