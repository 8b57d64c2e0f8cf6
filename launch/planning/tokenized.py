"""Where the lengths of a plan's tokenised data are: a file for each set of flags that decides what is tokenised."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.config.schema import TrainerConfig
from launch.planning.flags import Flag
from launch.planning.identity import identity
from launch.worker.patches import PATCHES

_WRITERS = ("lengths", "trl_lengths")
# what `launch` computes and what the recipe says, by their words
_COMPUTED = ("model", "revision", "mixer", "splits", "dataset", "split", "tokenized_cache")
_RECIPE = ("max_seq_length", "chat_template")
# the trainers' other flags on it, by a part of their names (dataset_transformation.py TokenizerConfig, DatasetConfig;
# TRL's SFTConfig)
_PARTS = (
    *("tokenizer", "transform", "target_columns", "add_bos", "use_fast", "trust_remote", "messages_key", "truths_key"),
    *("_only_loss", "truncation", "eos_token", "dataset_kwargs", "dataset_text_field", "dataset_config"),
)


def lengths_patch(trainer: str) -> str | None:
    """The patch with which a trainer writes the lengths; None for one that writes none."""
    return next((name for name in _WRITERS if trainer in PATCHES[name].trainers), None)


def lengths_file(
    trainer: TrainerConfig,
    flags: Mapping[str, Flag],
    *,
    subset: str | None,
    commit: str | None,
    cache: Path,
    places: Mapping[Path, str],
    content: Mapping[Path, str],
) -> Path | None:
    """The file below `cache` that `launch.planning.lengths` reads; None for a trainer that writes none.

    Its name is a key over the trainer, upstream's `commit`, the flags and TRL's `subset`; `places` and `content` are as
    for `identity`.
    """
    if lengths_patch(trainer.name) is None:
        return None
    names = {trainer.launch[word] for word in _COMPUTED if word in trainer.launch}
    names |= {flag for word in _RECIPE for flag in _flags_of(trainer.recipe.get(word))}
    names |= {name for name in flags if any(part in name for part in _PARTS)}
    said = {name: flags[name].value for name in sorted(names) if name in flags}
    key = identity({"trainer": trainer.entry, "upstream": commit, "flags": said, "subset": subset}, places, content)
    return cache / "lengths" / f"{key}.json"


def _flags_of(meaning: Any) -> set[str]:
    """The flags that a recipe word may stand for."""
    if isinstance(meaning, str):
        return {meaning}
    return {str(name) for flags in (meaning or {}).values() for name in flags}
