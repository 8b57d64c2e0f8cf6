"""Runs a bench: plans both settings, rates their cards, alternates the runs and reports them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launch.check.machine.rules import preflight
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED, UserError
from launch.execution.display import Display
from launch.execution.record.lock import run_lock
from launch.host.interpreter import installed_versions, package_folders
from launch.planning.machine import PACKAGES, this_machine
from launch.planning.plan import build_plan
from launch.trials.bench.record import BenchRecord, BenchRun, parse_rates, plan_runs
from launch.trials.bench.settings import BenchRequest, PlannedBench, plan_bench
from launch.trials.card_rate import CardRate, card_name, measure_card_rate
from launch.trials.measurement import Measurement, find_earlier_measurement
from launch.trials.record import State, describe_changes, read_earlier
from launch.trials.trial import (
    attempt,
    composed_probe,
    gpus_for,
    measure,
    say_document,
    say_lines,
    say_row,
    say_warnings,
)


def run_bench(request: BenchRequest, display: Display) -> tuple[BenchRecord, int]:
    """Run both settings in turn and compare them.

    Returns the record and the exit code: 0 there is a verdict, 3 a run failed or no pair is complete, 130 interrupted.
    Raises UserError when the two cannot be compared or cannot run.
    """
    planned = plan_bench(request, composed_probe, lambda composed: build_plan(composed, this_machine(composed)))
    versions = [installed_versions(package_folders(side.plan.command[0]), PACKAGES) for side in planned.sides]
    record = BenchRecord(planned, plan_runs(planned), versions=(versions[0], versions[1]))
    earlier = read_earlier(planned.folder, record.verb, {"stage": record.plan.stage})
    with run_lock(planned.folder, display.say):
        return record, _run(record, earlier, display)


def _run(record: BenchRecord, earlier: Mapping[str, Any] | None, display: Display) -> int:
    planned = record.planned
    _print_plan(record, display)
    if any(find_earlier_measurement(run.plan, record.steps) is None for run in record.runs):
        _refuse_failing_preflight(planned)
    same_cards = _rate_cards(record, parse_rates(earlier))
    settings = earlier.get("settings", ()) if earlier else ()
    pairs = zip(settings, record.versions, strict=False)
    changed = [describe_changes(setting.get("versions", {}), versions) for setting, versions in pairs]
    changes = ", ".join(dict.fromkeys(change for change in changed if change)) or None
    if changes is not None:
        display.say(f"earlier runs are not reused: {changes}")
    say_lines(display, record.rate_lines)

    def measure_run(run: BenchRun, inspected: bool, seconds: float | None) -> Measurement:
        plan = run.plan
        display.say(f"{run.label}: {record.steps} steps; {plan.batch}; {plan.folder}")
        # another process, at the least the matrix product, has just been on the cards
        return measure(run.plan, record.steps, display, after_another=True, inspected=inspected, seconds=seconds)

    def on_change(run: BenchRun | None) -> None:
        record.write()
        if run is None or run.state == State.running:
            return
        say_row(display, record.verb, record.run_json(run))
        pair_is_complete = any(repeat == run.repeat for repeat, _, _ in record.pairs)
        if run.state == State.done and run is not record.runs[-1] and pair_is_complete:
            display.say(f"  so far: {record.summary[0]}")

    reuse = same_cards and changes is None and not record.plan.config.restart
    code = run_in_turn(record, measure_run, reuse, on_change)
    on_change(None)
    say_document(display, record)
    return code


def _print_plan(record: BenchRecord, display: Display) -> None:
    planned = record.planned
    a, b = planned.sides
    display.say(f"bench of {a.plan.stage} with {a.plan.trainer}, {a.plan.upstream.description}")
    for side in planned.sides:
        mode = f"{side.plan.parallel.width} {side.plan.parallel.mode.value}"
        display.say(f"  {side.title}: {' '.join(side.overrides) or 'no overrides'} ({mode}; {side.plan.batch})")
    if planned.same_setting:
        display.say("  A and B are the same setting: their difference is the measurement noise")
    say_lines(display, (f"  differs: {what}: {ours} in A, {theirs} in B" for what, ours, theirs in planned.differences))
    say_warnings(display, [a.plan, b.plan], planned.notes)


def _refuse_failing_preflight(planned: PlannedBench) -> None:
    """Check both settings before either runs, so that B's mistake does not show after A's run. Raises UserError."""
    problems = list(dict.fromkeys(problem for side in planned.sides for problem in preflight(side.plan)[0]))
    if problems:
        raise UserError(problems)


def _rate_cards(record: BenchRecord, earlier: Sequence[CardRate]) -> bool:
    """Measure the peak rate of the cards, once for each precision. Returns whether the earlier rates are of the same
    cards, so that the earlier runs may be reused."""
    rates: list[CardRate] = []
    for side in record.planned.sides:
        parallel = side.plan.parallel
        name = card_name(side.plan, gpus_for(side.plan))
        key = (name, parallel.width.device, parallel.precision)
        rate = next((rate for rate in [*rates, *earlier] if (rate.name, rate.device, rate.precision) == key), None)
        if rate is None or (rate.measured is None and rate not in rates):
            rate = measure_card_rate(side.plan, name, os.environ)
        rates.append(rate)
    record.rates = (rates[0], rates[1])
    earlier_names = {rate.name for rate in earlier}
    return not earlier_names or {rate.name for rate in rates} <= earlier_names


# run(record, inspected, seconds) measures one run in its folder. `inspected`: the same plan has just run here;
# `seconds`: the run is ended after them (None: no limit). Raises UserError when it cannot be started.
MeasureRun = Callable[[BenchRun, bool, float | None], Measurement]


def run_in_turn(
    record: BenchRecord,
    measure: MeasureRun,
    reuse: bool,
    on_change: Callable[[BenchRun | None], None],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Take every run in its turn; `on_change` is called with a run that has changed. `clock`: seconds.

    Returns the exit code: 0 with a pair to compare, 3 when a run failed or no pair is complete, 130 when interrupted.
    Raises UserError when the first run cannot be started.
    """
    minutes = record.planned.config.max_minutes
    deadline = None if minutes is None else clock() + 60 * minutes
    seconds: dict[int, list[float]] = {0: [], 1: []}
    ran: set[int] = set()

    def start(run: BenchRun) -> Measurement:
        # how long a run takes is unknown before the first one, which therefore has no limit
        return measure(run, run.side in ran, deadline - clock() if ran and deadline is not None else None)

    for index, run in enumerate(record.runs):
        measured = find_earlier_measurement(run.plan, record.steps) if reuse else None
        if measured is not None:
            run.state, run.measured, run.reused = State.done, measured, True
            seconds[run.side].append(measured.outcome.seconds)
            on_change(run)
            continue
        if deadline is not None and ran and deadline - clock() < _expected_seconds(seconds, record.runs[index:]):
            _drop_runs_from(record, index)
            on_change(None)
            break
        began = clock()
        if attempt(run, start, on_change, is_first=not ran):
            ran.add(run.side)
            seconds[run.side].append(clock() - began)
        if run.state == State.not_run:
            _drop_runs_from(record, index)
        on_change(run)
        if run.state != State.done:
            break
    if record.state == State.interrupted:
        return EXIT_INTERRUPTED
    failed = any(run.state == State.failed for run in record.runs)
    return EXIT_STOPPED if failed or not record.pairs else EXIT_DONE


def _drop_runs_from(record: BenchRecord, index: int) -> None:
    """Leave out the runs from `index` on, for which there is no time."""
    for later in record.runs[index:]:
        later.state = State.not_run
    record.message = f"max_minutes={record.planned.config.max_minutes:g} is too short for the rest"


def _expected_seconds(seconds: dict[int, list[float]], rest: Sequence[BenchRun]) -> float:
    """Seconds of the next run and, when it begins a pair, of the other run of that pair: half a pair compares nothing.
    A setting that has not run yet counts as 0."""
    return sum(max(seconds[run.side], default=0.0) for run in rest if run.repeat == rest[0].repeat)
