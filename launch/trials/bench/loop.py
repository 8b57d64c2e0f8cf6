"""The control flow of a bench: earlier runs are reused, a failure or the time limit ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED
from launch.trials.bench.record import BenchRecord, BenchRun
from launch.trials.measure import attempt
from launch.trials.measurement import Measurement, find_earlier_measurement
from launch.trials.record import State

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
