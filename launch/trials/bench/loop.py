"""The order and the control flow of a bench: earlier runs are reused, a failure or the time limit ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from launch.config.trials import Order
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED, UserError
from launch.trials.bench.record import BenchRecord, BenchState, RunRecord
from launch.trials.measurement import TIME_USED, Measurement, find_earlier_measurement

# run(record, inspected, seconds) measures one run in its folder. `inspected`: the same plan has just run here;
# `seconds`: the run is ended after them (None: no limit). Raises UserError when it cannot be started.
MeasureRun = Callable[[RunRecord, bool, float | None], Measurement]


def turns(repeats: int, order: Order) -> list[tuple[int, int]]:
    """(repeat from 1, side 0 or 1) of each run, in the order in which they run."""
    runs = []
    for repeat in range(1, repeats + 1):
        sides = (1, 0) if order == Order.abba and repeat % 2 == 0 else (0, 1)
        runs += [(repeat, side) for side in sides]
    return runs


def run_in_turn(
    record: BenchRecord,
    measure: MeasureRun,
    reuse: bool,
    on_change: Callable[[RunRecord | None], None],
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
    for index, run in enumerate(record.runs):
        measured = find_earlier_measurement(run.plan, record.steps) if reuse else None
        if measured is not None:
            run.state, run.measured, run.reused = BenchState.done, measured, True
            seconds[run.side].append(measured.outcome.seconds)
            on_change(run)
            continue
        left = None if deadline is None else deadline - clock()
        if left is not None and ran and left < _expected_seconds(seconds, record.runs[index:]):
            _drop_runs_from(record, index)
            on_change(None)
            break
        run.state = BenchState.running
        on_change(run)
        started = clock()
        try:
            # how long a run takes is unknown before the first one, which therefore has no limit
            run.measured = measure(run, run.side in ran, left if ran else None)
        except UserError as error:
            run.state, run.why = BenchState.failed, "; ".join(str(problem) for problem in error.problems)
            on_change(run)
            if not ran:
                raise
            break
        ran.add(run.side)
        seconds[run.side].append(clock() - started)
        run.state = _state_after(run.measured)
        if run.state == BenchState.not_run:
            _drop_runs_from(record, index)
        if run.state != BenchState.done:
            outcome = run.measured.outcome
            run.why = "; ".join(text for text in (outcome.cause, outcome.cure) if text) or None
        on_change(run)
        if run.state != BenchState.done:
            break
    if record.state == BenchState.interrupted:
        return EXIT_INTERRUPTED
    failed = any(run.state == BenchState.failed for run in record.runs)
    return EXIT_STOPPED if failed or not record.pairs else EXIT_DONE


def _state_after(measured: Measurement) -> BenchState:
    if measured.outcome.exit_code == EXIT_INTERRUPTED:
        return BenchState.interrupted
    if measured.finished:
        return BenchState.done
    return BenchState.not_run if measured.outcome.cause_id == TIME_USED else BenchState.failed


def _drop_runs_from(record: BenchRecord, index: int) -> None:
    """Leave out the runs from `index` on, for which there is no time."""
    for later in record.runs[index:]:
        later.state = BenchState.not_run
    record.why = f"max_minutes={record.planned.config.max_minutes:g} is too short for the rest"


def _expected_seconds(seconds: dict[int, list[float]], rest: Sequence[RunRecord]) -> float:
    """Seconds of the next run and, when it begins a pair, of the other run of that pair: half a pair compares nothing.
    A setting that has not run yet counts as 0."""
    return sum(max(seconds[run.side], default=0.0) for run in rest if run.repeat == rest[0].repeat)
