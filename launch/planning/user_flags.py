"""The flags that a user sets: which launch computes, which undo a key, and which are out of range."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from launch.config.line import format_value
from launch.config.origins import Origin, Origins, Provenance
from launch.config.ranges import Range, find_numbers, is_number, out_of_range
from launch.config.recipe_keys import keys_by_flag, recipe_mapping
from launch.config.schema import RootConfig
from launch.planning.flags import Flag
from launch.planning.rule_facts import value_at
from launch.worker.finding import Action, Finding, Fix

# The configuration keys that a user sets instead of a flag that `launch` computes.
INSTEAD = {
    "model": "model.path",
    "revision": "model.revision",
    "per_device": "recipe.per_device_batch_size",
    "accumulation": "recipe.global_batch_size (accumulation follows from it and the width)",
    "output": "runs and name (the model lands in the run's folder)",
    **dict.fromkeys(("mixer", "splits", "dataset", "split"), "data.mix"),
    "tokenized_cache": "cache",
    "bf16": "recipe.precision",
}


def read_user_flags(
    config: RootConfig,
    plain: Mapping[str, Any],
    origins: Origins,
    flags: Mapping[str, Flag],
    refused: Collection[str],
) -> tuple[dict[str, Flag], list[Finding], list[Finding]]:
    """Return the flags that the user sets with `flags.NAME=`, and their problems and warnings.

    `flags` are those of the other sources, `refused` the flags that a rule refuses. A flag that
    launch computes is a problem.
    """
    trainer = config.trainer
    computed = {flag: key for key, flag in trainer.launch.items()}
    keys = keys_by_flag(trainer)
    ranges = {key: allowed for key, _, allowed in find_numbers(config.recipe)}

    user_flags: dict[str, Flag] = {}
    problems: list[Finding] = []
    warnings: list[Finding] = []
    for name, value in config.flags.items():
        provenance = origins.of(f"flags.{name}")
        where = provenance.where or f"flags.{name}"
        if name in computed:
            cure = f"set {INSTEAD[computed[name]]}"
            problems.append(Finding.error("owned_flag", f"launch computes --{name}", where, cure))
            continue
        if name in keys and name not in refused:
            key = keys[name].key
            entry = recipe_mapping(trainer, key)
            requested = origins.of(f"recipe.{key}")
            if _undoes_request(name, value, flags.get(name), entry, requested):
                text = format_value(value_at(plain, f"recipe.{key}"))
                conflict = _undone_request(name, value, key, text, where)
                conflict = conflict.apply_allow(config.allow)
                if conflict.stops:
                    problems.append(conflict)
                else:
                    warnings.append(conflict.as_warning())
            elif isinstance(entry, str) or key.startswith("lora."):
                # the flag is the key's own, or one of an adapter
                allowed = ranges.get(key) if keys[name].has_value else None
                if not _is_beyond(value, allowed):
                    warnings.append(_overridden_key(name, value, key, where))
        user_flags[name] = Flag(value, provenance)
    return user_flags, problems, warnings


def _undone_request(name: str, value: Any, key: str, requested: str, where: str) -> Finding:
    """Return the problem of a flag that contradicts a recipe key, which is set to `requested`."""
    message = (
        f"--{name} {format_value(value)} undoes recipe.{key}={requested}, which is set as well"
    )
    return Finding.error("flag_over_recipe", message, where, "remove one of the two")


def _overridden_key(name: str, value: Any, key: str, where: str) -> Finding:
    """Return the warning of a flag that is set in place of its recipe key."""
    override = "recipe.lora.rank=16" if value is True else f"recipe.{key}={value}"
    cure = Fix.of("set {0}", Action((override,), removes=f"flags.{name}"))
    message = f"--{name} is recipe.{key}; flags.{name} wins"
    return Finding.warning("flag_over_recipe", message, where, cure)


def _is_beyond(value: Any, allowed: Range | None) -> bool:
    """Return whether a flag has a value that its recipe key cannot have: a warm-up in steps where the
    key is a share of them.
    """
    return is_number(value) and allowed is not None and not allowed.contains(value)


def _undoes_request(
    name: str, value: Any, from_recipe: Flag | None, entry: Any, requested: Provenance
) -> bool:
    """Return whether a flag contradicts a recipe key that the user has set, on the line or in a
    file of their own.

    `entry` is what the key is for the trainer, `requested` where the key is set. A number
    that a mapping only sets beside the key's value (save_total_limit) is a default, and contradicts
    nothing.
    """
    if requested.where is None:
        return False
    if requested.origin != Origin.override and requested.where.startswith("configs/"):
        return False
    recipe_value = from_recipe.value if from_recipe else False
    if recipe_value == value:
        return False
    if isinstance(entry, str):
        return True
    mapped = [flags[name] for flags in entry.values() if name in flags]
    is_default = len(mapped) == 1 and isinstance(mapped[0], int) and not isinstance(mapped[0], bool)
    return not is_default


def find_out_of_range(
    config: RootConfig,
    origins: Origins,
    problem_places: Collection[str | None],
    judged: Collection[str],
) -> list[Finding]:
    """Find `flags.NAME=` outside the range of the recipe key that the flag stands for.

    `problem_places` are those of the problems that are known already, `judged` the flags that have
    rows of their own in the table of rules.
    """
    ranges = {key: allowed for key, _, allowed in find_numbers(config.recipe)}
    keys = keys_by_flag(config.trainer)
    problems = []
    for name, value in config.flags.items():
        where = origins.of(f"flags.{name}").where or f"flags.{name}"
        if where in problem_places or name in judged or name not in keys or not is_number(value):
            continue
        allowed = ranges.get(keys[name].key) if keys[name].has_value else None
        if allowed is not None and not allowed.contains(value):
            problems.append(out_of_range(f"--{name}", value, allowed, where))
    return problems
