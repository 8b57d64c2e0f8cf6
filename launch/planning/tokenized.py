"""The file with the lengths of a plan's tokenised data: one for each set of flags that determines the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from launch.config.schema import TrainerConfig
from launch.planning.effective import flags_of_key
from launch.planning.flags import Flag
from launch.planning.identity import compute_identity

_WRITERS = ("lengths", "trl_lengths")
# keys of trainer.launch and of the recipe whose flags determine the tokens
_LAUNCH_KEYS = ("model", "revision", "mixer", "splits", "dataset", "split", "tokenized_cache")
_RECIPE_KEYS = ("max_seq_length", "chat_template")
# the trainers' other flags that do, by a part of their names (dataset_transformation.py TokenizerConfig, DatasetConfig;
# TRL's SFTConfig)
_FLAG_PARTS = (
    *("tokenizer", "transform", "target_columns", "add_bos", "use_fast", "trust_remote", "messages_key", "truths_key"),
    *("_only_loss", "truncation", "eos_token", "dataset_kwargs", "dataset_text_field", "dataset_config"),
)


def lengths_patch(trainer: TrainerConfig) -> str | None:
    """Return the patch with which a trainer writes the lengths; None for a trainer that writes none."""
    return next((name for name in _WRITERS if name in trainer.patches), None)


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
    """Return the file below `cache` that `launch.planning.lengths` reads; None for a trainer that writes none.

    Its name is a digest of the trainer, upstream's `commit`, the flags and TRL's `subset`. `places` and `content`:
    as for `identity`.
    """
    if lengths_patch(trainer) is None:
        return None
    names = {trainer.launch[key] for key in _LAUNCH_KEYS if key in trainer.launch}
    names |= {flag for key in _RECIPE_KEYS for flag in flags_of_key(trainer.recipe.get(key))}
    names |= {name for name in flags if any(part in name for part in _FLAG_PARTS)}
    values = {name: flags[name].value for name in sorted(names) if name in flags}
    parts = {"trainer": trainer.entry, "upstream": commit, "flags": values, "subset": subset}
    return cache / "lengths" / f"{compute_identity(parts, places, content)}.json"
