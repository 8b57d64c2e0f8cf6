"""Runs a search: predicts all settings, probes the most promising and writes the best as YAML."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from launch.check.machine.gpus import enough_gpus
from launch.check.machine.rules import inspect, stopping_problems
from launch.config.line import CommandLine, override_key
from launch.config.schema import Device, Family
from launch.config.trials import TuneConfig
from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, UserError, refusal
from launch.execution.caches import tokenized_folder
from launch.execution.display import Display
from launch.execution.engine import build_cache
from launch.execution.prepare import prepare_inputs
from launch.execution.record.lock import run_lock
from launch.execution.record.run import mapping, objects
from launch.files import write_file
from launch.planning.estimate.cards import card_memory, rates_for_card
from launch.planning.estimate.planned_setting import UnknownMemoryError, planned_setting
from launch.planning.estimate.planned_shape import planned_shape
from launch.planning.estimate.setting import Attention, MemorySetting
from launch.planning.flags import sequence_limit
from launch.planning.lengths import Histogram, Lengths, load_lengths
from launch.planning.plan import Plan
from launch.trials.record import (
    REFUSED,
    State,
    archive_other_format,
    read_earlier,
    seconds_left,
)
from launch.trials.trial import (
    Runner,
    expand_short_options,
    finish_trial,
    plan_probe,
    refuse_unsupported,
    say_plan,
)
from launch.trials.tune.overlay import overlay_path, overlay_text
from launch.trials.tune.predict import Prediction, Probe, Workload, predict
from launch.trials.tune.record import TuneRecord
from launch.trials.tune.search import Stop, affordable_steps, exhausted_limit, is_late, next_probe
from launch.trials.tune.space import Candidate, build_space, extra_options
from launch.trials.view import predictions_table
from launch.worker.json_codec import to_json
from launch.worker.wording import noun_for


def begin_record(folder: Path, plan: Plan, display: Display) -> TuneRecord:
    """Return the record of a search before any probe.

    Raises UserError: unknown_shape, too_few_gpus, no_tokenised_data, too_few_samples.
    """
    prepare_inputs(plan, display.say)
    options = plan.config.tune
    card = None
    if plan.parallel.width.device == Device.cuda:
        card = plan.machine.card or plan.config.cluster.gpu_type or "an unknown GPU"
    base, card_gib = _base_setting(plan)
    measured_lengths = _find_lengths(plan, display)
    _refuse_too_few_samples(plan, measured_lengths)
    trainer = plan.config.trainer
    workload = Workload(
        base=base,
        global_batch=plan.batch.global_,
        lengths=measured_lengths or _assume_lengths(plan),
        measured_lengths=measured_lengths is not None,
        card_rates=rates_for_card(card),
        fuses=trainer.fuses_loss,
        flash=plan.machine.has_flash_attention and trainer.family == Family.open_instruct,
        card_gib=card_gib,
    )
    space = build_space(plan, plan.machine.versions)
    return TuneRecord(
        folder=folder,
        plan=plan,
        steps=options.steps,
        warmup=options.skip,
        space=space,
        workload=workload,
        predictions=[predict(candidate, workload) for candidate in space.candidates],
        limits=options,
        card=card,
    )


def full_line(line: CommandLine) -> CommandLine:
    """Return the line that trains all weights instead of an adapter."""
    keys = [override_key(override) for override in line.overrides]
    adapter_keys = [key for key in keys if key.startswith("recipe.lora.")]
    return line.without(*adapter_keys).with_overrides("recipe.lora.rank=null")


def _base_setting(plan: Plan) -> tuple[MemorySetting, float | None]:
    """Return the recipe's own setting, and the GPU's memory in GiB.

    The memory is None where it cannot be predicted. Raises UserError: unknown_shape.
    """
    has_flash = plan.machine.has_flash_attention
    environ = plan.machine.environ
    try:
        setting = planned_setting(plan, environ, flash=has_flash)
    except UnknownMemoryError:
        shape = planned_shape(plan, environ)
        if shape is None:
            message = (
                f"nothing can be predicted: the shape of {plan.inputs.model.reference} is unknown"
            )
            cure = (
                "download the model to this machine, or set model.shape.layers= and the other "
                "model.shape keys"
            )
            raise refusal("unknown_shape", message, "model", cure) from None
        setting_without_memory = MemorySetting(
            shape,
            plan.config.stage.kind,
            plan.parallel.mode,
            ranks=plan.batch.width,
            micro_batch=plan.batch.per_device,
            tokens=1,
            attention=Attention.flash if has_flash else Attention.sdpa,
        )
        return setting_without_memory, None
    card = card_memory(plan.config.cluster, environ)
    return setting, card.gib if card else None


def _find_lengths(plan: Plan, display: Display) -> Lengths | None:
    """Return the data's lengths; the data is tokenised first if necessary.

    None where tokenising does not yield them. Raises UserError: too_few_gpus, no_tokenised_data.
    """
    lengths = load_lengths(plan.lengths_file)
    if lengths or plan.config.tune.dry_run:
        return lengths
    if plan.lengths_file is None or tokenized_folder(plan) is None:
        return lengths
    # Nothing is tokenised for probes that cannot start.
    problems = stopping_problems(inspect(plan, [enough_gpus]))
    if problems:
        raise UserError(problems)
    display.say("tokenising first: the predictions need the data's lengths")
    if build_cache(plan, display) != EXIT_DONE:
        message = "the data could not be tokenised"
        cure = "run the stage with cache_only=true to see why"
        raise refusal("no_tokenised_data", message, "data", cure)
    return load_lengths(plan.lengths_file)


def _assume_lengths(plan: Plan) -> Lengths:
    """Return lengths in place of unknown ones: every sample has as many tokens as the limit."""
    limit = sequence_limit(plan.config, plan.flags)
    return Lengths(plan.config.stage.kind, Histogram.of([limit]), None)


def _refuse_too_few_samples(plan: Plan, lengths: Lengths | None) -> None:
    """Raise UserError (too_few_samples) if the data has fewer samples than one step takes."""
    if lengths is None or lengths.samples >= plan.batch.global_:
        return
    samples = f"{lengths.samples:,} {noun_for(lengths.samples, 'sample')}"
    message = f"the data has {samples} and one step takes {plan.batch.global_:,}"
    raise refusal("too_few_samples", message, "data", "use more data, or a smaller global batch")


SHORT = tuple(vars(TuneConfig()))  # short names of the keys of the node `tune`


def read_tune_line(line: CommandLine) -> CommandLine:
    """Return the line for Hydra, with `tune`'s short options as keys of its node.

    Raises UserError: tune_alone, duplicate_override.
    """
    refuse_unsupported(line, "tune", "it searches one stage at one width")
    return expand_short_options(line, "tune", SHORT)


def line_for_candidate(line: CommandLine, candidate: Candidate) -> CommandLine:
    """Return the line with the candidate's keys in place of its own."""
    rest = line.without(*candidate.keys(), "parallel.mode", "name")
    return rest.with_overrides(*candidate.overrides())


