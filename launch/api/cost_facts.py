"""The facts of a plan about what it costs: steps, hours and disk."""

from __future__ import annotations

import shlex

from launch.check.machine.disk import (
    checkpoint_count,
    checkpoint_interval,
    download_bytes,
    keeps_unknown_count,
    written_bytes,
)
from launch.config.kinds import Kind
from launch.config.line import override_key
from launch.config.recipe_keys import Packing
from launch.config.schema import Family
from launch.planning.data import count_epoch_rows, count_steps, find_step_limit
from launch.planning.estimate.forecast import MemoryForecast
from launch.planning.estimate.speed import TimeForecast, forecast_time, planned_steps
from launch.planning.plan import Plan
from launch.redact import process_redactor
from launch.table import format_bytes, format_duration
from launch.upstream.trainers import OLMO_CORE_DPO
from launch.worker.wording import count_of, noun_for

_TOKENIZES = (
    "this run tokenises the data on the CPU, counts its lengths and ends: it trains nothing"
)


def cache_command(plan: Plan) -> str:
    """Return the command that counts the lengths of a plan's data; empty for a trainer that has
    none, and for a stage of a pipeline whose tokenizer is still to be made.
    """
    if plan.config.trainer.family != Family.open_instruct or plan.lengths_file is None:
        return ""
    if plan.config.model.trained_by:
        return ""
    overrides = [text for text in plan.origins.overrides if override_key(text) != "cache_only"]
    line = shlex.join(process_redactor().redact_argv(overrides))
    return f"`launch run {line} cache_only=true`"


def describe_steps(plan: Plan, samples: int | None) -> str:
    """Describe how long a run trains, how that follows from its rows, and the strength of DPO.

    No key for speed may change these settings. `samples` is the number of tokenised samples, if
    they are counted.
    """
    recipe = plan.config.recipe
    steps = count_steps(plan.config, plan.batch, plan.inputs.mixture, plan.data, samples)
    text = count_of(recipe.epochs, "epoch")
    limit, _ = find_step_limit(plan)
    if limit is not None:
        text = f"{limit:,} {noun_for(limit, 'step')} in place of epochs"
        if steps:
            text += f", which go {limit * recipe.epochs / steps:.3g} times through the data"
    elif steps is not None:
        text += f", {steps:,} {noun_for(steps, 'step')}{_explain_steps(plan, steps)}"
    elif recipe.packing != Packing.bins and not plan.config.trainer.always_packs:
        text += ", the number of steps is unknown until all rows are counted"
    if recipe.beta is not None:
        separator = ";" if ": " in text else ","  # behind the rows, or behind a number
        text += f"{separator} beta {recipe.beta:g}"
    if plan.trainer == OLMO_CORE_DPO:  # its own fact describes its packing
        return text
    if recipe.packing == Packing.flatten:
        text += "; packing leaves the number of steps as it is"
    elif recipe.packing == Packing.bins:
        text += "; packing makes fewer, larger steps: a row counts as one sample"
    return text


def _explain_steps(plan: Plan, steps: int) -> str:
    """Describe the rows behind the steps; empty where they were not read."""
    trained = count_epoch_rows(plan.inputs.mixture, plan.data)
    if trained is None:
        return ""
    structures = [structure for structure in plan.data if structure is not None]
    rows = sum(structure.read for structure in structures)
    held_out = sum(structure.validation or 0 for structure in structures)
    text = f": {trained:,} of {rows:,} rows are trained on"
    if held_out:
        text += f", {held_out:,} are held out"
    if plan.config.recipe.epochs > 1:
        text += f", {count_of(steps // plan.config.recipe.epochs, 'step')} an epoch"
    return text


def describe_time(plan: Plan, memory: MemoryForecast | None) -> list[str]:
    """Describe in lines how long the training takes, and what would make that known; empty for a
    training on a CPU.
    """
    if plan.config.cache_only:
        return [_TOKENIZES]
    if memory is None:
        return []
    forecast = forecast_time(plan, memory)
    if forecast.step is None:
        return [f"unknown: {forecast.why}"]
    lines = [_describe_duration(plan, forecast)]
    command = cache_command(plan)
    if forecast.at_limit and command and plan.config.stage.kind != Kind.rlvr:
        lines.append(f"to predict it from the data's own lengths, run {command} first")
    if forecast.doubts and forecast.factors is not None:
        least, most = forecast.factors
        doubts = "; ".join(forecast.doubts)
        lines.append(f"{doubts}: it may well take {least:.1f} to {most:.1f} times as long")
    return lines


def _describe_duration(plan: Plan, forecast: TimeForecast) -> str:
    """Describe the time of all steps, or of one where their number is unknown."""
    assert forecast.step is not None
    limit = ""
    if forecast.at_limit:
        limit = f" if every sample is {plan.config.recipe.max_seq_length} tokens long"
        limit += " (recipe.max_seq_length)"
    if forecast.steps is None or forecast.seconds is None:
        step = f"about {forecast.step:.2g} s for a step{limit}"
        return f"{step}; the number of steps is unknown"
    steps = count_of(forecast.steps, "step")
    return f"about {format_duration(forecast.seconds)} for {steps}{limit}, without the start"


def describe_disk(plan: Plan) -> list[str]:
    """Describe in lines what the run writes: its model, the checkpoints that are there at once, and
    the model that is downloaded.
    """
    if plan.config.cache_only:
        return ["the tokenised data alone: no model and no checkpoint is written"]
    lines = [_describe_written(plan)]
    download = download_bytes(plan, plan.machine.environ)
    if download:
        name = plan.inputs.model.reference
        size = format_bytes(download)
        lines.append(f"about {size} more in the hub's cache (HF_HOME): {name} is downloaded first")
    return lines


def _describe_written(plan: Plan) -> str:
    """Describe what is written to the run folder."""
    written = written_bytes(plan, plan.machine.environ)
    if written is None:
        return "unknown: the size of the model is not known here"
    model, checkpoint = written
    count = checkpoint_count(plan)
    text = f"{format_bytes(model)} for the {'adapter' if plan.lora else 'model'} at the end"
    if count:
        checkpoints = f"{count_of(count, 'checkpoint')} of {format_bytes(checkpoint)}"
        total = format_bytes(model + count * checkpoint)
        if keeps_unknown_count(plan):
            return (
                f"{text}, and every checkpoint of {format_bytes(checkpoint)} is kept: at least "
                f"{total}; their number is unknown until the rows are counted"
            )
        return f"{text}, and while it trains {checkpoints}: {total}"
    interval = checkpoint_interval(plan)
    steps = planned_steps(plan)
    if interval and steps is not None:
        return (
            f"{text}; no checkpoint is written, because the run ends after "
            f"{count_of(steps, 'step')}, before step {interval} (recipe.checkpoint_steps)"
        )
    return f"{text}; no checkpoint is written (recipe.checkpoint_steps)"
