"""Runs a rollout: plans its widths, takes them through the gates and reports them; then the whole stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from launch.config.line import CommandLine
from launch.config.trials import Then
from launch.errors import EXIT_DONE
from launch.execution.display.progress import Display
from launch.execution.engine import run_steps
from launch.execution.machine import this_machine
from launch.execution.record.folder import Outcome
from launch.execution.record.lock import run_lock
from launch.planning.plan import build_plan
from launch.trials.measure import (
    card_gib,
    composed_probe,
    gpus_for,
    say_lines,
    say_row,
    say_warnings,
    wait_for_gpus,
)
from launch.trials.record import State, read_earlier
from launch.trials.rollout.jobs import refuse_impossible_jobs, submit_remaining
from launch.trials.rollout.loop import WidthRunner, run_widths
from launch.trials.rollout.plan_differences import find_plan_differences
from launch.trials.rollout.record import RolloutRecord, WidthRun
from launch.trials.rollout.request import RolloutRequest
from launch.trials.rollout.widths import plan_widths
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
