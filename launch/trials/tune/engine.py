"""Runs a search: predicts every setting, probes the most promising ones and writes the overlay of the best."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from launch.config.line import CommandLine
from launch.config.trials import TuneConfig
from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, Problem, UserError
from launch.execution.display import Display
from launch.execution.record.lock import run_lock
from launch.files import write_file
from launch.planning.machine import this_machine
from launch.planning.plan import Plan, build_plan
from launch.table import Table
from launch.trials.measurement import read_measurement
from launch.trials.record import State, describe_changes, read_earlier
from launch.trials.trial import (
    composed_probe,
    expand_short_options,
    measure,
    say_document,
    say_lines,
    say_row,
    unsupported_problems,
)
from launch.trials.tune.overlay import overlay_path, overlay_text
from launch.trials.tune.predict import Prediction
from launch.trials.tune.preparation import begin_record
from launch.trials.tune.probe import Probe, ProbeVerdict, is_final, summarize_probe
from launch.trials.tune.record import TuneRecord, estimate_json
from launch.trials.tune.search import Stop, affordable_steps, exhausted_limit, next_probe, time_left
from launch.trials.tune.space import Candidate, extra_options
from launch.trials.view import PREDICTIONS

SHORT = ("steps", "probes", "minutes", "dry_run")  # short for keys of the node `tune`


def read_request(line: CommandLine) -> CommandLine:
    """The line for Hydra, with `tune`'s short options as keys of its node.

    Raises UserError: tune_alone, duplicate_override.
    """
    problems = list(unsupported_problems(line, "tune", "it searches one stage at one width"))
    if problems:
        raise UserError(problems)
    return expand_short_options(line, "tune", SHORT)


def check_numbers(tune: TuneConfig) -> None:
    """Check the node `tune`. Raises UserError: bad_steps, bad_value."""
    problems = []
    if tune.skip < 0:
        message = f"skip must be 0 or greater, got {tune.skip}"
        problems.append(Problem("bad_steps", message, "tune.skip", "2 is the default"))
    elif tune.steps <= tune.skip:
        message = f"steps={tune.steps} measures nothing: the first {tune.skip} do not count"
        problems.append(Problem("bad_steps", message, "tune.steps", f"use {tune.skip + 1} or more; 8 is the default"))
    if tune.probes < 1:
        message = f"probes={tune.probes} measures nothing"
        problems.append(Problem("bad_value", message, "tune.probes", "use 1 or more, or dry_run=true"))
    if not 0 < tune.minutes < float("inf"):
        message = f"minutes must be a positive number, got {tune.minutes}"
        problems.append(Problem("bad_value", message, "tune.minutes", "10 is the default"))
    if not 0 <= tune.room < 1:
        message = f"room must be at least 0 and below 1, got {tune.room}"
        problems.append(Problem("bad_value", message, "tune.room", "0.05 is the default"))
    if problems:
        raise UserError(problems)


def line_for_candidate(line: CommandLine, candidate: Candidate) -> CommandLine:
    """The line with the candidate's keys in place of its own."""
    return line.without(*candidate.keys(), "parallel.mode", "name").with_overrides(*candidate.overrides())


_SHOWN = 12  # predictions
_EXITS = {State.failed: EXIT_FAILED, State.interrupted: EXIT_INTERRUPTED}


def run_tune(request: CommandLine, display: Display) -> tuple[TuneRecord, int]:
    """Search the fastest setting of the stage in `request` and write its overlay.

    Returns the record and the exit code: 0 there is a result (with dry_run, predictions), 1 no probe measured anything,
    130 interrupted. Raises UserError when nothing can be searched.
    """
    composed = composed_probe(request)
    check_numbers(composed.config.tune)
    plan = build_plan(composed, this_machine(composed))
    name = composed.config.name or f"{plan.stage}-{plan.parallel.width}-{plan.identity}"
    folder = plan.runs / plan.stage / f"tune-{name}"
    earlier = read_earlier(folder, "tune", {"identity": plan.identity})
    with run_lock(folder, display.say):
        record = begin_record(name, plan, display)
        before = {"card": earlier.get("card"), **earlier.get("versions", {})} if earlier else {}
        changes = describe_changes(before, {"card": record.card, **record.versions})
        code = _search(record, request, display, changes)
        _refuse_if_none_started(record)
        return record, code


def _search(record: TuneRecord, request: CommandLine, display: Display, changes: str | None) -> int:
    if changes and not record.dry_run:
        display.say(f"earlier probes are not reused: {changes}")
    reuse = not record.plan.config.restart and changes is None

    def run_probe(prediction: Prediction, steps: int) -> Probe:
        display.say(f"probe {len(record.probes) + 1} of at most {record.limits.probes}: {prediction.label}")
        try:
            composed = composed_probe(line_for_candidate(request, prediction.candidate))
            plan = build_plan(composed, this_machine(composed))
            plan = plan.renamed(f"tune-{record.name}/{prediction.label}-{plan.identity}")
            return _reuse_or_run(record, prediction, plan, display, steps=steps, reuse=reuse)
        except UserError as error:
            why = "; ".join(str(problem) for problem in error.problems)
            return Probe(prediction, ProbeVerdict.refused, "", why=why)

    def on_change(probe: Probe | None) -> None:
        record.write()
        if probe is not None:
            say_row(display, record.verb, record.run_json(probe))

    display.say(f"tune of {record.plan.stage} with {record.plan.trainer}, {record.plan.upstream.description}")
    say_lines(display, [*record.notes, *_prediction_lines(record)])
    refuse_if_nothing_fits(record)
    if record.dry_run and len(record.predictions) > 1:
        on_change(None)
    else:
        search(record, run_probe, partial(extra_options, record.plan), on_change)
    if record.best is not None:
        record.overlay = overlay_path(record.name, os.environ)
        write_file(record.overlay, overlay_text(record))
        display.say(f"wrote {record.overlay}: use it as +tuned={record.name} with the same stage and width")
        on_change(None)
    say_document(display, record)
    return _EXITS.get(record.state, EXIT_DONE)


