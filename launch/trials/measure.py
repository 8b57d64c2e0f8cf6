"""Runs a plan for some steps on this machine and reads what it measured; `bench`, `rollout` and `tune` use it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from launch.check.machine.gpus import gpus_are_free
from launch.check.machine.rules import inspect
from launch.config.compose import Composed, compose
from launch.config.line import CommandLine
from launch.config.schema import Device
from launch.errors import EXIT_DONE
from launch.execution.display.progress import Display
from launch.execution.engine import RankRunner, run_steps
from launch.execution.record.folder import Outcome
from launch.host.nvidia import Gpus, find_gpus
from launch.planning.plan import Plan
from launch.trials.measurement import Measurement, read_measurement
from launch.trials.short_run import archive_earlier_try, probe_line

_FREE_TIMEOUT = 20.0  # seconds until the memory of the run before is expected to be free


def composed_probe(line: CommandLine) -> Composed:
    """Compose the configuration of a short run of `line`. Raises UserError."""
    return composed_line(probe_line(line))


def composed_line(line: CommandLine) -> Composed:
    """Compose the one configuration of `line`. Raises UserError."""
    configurations: list[Composed] = []

    def collect(composed: Composed) -> int:
        configurations.append(composed)
        return EXIT_DONE

    compose(line, collect)
    return configurations[0]


def measure(
    plan: Plan,
    steps: int,
    display: Display,
    *,
    after_another: bool = False,
    inspected: bool = False,
    seconds: float | None = None,
) -> Measurement:
    """Run the plan until `steps` optimizer steps are logged and read what it measured; an earlier try is archived.

    `after_another`: another run has just ended here and may still hold its cards for a moment. `inspected`: the same
    plan has just run here, so the preflight is skipped. `seconds`: the run is ended after them. A run that fails is
    measured as far as it came; its `outcome` has the cause. Raises UserError when it cannot be started.
    """
    archive_earlier_try(plan)
    run_short(plan, steps, display, after_another=after_another, inspected=inspected, seconds=seconds)
    measured = read_measurement(plan, steps, card_gib(gpus_for(plan)))
    assert measured is not None  # run_steps wrote its outcome
    return measured


def run_short(
    plan: Plan,
    steps: int,
    display: Display,
    *,
    after_another: bool = False,
    inspected: bool = False,
    seconds: float | None = None,
    ranks: RankRunner | None = None,
) -> Outcome:
    """Run the plan in its folder, which is new; see `measure`, and `run_steps` for `ranks`. Raises UserError when it
    cannot be started."""
    if after_another:
        _wait_for_gpus(plan, display.say)
    return run_steps(plan, display, steps, inspected=inspected, seconds=seconds, run_ranks=ranks)


def gpus_for(plan: Plan) -> Gpus:
    """The GPUs visible to this process; none for a plan that runs on CPU."""
    return find_gpus(os.environ) if plan.parallel.width.device == Device.cuda else Gpus()


def card_gib(gpus: Gpus) -> float | None:
    """Memory of the smallest card in GiB."""
    totals = [gpu.total for gpu in gpus.seen if gpu.total]
    return min(totals) / 1024 if totals else None


def _wait_for_gpus(plan: Plan, say: Callable[[str], None]) -> None:
    """Wait until the driver has freed the memory of the run before."""
    if plan.parallel.width.device != Device.cuda:
        return
    deadline, is_announced = time.monotonic() + _FREE_TIMEOUT, False
    while any(finding.stops for finding in inspect(plan, [gpus_are_free])) and time.monotonic() < deadline:
        if not is_announced:
            say(f"waiting at most {_FREE_TIMEOUT:.0f} s until the GPUs are free of the run before")
            is_announced = True
        time.sleep(0.5)
