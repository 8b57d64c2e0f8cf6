"""Maps the recipe to the trainer's own flags and back: a recipe key becomes no flag, one or
several.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any

from launch import resources
from launch.config.compose import Composed
from launch.config.line import format_value
from launch.config.schema import LoraConfig, RecipeConfig, TrainerConfig
from launch.errors import did_you_mean, refusal, set_any

_ANY_VALUE = "*"
_UNSET = "null"


def mapping_of(trainer: TrainerConfig, key: str) -> Any:
    """Return what a trainer's file maps a recipe key to; None if the file does not name the key.

    A key of which it only has the reason why the trainer lacks it (`why`) has the schema's default
    and no other value.
    """
    if key in trainer.recipe or key not in trainer.why:
        return trainer.recipe.get(key)
    owner, _, name = key.rpartition(".")
    return {_as_text(getattr(LoraConfig if owner else RecipeConfig, name)): {}}


def map_recipe_key(
    key: str, value: Any, mapping: Any, why: Mapping[str, str], trainer: str
) -> dict[str, Any]:
    """Return the flags that a recipe key with this value stands for.

    `mapping` is the entry of the trainer's YAML: a flag's name, or a map from value to flags where
    "*" is any other value and "{value}" the value itself. An unset key (None) gives no flag unless
    "null" is mapped; `why` has the trainer's reasons for values that it lacks. Raises UserError:
    unsupported_recipe.
    """
    if isinstance(mapping, str):
        return {} if value is None else {mapping: value}
    text = _as_text(value)
    if text in mapping:
        return _fill(mapping[text], value)
    if value is None:
        return {}
    if _ANY_VALUE in mapping:
        return _fill(mapping[_ANY_VALUE], value)
    supported = [choice for choice in mapping if choice != _UNSET]
    near = did_you_mean(text, supported, cutoff=0.8)
    reason = f": {why[key]}" if key in why and near is None else ""
    cure = near or set_any(*(f"recipe.{key}={value}" for value in supported[:3] or ["null"]))
    message = f"{trainer} does not support recipe.{key}={text}{reason}"
    raise refusal("unsupported_recipe", message, f"recipe.{key}", cure)


def use_nearest(composed: Composed) -> tuple[Composed, dict[str, Any]]:
    """Replace a shipped stage's own values that the trainer lacks by those that its file gives
    under `nearest`.

    Returns the configuration, and the stage's values by key. A value that the user wrote stays, and
    is refused.
    """
    trainer, recipe = composed.config.trainer, composed.plain["recipe"]
    missing = {
        key: recipe[key]
        for key in trainer.nearest
        if _as_text(recipe[key]) not in trainer.recipe[key]
        and recipe[key] is not None
        and composed.origins.is_shipped(f"recipe.{key}")
    }
    if not missing:
        return composed, {}
    nearest = {key: trainer.nearest[key] for key in missing}
    typed = copy(composed.config.recipe)
    for key, value in nearest.items():
        # of an enumeration, whose value a trainer's file has as a text
        kind = type(getattr(typed, key))
        setattr(typed, key, None if value is None else kind(value))
    plain = {**composed.plain, "recipe": {**recipe, **nearest}}
    return replace(composed, config=replace(composed.config, recipe=typed), plain=plain), missing


def _as_text(value: Any) -> str:
    return _UNSET if value is None else format_value(value)


def _fill(flags: Mapping[str, Any], value: Any) -> dict[str, Any]:
    filled = {}
    for name, template in flags.items():
        if template == "{value}":
            filled[str(name)] = value
        elif isinstance(template, str):
            filled[str(name)] = template.replace("{project}", str(resources.ROOT))
        else:
            filled[str(name)] = template
    return filled


def flags_of_key(entry: Any) -> frozenset[str]:
    """Return the flags that a recipe key can set. `entry`: the key's entry in the trainer's YAML,
    None without one.
    """
    if isinstance(entry, str):
        return frozenset({entry})
    return frozenset(str(name) for flags in (entry or {}).values() for name in flags)


def value_of_flags(entry: Any, flags: Mapping[str, Any]) -> Any:
    """Return the recipe value that results in these flags. A false flag counts as an absent one.
    Raises LookupError.
    """
    if isinstance(entry, str):
        return flags[entry]
    names = flags_of_key(entry)
    for value, resulting in (entry or {}).items():
        if all(_are_equal(flags.get(name), resulting.get(name)) for name in names):
            return {"true": True, "false": False}.get(value, value)
    raise LookupError(", ".join(f"{name}={flags[name]}" for name in sorted(names) if name in flags))


def _are_equal(left: Any, right: Any) -> bool:
    return left == right or (left in (None, False) and right in (None, False))