_SHOWN = 12  # predictions in the list that is shown before the search
_EXITS = {State.failed: EXIT_FAILED, State.interrupted: EXIT_INTERRUPTED}


def run_tune(request: CommandLine, display: Display) -> tuple[TuneRecord, int]:
    """Search the fastest setting of the stage in `request` and write its overlay.

    Returns the record and the exit code: 0 there is a result (with dry_run, predictions), 1 no
    probe measured anything, 130 interrupted. Raises UserError when nothing can be searched, or no
    probe could be started.
    """
    plan = plan_probe(request)
    _refuse_bad_options(plan)
    name = plan.config.name or f"{plan.stage}-{plan.parallel.width}-{plan.identity}"
    folder = plan.runs / plan.stage / f"tune-{name}"
    restart = plan.config.restart
    earlier = read_earlier(folder, "tune", {"identity": plan.identity}, restart=restart)
    with run_lock(folder, display.say):
        archive_other_format(folder, "tune", display.say)
        record = begin_record(folder, plan, display)
        earlier_runs = [] if restart else objects(mapping(earlier).get("runs"))
        probed = [str(run.get("label")) for run in earlier_runs]
        code = _search(record, request, display, probed)
        if record.runs and all(probe.cause_id == REFUSED for probe in record.runs):
            message = f"no probe could be started: {record.runs[0].message}"
            raise refusal("no_probe_started", message, None, "fix that and run tune again")
        return record, code


