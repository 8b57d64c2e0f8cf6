"""Converts a global batch in tokens (recipe.global_batch_tokens) into rows of a step."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from launch.config.origins import Origins
from launch.errors import UserError, refusal
from launch.worker.finding import Fix

_TOKENS = "recipe.global_batch_tokens"
_ROWS = "recipe.global_batch_size"
_LENGTH = "recipe.max_seq_length"


def resolve_global_batch(config: DictConfig, origins: Origins) -> None:
    """Resolve a global batch that is set in tokens: recipe.global_batch_size becomes the rows of
    max_seq_length tokens that fit recipe.global_batch_tokens.

    One of the two keys is set. An override of one replaces the other in a file, as it would the
    same key. What does not divide is refused by the plan, which knows the width
    (batch_not_divisible). Raises UserError: two_batch_sizes.
    """
    tokens = OmegaConf.select(config, _TOKENS)
    if tokens is None:
        return
    if OmegaConf.select(config, _ROWS) is not None:
        is_overridden = {key: origins.overridden(key) is not None for key in (_ROWS, _TOKENS)}
        if is_overridden[_ROWS] == is_overridden[_TOKENS]:
            raise _two_sizes(origins)
        if is_overridden[_ROWS]:
            OmegaConf.update(config, _TOKENS, None)
            return
    length = OmegaConf.select(config, _LENGTH)
    # A length without a value, or out of its range, is reported elsewhere.
    rows = max(1, tokens // length) if length else 1
    OmegaConf.update(config, _ROWS, rows, force_add=True)


def _two_sizes(origins: Origins) -> UserError:
    """Return the refusal of a batch in rows and in tokens: which of them counts would be a guess."""
    places = {key: origins.of(key).where or key for key in (_ROWS, _TOKENS)}
    message = f"{_ROWS} ({places[_ROWS]}) and {_TOKENS} ({places[_TOKENS]}) are both set"
    cure = Fix.of("remove one of them: {0} or {1}", f"~{_ROWS}", f"~{_TOKENS}")
    return refusal("two_batch_sizes", message, places[_TOKENS], cure)
