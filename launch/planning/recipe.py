"""Maps the keys of a recipe to the trainer's own flags, and flags back to recipe values."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from launch import resources
from launch.config.line import format_value
from launch.config.origins import Origins
from launch.config.recipe_keys import LoraConfig, RecipeConfig
from launch.config.schema import TrainerConfig
from launch.errors import did_you_mean, refusal, set_any

_ANY_VALUE = "*"
_UNSET = "null"


def mapping_of(trainer: TrainerConfig, key: str) -> Any:
    """Return what a trainer's file maps a recipe key to; None if the file does not name the key.

    If the file only gives the reason why the trainer lacks the key (`unsupported_because`), the
    schema's default is mapped to no flags, and no other value is mapped.
    """
    if key in trainer.recipe or key not in trainer.unsupported_because:
        return trainer.recipe.get(key)
    section, _, name = key.rpartition(".")
    schema = LoraConfig if section == "lora" else RecipeConfig
    default = getattr(schema, name)
    return {_as_text(default): {}}


def map_recipe_key(
    key: str, value: Any, mapping: Any, reasons: Mapping[str, str], trainer: str
) -> dict[str, Any]:
    """Return the flags that a recipe key with this value stands for.

    `mapping` is the entry of the trainer's YAML: a flag's name, or a map from value to flags where
    "*" is any other value and "{value}" the value itself. An unset key (None) gives no flag unless
    "null" is mapped. `reasons` has the trainer's reasons for values that it lacks.

    Raises UserError: unsupported_recipe.
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
    message = f"{trainer} does not support recipe.{key}={text}"
    supported = [choice for choice in mapping if choice != _UNSET]
    where = f"recipe.{key}"
    near = did_you_mean(text, supported, cutoff=0.8)
    if near is not None:
        raise refusal("unsupported_recipe", message, where, near)
    if key in reasons:
        message += f": {reasons[key]}"
    overrides = [f"recipe.{key}={choice}" for choice in supported[:3] or [_UNSET]]
    raise refusal("unsupported_recipe", message, where, set_any(*overrides))


def find_unsupported_values(
    trainer: TrainerConfig, recipe: Mapping[str, Any], origins: Origins
) -> dict[str, Any]:
    """Return the values of a shipped stage's recipe that the trainer lacks and that its file gives
    a replacement for (`fallback_values`), by key.

    `recipe` is plain data. A value that the user wrote is not among them: it is refused.
    """
    unsupported = {}
    for key in trainer.fallback_values:
        value = recipe[key]
        is_supported = value is None or _as_text(value) in trainer.recipe[key]
        if not is_supported and origins.is_shipped(f"recipe.{key}"):
            unsupported[key] = value
    return unsupported


def replace_recipe_values(recipe: RecipeConfig, values: Mapping[str, Any]) -> RecipeConfig:
    """Return a copy of the recipe with other values of keys that have an enumeration's type.

    A trainer's file has such a value as a text.
    """
    replaced = copy(recipe)
    for key, value in values.items():
        enumeration = type(getattr(recipe, key))
        setattr(replaced, key, None if value is None else enumeration(value))
    return replaced


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
    """Return the flags that a recipe key can set.

    `entry` is what the trainer's YAML maps the key to; None without one.
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