def _refuse_bad_options(plan: Plan) -> None:
    """Raise UserError (bad_steps, compare_full) if the options of a search do not go together."""
    options = plan.config.tune
    if options.steps <= options.skip:
        message = f"steps={options.steps} measures nothing: the first {options.skip} do not count"
        cure = f"use {options.skip + 1} or more; 8 is the default"
        raise refusal("bad_steps", message, "tune.steps", cure)
    if options.compare_full and plan.lora is None:
        message = (
            f"compare_full=true compares an adapter with full fine-tuning, and {plan.stage} "
            "trains no adapter"
        )
        cure = "set recipe.lora.rank=16, or remove it"
        raise refusal("compare_full", message, "tune.compare_full", cure)


def _search(
    record: TuneRecord, request: CommandLine, display: Display, probed: Sequence[str]
) -> int:
    """Show the predictions, run the search, and write the overlay and the report.

    `probed`: the labels of the settings that an earlier call probed. Returns the exit code.
    """

    def prepare(probe: Probe) -> None:
        line = request
        title = f"probe {len(record.runs)} of at most {record.limits.probes}"
        if probe is record.full:
            line = full_line(request)
            title = "full fine-tuning"
        display.say(f"{title}: {probe.label}")
        plan = plan_probe(line_for_candidate(line, probe.candidate))
        probe.plan = plan.renamed(f"tune-{record.id}/{probe.label}-{plan.identity}")

    reuse = not record.plan.config.restart
    runner = Runner(record, display, prepare=prepare, reuse=reuse, raises=False)

    def take(probe: Probe) -> None:
        runner.take(probe, seconds_left(record.runs, record.limits.minutes))

    say_plan(display, record, [*record.notes, *_prediction_lines(record)])
    refuse_if_nothing_fits(record)
    if not record.limits.dry_run or len(record.predictions) == 1:
        search(record, take, partial(extra_options, record.plan), probed)
        if record.plan.config.tune.compare_full and record.stop != Stop.interrupted:
            probe_full(record, request, display, take)
    if record.best is not None:
        record.overlay = overlay_path(record.id, os.environ)
        write_file(record.overlay, overlay_text(record))
        display.say(
            f"wrote {record.overlay}: use it as +tuned={record.id} with the same stage and width"
        )
    finish_trial(display, record)
    return _EXITS.get(record.state, EXIT_DONE)


def _prediction_lines(record: TuneRecord) -> list[str]:
    """Return a table of the fastest settings that may be probed, and of the recipe's own."""
    shown = [estimate for estimate in record.estimates if estimate.is_open][:_SHOWN]
    base = record.base_estimate
    if base not in shown:
        shown.append(base)
    table = predictions_table(map(to_json, shown))
    return [*table.lines(), f"the recipe's own setting is {base.prediction.label}"]


Extra = tuple[str, Any]  # a key of the configuration and its value
RunProbe = Callable[[Prediction, int], None]  # probes a setting for a number of steps
# Reasons to stop after which probes and time may be left for other options of the best setting.
_COMPLETED = (Stop.best_beats_the_rest, Stop.all_tried)


