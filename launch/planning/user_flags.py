"""The flags that a user sets: which launch computes, which undo a key, and which are out of range."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from launch.config.line import format_value
from launch.config.origins import Origin, Origins, Provenance
from launch.config.ranges import check_flag_range
from launch.config.recipe_keys import mappings_of
from launch.config.schema import RootConfig
from launch.planning.flags import Flag
from launch.planning.recipe import flags_of_key
from launch.planning.rule_facts import value_at
from launch.worker.finding import Finding, Fix, Way

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
    recipe_keys = {}
    mappings = mappings_of(trainer)
    for key, entry in mappings.items():
        for name in flags_of_key(entry):
            recipe_keys[name] = key

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
        if name in recipe_keys and name not in refused:
            key = recipe_keys[name]
            entry = mappings[key]
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
    cure = Fix.of("set {0}", Way((override,), removes=f"flags.{name}"))
    message = f"--{name} is recipe.{key}; flags.{name} wins"
    return Finding.warning("flag_over_recipe", message, where, cure)


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
    allowed: Collection[str],
) -> list[Finding]:
    """Find `flags.NAME=` outside the range of the flag, or of the recipe key that it stands for.

    `problem_places` are those of the problems that are known already, `allowed` the flags of which
    `allow` takes any value.
    """
    trainer = config.trainer
    recipe_keys = {}
    for key, mapping in mappings_of(trainer).items():
        for name in _flags_with_value(mapping):
            recipe_keys[name] = key
    problems = []
    for name, value in config.flags.items():
        where = origins.of(f"flags.{name}").where or f"flags.{name}"
        if where in problem_places or name in allowed:
            continue
        recipe_key = recipe_keys.get(name)
        problem = check_flag_range(name, value, config.recipe, recipe_key, where)
        if problem is not None:
            problems.append(problem)
    return problems


def _flags_with_value(mapping: Any) -> frozenset[str]:
    """Return the flags whose value is the recipe key's own."""
    if isinstance(mapping, str):
        return frozenset({mapping})
    names = set()
    for flags in mapping.values():
        for name, value in flags.items():
            if value == "{value}":
                names.add(str(name))
    return frozenset(names)
