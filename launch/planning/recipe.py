"""Maps the keys of a recipe to the trainer's own flags, and flags back to recipe values."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from launch import resources
from launch.config.origins import Origins
from launch.config.recipe_key import choice_name
from launch.config.recipe_keys import KEYS, MAPPED_KEYS, RecipeConfig, recipe_mapping
from launch.config.schema import TrainerConfig
from launch.errors import did_you_mean, refusal, set_any
from launch.upstream.trl_losses import trl_losses
from launch.worker.finding import Action, Fix

_ANY_VALUE = "*"
_UNSET = "null"


def map_recipe_key(
    key: str, value: Any, mapping: Any, reason: str | None, trainer: str
) -> dict[str, Any]:
    """Return the flags that a recipe key with this value stands for.

    `mapping` is the trainer's entry in the table of keys: a flag's name, or a map from value to flags
    where "*" is any other value and "{value}" the value itself. An unset key (None) gives no flag
    unless "null" is mapped. `reason` is why the trainer lacks other values.

    Raises UserError: unsupported_recipe.
    """
    if isinstance(mapping, str):
        return {} if value is None else {mapping: value}
    text = choice_name(value)
    if text in mapping:
        return _fill(mapping[text], value)
    if value is None:
        return {}
    if _ANY_VALUE in mapping:
        return _fill(mapping[_ANY_VALUE], value)
    message = f"{trainer} does not support recipe.{key}={text}"
    supported = [choice for choice in mapping if choice != _UNSET]
    where = f"recipe.{key}"
    by_flag = [name for name in supported if _is_value_of(text, mapping[name])]
    if by_flag:  # TRL's `sigmoid` is `dpo` here
        raise refusal("unsupported_recipe", message, where, set_any(f"recipe.{key}={by_flag[0]}"))
    losses = trl_losses(trainer) if key == "loss" else ()
    if text in losses:
        value = f"[{text}]" if trainer == "trl_dpo" else text
        action = Action((f"flags.loss_type={value}",), where)
        cure = Fix.of("launch has no name for this loss of TRL: set {0}", action)
        raise refusal("unsupported_recipe", message, where, cure)
    near = did_you_mean(text, supported, cutoff=0.8)
    if near is not None:
        raise refusal("unsupported_recipe", message, where, near)
    if losses:
        reason = f"the installed TRL has no loss of that name, but {', '.join(losses)}"
    if reason is not None:
        message += f": {reason}"
    overrides = [f"recipe.{key}={choice}" for choice in supported[:3] or [_UNSET]]
    raise refusal("unsupported_recipe", message, where, set_any(*overrides))


def _is_value_of(text: str, flags: Mapping[str, Any]) -> bool:
    """Return whether a text is the value that a trainer's flags have: alone, or in a list."""
    return any(value in (text, [text]) for value in flags.values())


def find_fallbacks(
    trainer: TrainerConfig, recipe: Mapping[str, Any], origins: Origins
) -> dict[str, Any]:
    """Return what replaces the values of a shipped stage's recipe that the trainer lacks, by key:
    the `fallback` of the table of keys.

    `recipe` is plain data. A value that the user wrote is not replaced: it is refused.
    """
    fallbacks = {}
    for key in MAPPED_KEYS:
        try:
            fallback = KEYS[key].fallback_value(trainer)
        except LookupError:
            continue
        value = recipe[key]
        is_supported = value is None or choice_name(value) in (recipe_mapping(trainer, key) or {})
        if not is_supported and origins.is_shipped(f"recipe.{key}"):
            fallbacks[key] = fallback
    return fallbacks


def replace_recipe_values(recipe: RecipeConfig, values: Mapping[str, Any]) -> RecipeConfig:
    """Return a copy of the recipe with other values of keys that have an enumeration's type.

    The table of keys has such a value as a text.
    """
    replaced = copy(recipe)
    for key, value in values.items():
        enumeration = type(getattr(recipe, key))
        setattr(replaced, key, None if value is None else enumeration(value))
    return replaced


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
    """Return the flags that a recipe key can set.

    `entry` is what the key is for the trainer; None without an entry.
    """
    if isinstance(entry, str):
        return frozenset({entry})
    names: set[str] = set()
    for flags in (entry or {}).values():
        names.update(str(name) for name in flags)
    return frozenset(names)


def value_of_flags(entry: Any, flags: Mapping[str, Any]) -> Any:
    """Return the recipe value that results in these flags. A false flag counts as an absent one.

    Raises LookupError, with the flags, if no value of the key results in them.
    """
    if isinstance(entry, str):
        return flags[entry]
    names = flags_of_key(entry)
    for value, mapped in (entry or {}).items():
        if all(_are_equal(flags.get(name), mapped.get(name)) for name in names):
            return {"true": True, "false": False}.get(value, value)
    given = [f"{name}={flags[name]}" for name in sorted(names) if name in flags]
    raise LookupError(", ".join(given))


def _are_equal(left: Any, right: Any) -> bool:
    return left == right or (left in (None, False) and right in (None, False))