def search(
    record: TuneRecord,
    take: Callable[[Probe], None],
    extras: Callable[[Candidate], Sequence[Extra]],
    probed: Sequence[str] = (),
) -> None:
    """Probe settings until a limit is reached or nothing better is predicted; fill the record.

    `take` runs a probe. `extras` returns the options to try on the best setting, one after another.
    `probed` are the labels of an earlier call's settings, which come first: their measurements count,
    whatever is predicted now.
    """
    if len(record.predictions) == 1:
        record.stop = Stop.one_setting
        return

    def run(prediction: Prediction, steps: int) -> None:
        probe = Probe(prediction.label, record.plan, prediction=prediction, steps=steps)
        record.runs.append(probe)
        take(probe)
        if probe.state == State.interrupted:
            record.stop = Stop.interrupted

    known = {prediction.label: prediction for prediction in record.predictions}
    for label in probed:
        if record.stop is not None:
            break
        prediction = known.get(label)
        # The recipe's own setting comes last, with the time that is left.
        if prediction is None or prediction.candidate == record.space.base:
            continue
        if exhausted_limit(prediction.seconds, record.runs, record.limits) is None:
            run(prediction, record.limits.steps)
    while record.stop is None:
        choice = next_probe(record.estimates, record.runs, record.limits)
        if isinstance(choice, Stop):
            record.stop = choice
        else:
            run(choice.prediction, record.limits.steps)
    if record.stop in _COMPLETED:
        _try_extras(record, run, extras)
    if record.stop != Stop.interrupted and record.best is not None:
        _probe_base(record, run)


def refuse_if_nothing_fits(record: TuneRecord) -> None:
    """Raise UserError (nothing_fits) with the least memory that any setting needs."""
    estimates = record.estimates
    if record.runs or any(estimate.is_open for estimate in estimates):
        return
    smallest = min(estimates, key=lambda estimate: estimate.memory_gib or 0.0)
    width = record.plan.parallel.width
    label = smallest.prediction.label
    card_gib = record.workload.card_gib or 0.0
    least_gib = smallest.memory_gib
    message = (
        f"no setting at {width} fits: {label} needs the least, about {least_gib:.0f} GiB of a "
        f"GPU's {card_gib:.0f} GiB, of which {record.limits.room:.0%} stays free"
    )
    cure = (
        "use more GPUs, a smaller model or a lower recipe.max_seq_length, or set fewer keys "
        "yourself"
    )
    raise refusal("nothing_fits", message, None, cure)


def _try_extras(
    record: TuneRecord, run: RunProbe, extras: Callable[[Candidate], Sequence[Extra]]
) -> None:
    """Try each extra option on the best setting so far.

    A setting with an extra option becomes one of the record's predictions, like all others.
    """
    if record.best is None:
        return
    for extra in extras(record.best.candidate):
        best = record.best
        if best is None or best.figures is None or record.stop == Stop.interrupted:
            return
        if exhausted_limit(best.figures.step_seconds, record.runs, record.limits):
            return
        candidate = replace(best.candidate, extra=(*best.candidate.extra, extra))
        refined = replace(best.prediction, candidate=candidate)
        record.predictions = [*record.predictions, refined]
        run(refined, record.limits.steps)


def probe_full(
    record: TuneRecord, request: CommandLine, display: Display, take: Callable[[Probe], None]
) -> None:
    """Probe full fine-tuning once, in the fastest setting that is predicted to fit."""
    try:
        full = begin_record(record.folder, plan_probe(full_line(request)), display)
        refuse_if_nothing_fits(full)
    except UserError as error:
        record.full_note = "; ".join(str(problem) for problem in error.problems)
        return
    fastest = next(estimate.prediction for estimate in full.estimates if estimate.is_open)
    if is_late(fastest.seconds, record.runs, record.limits):
        record.full_note = "no time is left for it"
    else:
        record.full = Probe(f"full-{fastest.label}", full.plan, prediction=fastest)
        take(record.full)


def _probe_base(record: TuneRecord, run: RunProbe) -> None:
    """Probe the recipe's own setting, for as many steps as there is time for.

    The gain and the loss are measured against it. It is often many times slower than the best, so
    that a whole probe would take too long.
    """
    if record.base is not None:
        return
    base = record.base_estimate
    steps = affordable_steps(base.seconds, record.runs, record.limits, record.warmup)
    if base.is_open and steps is not None:
        run(base.prediction, steps)
