"""Runs a search: predicts every setting, probes the most promising ones and writes the overlay of the best."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial

from launch.config.line import CommandLine
from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, Problem, UserError
from launch.execution.display.progress import Display
from launch.execution.machine import this_machine
from launch.execution.record.lock import run_lock
from launch.files import write_file
from launch.planning.plan import Plan, build_plan
from launch.table import Table
from launch.trials.measure import composed_probe, measure, say_document, say_lines, say_row
from launch.trials.measurement import read_measurement
from launch.trials.record import State, describe_changes, read_earlier
from launch.trials.tune.loop import refuse_if_nothing_fits, search
from launch.trials.tune.overlay import overlay_path, overlay_text
from launch.trials.tune.predict import Prediction
from launch.trials.tune.preparation import begin_record
from launch.trials.tune.probe import Probe, ProbeVerdict, is_final, summarize_probe
from launch.trials.tune.record import TuneRecord, estimate_json
from launch.trials.tune.request import check_numbers, line_for_candidate
from launch.trials.tune.search import time_left
from launch.trials.tune.space import extra_options
from launch.trials.view import PREDICTIONS

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
