"""The checks of numbers: of the configuration against the schema's ranges, of flags against these and their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch.config.numbers import BELOW_ONE, COUNT, COUNT_OR_ZERO, MOST, NOT_NEGATIVE, POSITIVE, Range, find_numbers
from launch.config.origins import Origins
from launch.config.schema import MixConfig, RootConfig
from launch.errors import Problem

HIGH_LEARNING_RATE = 0.01  # above it nearly every model diverges
RANGES: Mapping[str, Range] = {
    key: allowed
    for node, above in ((RootConfig(), ""), (MixConfig(), "data.mix."))
    for key, _, allowed in find_numbers(node, above)
}

# Flags whose numbers are not those of their recipe key, and flags without one that a library refuses as the run starts.
FLAG_RANGES: Mapping[str, Range] = {
    "warmup_steps": NOT_NEGATIVE,  # a fraction below 1, steps from 1 on (transformers training_args.py)
    "max_steps": Range(1, MOST, also=(-1,)),  # -1: the epochs end the run (transformers training_args.py)
    "num_train_epochs": POSITIVE,  # a part of one, too (transformers training_args.py)
    **dict.fromkeys(("save_steps", "eval_steps"), POSITIVE),  # below 1 a fraction of all steps (training_args.py)
    "clip_grad_norm": Range(0, also=(-1,)),  # finetune.py:847
    **dict.fromkeys(("adam_beta1", "adam_beta2"), BELOW_ONE),  # torch/optim/adamw.py
    "adam_epsilon": NOT_NEGATIVE,
    "dataloader_num_workers": COUNT_OR_ZERO,  # torch/utils/data/dataloader.py
    "dataset_num_proc": COUNT,  # datasets/arrow_dataset.py, map
    **dict.fromkeys(("timeout", "ddp_timeout"), POSITIVE),  # of a collective, in seconds
}


def range_problems(config: RootConfig, origins: Origins) -> list[Problem]:
    """Find every number outside its range, with the override or the line that sets it."""
    return [
        out_of_range(key, value, allowed, origins.of(key.partition("[")[0]).where)
        for key, value, allowed in find_numbers(config)
        if value is not None and not allowed.contains(value)
    ]


def flag_problem(flag: str, recipe_key: str | None, value: Any, where: str) -> Problem | None:
    """Return the problem of a trainer's flag, which may stand for a recipe key; None where its value may work."""
    allowed = FLAG_RANGES.get(flag) or RANGES.get(f"recipe.{recipe_key}")
    if allowed is None or isinstance(value, bool) or not isinstance(value, int | float) or allowed.contains(value):
        return None
    return out_of_range(f"--{flag}", value, allowed, where)


def out_of_range(name: str, value: float, allowed: Range, where: str | None) -> Problem:
    """Return the problem of one number."""
    return Problem("out_of_range", f"{name} must be {allowed.describe(value)}, got {_shorten(value)}", where)


def _shorten(value: float) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}... ({len(text)} digits)"
