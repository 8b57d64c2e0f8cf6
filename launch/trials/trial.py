"""One trial: what its line may ask for, how a setting is run for some steps, and how that ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from launch.check.machine.gpus import gpus_are_free
from launch.check.machine.rules import inspect
from launch.config.compose import Composed, compose
from launch.config.line import CommandLine, override_key
from launch.config.schema import Device
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, Problem, UserError
from launch.execution.display import Display
from launch.execution.engine import run_steps
from launch.host.nvidia import Gpus, find_gpus
from launch.planning.plan import Plan
from launch.table import format_row
from launch.trials.measurement import TIME_USED, Measurement, archive_earlier_try, read_measurement
from launch.trials.record import State, TrialRecord, TrialRun
from launch.trials.view import COLUMNS, build_document, write_trial_report
from launch.worker.json_codec import to_json

_UNSUPPORTED = ("detach", "cache_only", "nodes")


def unsupported_problems(
    line: CommandLine, verb: str, reason: str, cures: Mapping[str, str] | None = None
) -> Iterator[Problem]:
    """Yield what the line asks for that a trial does not support. `reason`: why it does not support --multirun."""
    id_, keys = f"{verb}_alone", {override_key(word) for word in line.argv}
    if line.multirun:
        message = f"{verb} does not support --multirun: {reason}"
        yield Problem(id_, message, None, "run it once for each value")
    for key in _UNSUPPORTED:
        if key in keys:
            cure = (cures or {}).get(key, "remove it")
            yield Problem(id_, f"{verb} does not support {key}=", f"override {key}", cure)


def expand_short_options(line: CommandLine, verb: str, names: Sequence[str]) -> CommandLine:
    """Replace short options such as steps= by keys of the verb's node. Raises UserError: duplicate_override."""
    options, rest = line.pop_overrides(names)
    return rest.with_overrides(*(f"{verb}.{name}={options[name]}" for name in names if name in options))


R = TypeVar("R", bound=TrialRun)
_FREE_TIMEOUT = 20.0  # seconds until the memory of the run before is expected to be free
# overrides of each short run: it only measures, and writes nothing outside of its folder
PROBE = ("tracking=none", "hub.push=null", "recipe.checkpoint_steps=null")


def probe_line(line: CommandLine) -> CommandLine:
    """The command line of a short run of `line`."""
    keys = [override.partition("=")[0] for override in PROBE]
    return line.without(*keys).with_overrides(*PROBE)


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
    if after_another:
        wait_for_gpus(plan, display.say)
    run_steps(plan, display, steps, inspected=inspected, seconds=seconds)
    measured = read_measurement(plan, steps, card_gib(gpus_for(plan)))
    assert measured is not None  # run_steps wrote its outcome
    return measured


def attempt(run: R, start: Callable[[R], Measurement], on_change: Callable[[R], None], *, is_first: bool) -> bool:
    """Run one setting and record how it ended; returns whether it was started. `start` measures it.

    Raises UserError when the first run cannot be started; a later one that cannot has failed.
    """
    run.state, run.message = State.running, None
    on_change(run)
    try:
        run.measured = start(run)
    except UserError as error:
        run.state, run.message = State.failed, "; ".join(str(problem) for problem in error.problems)
        if is_first:
            on_change(run)
            raise
        return False
    outcome = run.measured.outcome
    if outcome.exit_code == EXIT_INTERRUPTED:
        run.state = State.interrupted
    elif run.measured.finished:
        run.state = State.done
    else:
        run.state = State.not_run if outcome.cause_id == TIME_USED else State.failed
    if run.state != State.done:
        run.message = "; ".join(text for text in (outcome.cause, outcome.cure) if text) or None
    return True


def gpus_for(plan: Plan) -> Gpus:
    """The GPUs visible to this process; none for a plan that runs on CPU."""
    return find_gpus(os.environ) if plan.parallel.width.device == Device.cuda else Gpus()


def card_gib(gpus: Gpus) -> float | None:
    """Memory of the smallest card in GiB."""
    totals = [gpu.total for gpu in gpus.seen if gpu.total]
    return min(totals) / 1024 if totals else None


def say_lines(display: Display, lines: Iterable[object]) -> None:
    """Show lines, one by one."""
    for line in lines:
        display.say(str(line))


def say_warnings(display: Display, plans: Iterable[Plan], notes: Iterable[Problem] = ()) -> None:
    """Show the notes and the plans' warnings, each once."""
    warnings = [*notes, *(warning for plan in plans for warning in plan.warnings)]
    say_lines(display, (f"warning: {warning}" for warning in dict.fromkeys(map(str, warnings))))


def say_row(display: Display, verb: str, contents: Mapping[str, Any]) -> Mapping[str, Any]:
    """Show a run that has ended, and why it did not measure everything; returns its JSON."""
    run: Mapping[str, Any] = to_json(contents)
    why = [f"  {run['message']}"] if run["message"] else []
    say_lines(display, [format_row(COLUMNS[verb]), format_row(COLUMNS[verb], run), *why])
    return run


def say_document(display: Display, record: TrialRecord) -> None:
    """Show the whole report at the end, and write its page."""
    document = build_document(record.as_json(), record.folder)
    say_lines(display, [document.text(), record.folder])
    if record.plan.config.report:
        write_trial_report(record.folder, display.say)


def wait_for_gpus(plan: Plan, say: Callable[[str], None]) -> None:
    """Wait until the driver has freed the memory of the run before, which a plan on CPU does not need."""
    if plan.parallel.width.device != Device.cuda:
        return
    deadline, is_announced = time.monotonic() + _FREE_TIMEOUT, False
    while any(finding.stops for finding in inspect(plan, [gpus_are_free])) and time.monotonic() < deadline:
        if not is_announced:
            say(f"waiting at most {_FREE_TIMEOUT:.0f} s until the GPUs are free of the run before")
            is_announced = True
        time.sleep(0.5)
