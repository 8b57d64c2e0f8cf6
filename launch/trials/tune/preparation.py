"""Prepares a search: the data's lengths, the space of settings and a prediction for each of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from launch.check.machine.gpus import enough_gpus
from launch.check.machine.rules import inspect, stopping_problems
from launch.config.line import CommandLine, override_key
from launch.config.schema import Device, Family
from launch.errors import EXIT_DONE, Problem, UserError
from launch.execution.caches import tokenized_folder
from launch.execution.display import Display
from launch.execution.engine import build_cache
from launch.execution.prepare import prepare_inputs
from launch.host.interpreter import installed_versions, package_folders
from launch.host.nvidia import Gpus
from launch.planning.estimate.cards import card_memory, rates_for_card
from launch.planning.estimate.forecast import UnknownMemoryError, planned_setting, planned_shape
from launch.planning.estimate.setting import Attention, MemorySetting
from launch.planning.flags import sequence_limit
from launch.planning.lengths import Histogram, Lengths, load_lengths
from launch.planning.machine import PACKAGES
from launch.planning.plan import Plan
from launch.trials.trial import gpus_for
from launch.trials.tune.predict import Prediction, Workload, predict
from launch.trials.tune.record import TuneRecord
from launch.trials.tune.search import TuneLimits
from launch.trials.tune.space import build_space

_STARTUP = {Device.cuda: 60.0, Device.cpu: 20.0}  # seconds before the first step of a run, until one was measured


def begin_record(folder: Path, plan: Plan, display: Display) -> TuneRecord:
    """The record of a search before any probe. Raises UserError: unknown_shape, too_few_gpus, no_tokenised_data,
    too_few_samples."""
    prepare_inputs(plan, display.say)
    options = plan.config.tune
    versions = installed_versions(package_folders(plan.command[0]), PACKAGES)
    card = _card_name(plan, gpus_for(plan))
    has_flash = "flash-attn" in versions
    base, card_gib = _base_setting(plan, has_flash)
    lengths = _find_lengths(plan, display)
    _refuse_too_few_samples(plan, lengths)
    limit = sequence_limit(plan.config, plan.flags)
    workload = Workload(
        base=base,
        global_batch=plan.batch.global_,
        lengths=lengths or Lengths(plan.config.stage.kind, Histogram.of([limit]), None),
        measured_lengths=lengths is not None,
        card_rates=rates_for_card(card),
        fuses=plan.config.trainer.fuses_loss,
        flash=has_flash and plan.config.trainer.family == Family.open_instruct,
        card_gib=card_gib,
    )
    space = build_space(plan, versions)
    startup = _STARTUP[plan.parallel.width.device]
    return TuneRecord(
        folder=folder,
        plan=plan,
        steps=options.steps,
        warmup=options.skip,
        space=space,
        workload=workload,
        predictions=[predict(candidate, workload) for candidate in space.candidates],
        limits=TuneLimits(options.probes, options.minutes * 60, options.steps, startup, options.room),
        card=card,
        versions=versions,
    )


def full_line(line: CommandLine) -> CommandLine:
    """The line that trains all weights in place of an adapter."""
    keys = [key for override in line.overrides if (key := override_key(override)).startswith("recipe.lora.")]
    return line.without(*keys).with_overrides("recipe.lora.rank=null")


def predict_full(record: TuneRecord, plan: Plan) -> Prediction | None:
    """The setting of full fine-tuning that is predicted to be the fastest of those that fit; None where none does.

    `plan`: of the stage without its adapter. Raises UserError: unknown_shape.
    """
    base, card_gib = _base_setting(plan, "flash-attn" in record.versions)
    workload = replace(record.workload, base=base, card_gib=card_gib)
    predictions = [predict(candidate, workload) for candidate in build_space(plan, record.versions).candidates]
    most = (card_gib or 0.0) * (1 - record.limits.room)
    fitting = [prediction for prediction in predictions if card_gib is None or (prediction.memory_gib or 0.0) <= most]
    return min(fitting, key=lambda prediction: prediction.seconds, default=None)


def _card_name(plan: Plan, gpus: Gpus) -> str | None:
    """The name of the card that the plan runs on; None on CPU."""
    if plan.parallel.width.device != Device.cuda:
        return None
    return gpus.seen[0].name if gpus.seen else plan.config.cluster.gpu_type or "an unknown GPU"


def _base_setting(plan: Plan, has_flash: bool) -> tuple[MemorySetting, float | None]:
    """The recipe's own setting, and the card's memory in GiB, None where memory cannot be predicted. Raises UserError:
    unknown_shape."""
    try:
        setting = planned_setting(plan, os.environ, flash=has_flash)
    except UnknownMemoryError:
        shape = planned_shape(plan, os.environ)
        if shape is None:
            message = f"nothing can be predicted: the shape of {plan.inputs.model.reference} is unknown"
            cure = "download the model to this machine, or set model.shape.layers= and the other model.shape keys"
            raise UserError(Problem("unknown_shape", message, "model", cure)) from None
        attention = Attention.flash if has_flash else Attention.sdpa
        size, ranks, kind = plan.batch.per_device, plan.batch.width, plan.config.stage.kind
        return MemorySetting(shape, kind, plan.parallel.mode, ranks, size, 1, attention=attention), None
    card = card_memory(plan.config.cluster, os.environ)
    return setting, card.gib if card else None


def _find_lengths(plan: Plan, display: Display) -> Lengths | None:
    """The data's lengths; the data is tokenised first if necessary. None where tokenising does not yield them."""
    file = plan.lengths_file
    if file is None:
        return None
    lengths = load_lengths(file)
    if lengths is not None:
        return lengths
    can_tokenise = tokenized_folder(plan) is not None and plan.config.trainer.family == Family.open_instruct
    if not can_tokenise or plan.config.tune.dry_run:
        return None
    problems = stopping_problems(inspect(plan, [enough_gpus]))
    if problems:  # before anything is tokenised for probes that cannot start
        raise UserError(problems)
    display.say("tokenising first: the predictions need the data's lengths")
    if build_cache(plan, display) != EXIT_DONE:
        message, cure = "the data could not be tokenised", "run the stage with cache_only=true to see why"
        raise UserError(Problem("no_tokenised_data", message, "data", cure))
    return load_lengths(file)


def _refuse_too_few_samples(plan: Plan, lengths: Lengths | None) -> None:
    if lengths is None or lengths.samples >= plan.batch.global_:
        return
    samples = f"{lengths.samples:,} sample{'' if lengths.samples == 1 else 's'}"
    message = f"the data has {samples} and one step takes {plan.batch.global_:,}"
    raise UserError(Problem("too_few_samples", message, "data", "use more data, or a smaller global batch"))
