"""Runs a bench: plans both settings, rates their cards, alternates the runs and reports them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED
from launch.execution.display import Display
from launch.execution.record.lock import run_lock
from launch.host.interpreter import installed_versions, package_folders
from launch.planning.machine import PACKAGES
from launch.trials.bench.record import BenchRecord, BenchRun, parse_rates
from launch.trials.bench.settings import BenchRequest, plan_bench
from launch.trials.card_rate import card_name, measure_card_rate
from launch.trials.record import State, read_earlier, seconds_left
from launch.trials.trial import (
    Runner,
    gpus_for,
    plan_probe,
    refuse_failing_preflight,
    say_document,
    say_lines,
    say_plan,
)


def run_bench(request: BenchRequest, display: Display) -> tuple[BenchRecord, int]:
    """Run both settings in turn and compare them.

    Returns the record and the exit code: 0 there is a verdict, 3 a run failed or no pair is complete, 130 interrupted.
    Raises UserError when the two cannot be compared or cannot run.
    """
    record = plan_bench(request, plan_probe)
    for side in record.sides:
        side.versions = installed_versions(package_folders(side.plan.command[0]), PACKAGES)
    earlier = read_earlier(record.folder, record.verb, {"stage": record.plan.stage})
    with run_lock(record.folder, display.say):
        say_plan(display, record, _describe_settings(record), record.planning_notes)
        runner = Runner(record, display, reuse=not record.plan.config.restart)
        if not all(map(runner.find_earlier, record.runs)):
            refuse_failing_preflight((side.plan for side in record.sides), ends_after=record.steps)
        _rate_cards(record, earlier)
        say_lines(display, record.rate_lines)
        code = run_in_turn(runner)
        record.write()
        say_document(display, record)
        return record, code


def _describe_settings(record: BenchRecord) -> Iterator[str]:
    for side in record.sides:
        mode = f"{side.plan.parallel.width} {side.plan.parallel.mode.value}"
        yield f"  {side.label}: {' '.join(side.overrides) or 'no overrides'} ({mode}; {side.plan.batch})"
    if record.same_setting:
        yield "  A and B are the same setting: their difference is the measurement noise"
    yield from (f"  differs: {what}: {ours} in A, {theirs} in B" for what, ours, theirs in record.differences)


def _rate_cards(record: BenchRecord, earlier: Mapping[str, Any] | None) -> None:
    """Measure the peak rate of the cards, once for each precision, unless an earlier call has."""
    rates = [rate for rate in parse_rates(earlier) if rate.measured_tflops is not None]
    for side in record.sides:
        parallel = side.plan.parallel
        key = (card_name(side.plan, gpus_for(side.plan)), parallel.width.device, parallel.precision)
        known = (rate for rate in rates if (rate.name, rate.device, rate.precision) == key)
        side.rate = next(known, None) or measure_card_rate(side.plan, key[0], os.environ)
        rates.append(side.rate)


def run_in_turn(runner: Runner[BenchRun]) -> int:
    """Take every run of a bench in its turn.

    Returns the exit code: 0 with a pair to compare, 3 when a run failed or no pair is complete, 130 when interrupted.
    Raises UserError when the first run cannot be started.
    """
    record = runner.record
    assert isinstance(record, BenchRecord)
    for index, run in enumerate(record.runs):
        # how long a run takes is unknown before the first one, which therefore has no limit
        left = seconds_left((other for other in record.runs if not other.reused), record.config.max_minutes)
        if runner.find_earlier(run) or left is None or left >= _expected_seconds(record.runs, index):
            runner.take(run, left)
        else:
            run.state = State.not_run
        if run.state == State.not_run:
            for later in record.runs[index:]:  # there is no time for them
                later.state = State.not_run
            record.message = f"max_minutes={record.config.max_minutes:g} is too short for the rest"
        if run.state != State.done:
            break
    if record.state == State.interrupted:
        return EXIT_INTERRUPTED
    failed = any(run.state == State.failed for run in record.runs)
    return EXIT_STOPPED if failed or not record.pairs else EXIT_DONE


def _expected_seconds(runs: Sequence[BenchRun], index: int) -> float:
    """Seconds of the next run and, when it begins a pair, of the other run of that pair: half a pair compares nothing.
    A setting that has not run yet counts as 0."""
    pair = [run for run in runs[index:] if run.repeat == runs[index].repeat]
    return sum(max((other.seconds or 0.0 for other in run.side.runs), default=0.0) for run in pair)