def _prediction_lines(record: TuneRecord) -> list[str]:
    """The fastest predictions that may be probed, and the recipe's own."""
    shown, base = [estimate for estimate in record.estimates if estimate.is_open][:_SHOWN], record.base_estimate
    lines = Table.of("", PREDICTIONS, map(estimate_json, shown if base in shown else [*shown, base])).lines()
    return [*lines[:-1], lines[-1] + "  the recipe's own"] if base not in shown else lines


def _reuse_or_run(
    record: TuneRecord, prediction: Prediction, plan: Plan, display: Display, *, steps: int, reuse: bool
) -> Probe:
    """The probe of an earlier call where it is final, else a new run. Raises UserError when it cannot be started."""
    began, skip = time.monotonic(), record.plan.config.tune.skip
    left = time_left(record.probes, record.limits, record.used)
    earlier = read_measurement(plan, steps) if reuse else None
    if earlier is not None and is_final(earlier, skip, left):
        return summarize_probe(prediction, earlier, str(plan.folder), skip, reused=True)
    probes_run = [probe for probe in record.probes if not probe.reused]
    measured = measure(
        plan,
        steps,
        display,
        after_another=bool(probes_run),
        inspected=any(probe.verdict == ProbeVerdict.measured for probe in probes_run),
        seconds=left,
    )
    return replace(summarize_probe(prediction, measured, str(plan.folder), skip), wall=time.monotonic() - began)


def _refuse_if_none_started(record: TuneRecord) -> None:
    """Raises UserError (no_probe_started) with the first probe's problem when no probe could be started."""
    if record.probes and all(probe.verdict == ProbeVerdict.refused for probe in record.probes):
        message = f"no probe could be started: {record.probes[0].why}"
        raise UserError(Problem("no_probe_started", message, None, "fix that and run tune again"))


Extra = tuple[str, Any]  # a key and its value
RunProbe = Callable[[Prediction, int], Probe]  # a setting and its steps
Run = Callable[[Prediction, int], None]  # the same, recorded
_COMPLETED = (Stop.best_beats_the_rest, Stop.all_tried)


def search(
    record: TuneRecord,
    run_probe: RunProbe,
    extras: Callable[[Candidate], Sequence[Extra]],
    on_change: Callable[[Probe | None], None],
) -> None:
    """Fill the record.

    `run_probe` runs one setting for some steps; `extras` are the options to try on the best one, one after another;
    `on_change` is called before and after each probe.
    """
    if len(record.predictions) == 1:
        record.stop = Stop.one_setting
        on_change(None)
        return

    def run(prediction: Prediction, steps: int) -> None:
        on_change(None)
        probe = run_probe(prediction, steps)
        record.probes.append(probe)
        if probe.verdict == ProbeVerdict.interrupted:
            record.stop = Stop.interrupted
        on_change(probe)

    while record.stop is None:
        choice = next_probe(record.estimates, record.probes, record.limits, record.used)
        if isinstance(choice, Stop):
            record.stop = choice
        else:
            run(choice.prediction, record.limits.steps)
    if record.stop in _COMPLETED:
        _try_extras(record, run, extras)
    if record.stop != Stop.interrupted and record.best is not None:
        _probe_base(record, run)
    on_change(None)


def refuse_if_nothing_fits(record: TuneRecord) -> None:
    """Raise UserError (nothing_fits) with the least memory that any setting needs."""
    estimates = record.estimates
    if record.probes or any(estimate.is_open for estimate in estimates):
        return
    smallest = min(estimates, key=lambda estimate: estimate.memory_gib or 0.0)
    card, room = record.workload.card_gib or 0.0, record.limits.room
    message = (
        f"no setting at {record.plan.parallel.width} fits: {smallest.prediction.label} needs the least, about "
        f"{smallest.memory_gib:.0f} GiB of a card's {card:.0f} GiB, of which {room:.0%} stays free"
    )
    cure = "use more GPUs, a smaller model or a lower recipe.max_seq_length, or set fewer keys yourself"
    raise UserError(Problem("nothing_fits", message, None, cure))


def _try_extras(record: TuneRecord, run: Run, extras: Callable[[Candidate], Sequence[Extra]]) -> None:
    """Try each extra option on the best setting so far; the results are predictions like the others from then on."""
    if record.best is None:
        return
    for extra in extras(record.best.prediction.candidate):
        best = record.best
        if best is None or best.seconds is None or record.stop == Stop.interrupted:
            return
        if exhausted_limit(best.seconds, record.probes, record.limits, record.used):
            return
        candidate = replace(best.prediction.candidate, extra=(*best.prediction.candidate.extra, extra))
        refined = replace(best.prediction, candidate=candidate)
        record.predictions = [*record.predictions, refined]
        run(refined, record.limits.steps)


def _probe_base(record: TuneRecord, run: Run) -> None:
    """Probe the recipe's own setting, for as many steps as there is time for: the gain and the loss are measured
    against it. It is often many times slower than the best, so that a whole probe would take too long."""
    if record.base is not None:
        return
    base, skip = record.base_estimate, record.plan.config.tune.skip
    steps = affordable_steps(base.seconds, record.probes, record.limits, record.used, skip)
    if base.is_open and steps is not None:
        run(base.prediction, steps)
