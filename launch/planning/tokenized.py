"""Where the lengths of a plan's tokenised data are: a file for each set of flags that decides what is tokenised."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.config.schema import TrainerConfig
from launch.planning.flags import Flag
from launch.planning.identity import identity
from launch.worker.patches import PATCHES

PATCH = "lengths"
# what `launch` computes and what the recipe says, by their words
_COMPUTED = ("model", "revision", "mixer", "splits", "tokenized_cache")
_RECIPE = ("max_seq_length", "chat_template")
# the trainers' other flags on it, by a part of their names (dataset_transformation.py TokenizerConfig, DatasetConfig)
_PARTS = (
    "tokenizer",
    "transform",
    "target_columns",
    "add_bos",
    "use_fast",
    "trust_remote",
    "messages_key",
    "truths_key",
)


def lengths_file(
    trainer: TrainerConfig,
    flags: Mapping[str, Flag],
    *,
    commit: str | None,
    cache: Path,
    places: Mapping[Path, str],
    content: Mapping[Path, str],
) -> Path | None:
    """The file below `cache` that `launch.planning.lengths` reads; None for a trainer that writes none.

    Its name is a key over the trainer, upstream's `commit` and the flags; `places` and `content` as for `identity`.
    """
    if trainer.name not in PATCHES[PATCH].trainers:
        return None
    names = {trainer.launch[word] for word in _COMPUTED if word in trainer.launch}
    names |= {flag for word in _RECIPE for flag in _flags_of(trainer.recipe.get(word))}
    names |= {name for name in flags if any(part in name for part in _PARTS)}
    said = {name: flags[name].value for name in sorted(names) if name in flags}
    key = identity({"trainer": trainer.entry, "upstream": commit, "flags": said}, places, content)
    return cache / "lengths" / f"{key}.json"


def _flags_of(meaning: Any) -> set[str]:
    """The flags that a recipe word may stand for."""
    if isinstance(meaning, str):
        return {meaning}
    return {str(name) for flags in (meaning or {}).values() for name in flags}
