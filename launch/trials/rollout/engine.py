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
from launch.execution.report.write import write_trial_report
from launch.planning.plan import build_plan
from launch.redact import process_redactor
from launch.trials.measure import card_gib, composed_probe, gpus_for, say_lines, say_warnings, wait_for_gpus
from launch.trials.rollout.jobs import refuse_impossible_jobs, submit_remaining
from launch.trials.rollout.loop import WidthRunner, run_widths
from launch.trials.rollout.plan_differences import find_plan_differences
from launch.trials.rollout.record import RolloutRecord, WidthRecord, WidthState, refuse_another
from launch.trials.rollout.request import RolloutRequest
from launch.trials.rollout.table import HEADS, markdown, row, text, verdict_line, width_lines
from launch.trials.rollout.widths import PlannedWidth, plan_widths


def run_rollout(
    request: RolloutRequest, display: Display, *, run_stage: Callable[[CommandLine], int]
) -> tuple[RolloutRecord, int]:
    """Take the stage through its widths, and with then=run run the whole of it at the last width by `run_stage`.

    Returns the record and the exit code: 0 all widths passed, 3 a gate failed or a width was not run, and the exit code
    of the whole run with then=run. Raises UserError when a width cannot work.
    """
    record = plan_rollout(request)
    config = record.planned.widths[0].plan.config
    if request.submit.makes_jobs:
        refuse_impossible_jobs(record, request)
    with run_lock(record.planned.folder, display.say):
        code = run_and_report(record, _this_machine(record, request, display), display, restart=config.restart)
        if request.submit.makes_jobs and record.state == WidthState.not_run:
            submitted = list(submit_remaining(record, request))
            _write(record)
            say_lines(display, [*submitted, f"{verdict_line(record)}; {record.planned.folder}"])
            code = EXIT_DONE
    if code == EXIT_DONE and record.state == WidthState.passed and config.rollout.then == Then.run:
        widest = request.widths[-1]
        display.say(f"the whole stage at {request.key}={widest}")
        # as `run` would: with its own model, and resumed if an earlier call began it
        stage_line = request.stage_line(widest, config.rollout.parallel_at_one if widest.ranks == 1 else None)
        code = record.full_run = run_stage(replace(stage_line, verb="run", json=False))
        _write(record)
    return record, code


def plan_rollout(request: RolloutRequest) -> RolloutRecord:
    """Plan every width. Raises UserError with the problems of all widths."""
    planned = plan_widths(
        request,
        lambda width, mode: composed_probe(request.stage_line(width, mode)),
        lambda composed: build_plan(composed, this_machine(composed)),
    )
    refuse_another(planned)
    config = planned.widths[0].plan.config
    return RolloutRecord(
        planned,
        steps=config.rollout.steps,
        then=config.rollout.then.value,
        price=config.rollout.price_per_gpu_hour,
        skip=config.gates.throughput_steady.skip,
        differences=find_plan_differences([width.plan for width in planned.widths]),
        widths=[WidthRecord(width) for width in planned.widths],
    )


def run_and_report(
    record: RolloutRecord, runner: WidthRunner, display: Display, *, restart: bool, only: WidthRecord | None = None
) -> int:
    """Run the widths, or `only` one of them, show and record them. Returns the exit code of `run_widths`."""
    config = record.planned.widths[0].plan.config
    _print_plan(record, display)
    has_heads = False

    def on_change(width: WidthRecord) -> None:
        nonlocal has_heads
        _write(record)
        if width.state == WidthState.running:
            return
        if not has_heads:
            display.say(row(HEADS))
            has_heads = True
        say_lines(display, width_lines(width, record.skip))

    code = run_widths(record, runner, config.gates, on_change, allow=config.allow, restart=restart, only=only)
    _write(record)
    if not (runner.submit.makes_jobs and record.state == WidthState.not_run):
        display.say(f"{verdict_line(record)}; {record.planned.folder}")
    if config.report:
        write_trial_report(record.planned.folder, display.say)
    return code


def _this_machine(record: RolloutRecord, request: RolloutRequest, display: Display) -> WidthRunner:
    def run_width(width: PlannedWidth) -> Outcome:
        display.say(f"{width.label}: {record.steps} steps; {width.plan.batch}; {width.plan.folder}")
        if width is not record.widths[0].planned:  # another run has just ended here
            wait_for_gpus(width.plan, display.say)
        return run_steps(width.plan, display, record.steps)

    gpus = gpus_for(record.planned.widths[0].plan)
    return WidthRunner(run_width, len(gpus.seen), card_gib(gpus), submit=request.submit)


def _print_plan(record: RolloutRecord, display: Display) -> None:
    plan = record.planned.widths[0].plan
    display.say(f"rollout of {plan.stage} with {plan.trainer}, {plan.upstream.description}")
    for width in record.widths:
        mode = width.planned.plan.parallel.mode.value
        display.say(f"  {width.planned.label:<6} {mode:<13} global {width.planned.plan.batch}")
    say_lines(display, (f"  differs: {difference}" for difference in record.differences))
    say_warnings(display, [width.planned.plan for width in record.widths])


def _write(record: RolloutRecord) -> None:
    record.write(process_redactor(), {"rollout.txt": text(record), "rollout.md": markdown(record)})
