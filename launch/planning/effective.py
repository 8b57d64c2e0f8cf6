"""Recipe words as the flags have them: a flag of the user's own wins over the word that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch.config.schema import RootConfig
from launch.planning.flags import Flag


def carried_by(meaning: Any) -> frozenset[str]:
    """The flags that a recipe word may become. `meaning`: its entry in the trainer's YAML, None without one."""
    if isinstance(meaning, str):
        return frozenset({meaning})
    return frozenset(name for flags in (meaning or {}).values() for name in flags)


def word_of_flags(meaning: Any, flags: Mapping[str, Any]) -> Any:
    """The value of the word that gives these flags: the inverse of `flags_of_word`. A flag that is false is one that is
    not there. Raises LookupError when no value gives them."""
    if isinstance(meaning, str):
        return flags[meaning]
    names = carried_by(meaning)
    for value, entry in (meaning or {}).items():
        if all(_same(flags.get(name), entry.get(name)) for name in names):
            return {"true": True, "false": False}.get(value, value)
    raise LookupError(", ".join(f"{name}={flags[name]}" for name in sorted(names) if name in flags))


def sequence_limit(config: RootConfig, flags: Mapping[str, Flag]) -> int:
    """Tokens of the longest sample that the trainer takes."""
    meaning = config.trainer.recipe.get("max_seq_length")
    said = flags[meaning].value if isinstance(meaning, str) and meaning in flags else None
    return said if isinstance(said, int) else config.recipe.max_seq_length


def _same(one: Any, other: Any) -> bool:
    return one == other or (one in (None, False) and other in (None, False))
