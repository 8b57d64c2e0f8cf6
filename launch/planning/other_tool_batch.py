"""Translates the batch of another tool's file or line: micro batch x accumulation x ranks."""

from __future__ import annotations

from typing import Any

from launch.config.compose import compose_once
from launch.config.line import CommandLine
from launch.config.other_tool_files import LINE
from launch.config.recipe_keys import KEYS, RecipeConfig
from launch.config.typed_values import as_whole
from launch.data.draft import fitting_batch
from launch.errors import UserError
from launch.planning.other_tool_defaults import default_of
from launch.planning.other_tool_values import Translation
from launch.worker.wording import count_of

_STEPS = 3  # of an epoch, at least, where a line sets no batch
_MICRO = ("micro_batch_size", "per_device_train_batch_size")
_EITHER = ("batch_size", "bs", "batch")  # of a step, or beside an accumulation of a forward pass
_ACCUMULATION = (
    *("gradient_accumulation_steps", "grad_accum", "grad_accumulation_steps", "gas"),
    *("gradient_accumulation", "grad_acc_steps", "accumulation_steps", "accumulate_grad_batches"),
)


def translate_batch(t: Translation, kind: str) -> None:
    """Multiply the micro batch, the accumulation and the ranks."""
    names = [*_MICRO, *KEYS["per_device_batch_size"].names_of("others")]
    micro = t.take(*names)
    accumulation = t.take(*_ACCUMULATION)
    if micro is None and accumulation is not None:
        micro = t.take(*_EITHER)
    t.take("num_processes", "num_machines")
    if t.tool == LINE:
        _translate_line(t, kind, micro, accumulation)
        return
    micro = micro or default_of(t, "per_device_batch_size", "per_device_train_batch_size")
    accumulation = accumulation or default_of(t, "accumulation")
    _set_product(t, kind, micro, accumulation)


def _set_product(t: Translation, kind: str, micro: Any, accumulation: Any) -> None:
    sizes = [as_whole(micro), as_whole(accumulation)]
    if None in sizes:
        t.missing.append(f"a number for the batch: it is {micro} x {accumulation}")
        return
    per_device, steps = (size or 1 for size in sizes)
    total = per_device * steps * t.ranks
    gpus = count_of(t.ranks, "GPU")
    t.batch = f"global batch {per_device} x {steps} x {gpus} = {total}"
    t.set("recipe.per_device_batch_size", per_device)
    _set_total(t, kind, total)


def _set_total(t: Translation, kind: str, total: int) -> None:
    """Set the global batch. In RLVR it counts answers: prompts x answers per prompt."""
    if kind != "rlvr":
        t.set("recipe.global_batch_size", total)
        return
    samples = as_whole(t.settings.get("num_generations")) or 8  # TRL's default
    t.settings.setdefault("num_generations", samples)
    t.set("recipe.prompts_per_step", max(1, total // samples))


def _translate_line(t: Translation, kind: str, micro: Any, accumulation: Any) -> None:
    """Set the batch that a line gives. Without one, choose a batch with which an epoch of a small
    data set has several steps.
    """
    total = as_whole(t.take("global_batch_size", *KEYS["global_batch_size"].names_of("others")))
    recipe = recipe_of_stage(t)
    per_device = as_whole(micro) or recipe.per_device_batch_size
    if total is None and accumulation is not None:
        _set_product(t, kind, per_device, accumulation)
        return
    if kind == "rlvr":
        if micro is not None:
            t.set("recipe.per_device_batch_size", per_device)
        if total is not None:
            _set_total(t, kind, total)
        elif t.rows is not None and t.rows.count < 2 * (recipe.prompts_per_step or 1):
            t.set("recipe.prompts_per_step", fitting_batch(t.rows.count, 32, _STEPS))
        return
    if total is None and t.rows is not None:
        largest = recipe.global_batch_size
        fitting = max(fitting_batch(t.rows.count, largest, _STEPS), t.ranks)
        if fitting < largest:
            total = fitting
            t.batch = f"a batch of {total} suits {t.rows.count} rows, which the stage's {largest} does not"
    if total is None:
        if micro is not None:
            t.set("recipe.per_device_batch_size", per_device)
        return
    t.set("recipe.global_batch_size", total)
    share = max(1, total // t.ranks)
    if micro is not None or per_device > share:
        t.set("recipe.per_device_batch_size", min(per_device, share))


def recipe_of_stage(t: Translation) -> RecipeConfig:
    """Return the recipe that the chosen stage and model have without the line."""
    stage = t.given.get("stage", t.overrides["stage"])
    groups = [f"{group}={t.given[group]}" for group in ("model", "trainer") if group in t.given]
    line = CommandLine("plan", False, (f"stage={stage}", *groups))
    try:
        return compose_once(line).config.recipe
    except UserError:
        return compose_once(line.without("trainer", "model")).config.recipe
