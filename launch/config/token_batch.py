"""A global batch in tokens: the rows of a step that recipe.global_batch_tokens stands for."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from launch.config.origins import Origins
from launch.errors import UserError, refusal
from launch.worker.finding import Fix

TOKENS = "recipe.global_batch_tokens"
ROWS = "recipe.global_batch_size"
LENGTH = "recipe.max_seq_length"


def resolve_global_batch(config: DictConfig, origins: Origins) -> None:
    """Resolve a global batch that is set in tokens: recipe.global_batch_size becomes the rows of
    max_seq_length tokens that fit recipe.global_batch_tokens.

    One of the two keys is set. An override of one replaces the other in a file, as it would the
    same key. What does not divide is refused by the plan, which knows the width
    (batch_not_divisible). Raises UserError: two_batch_sizes.
    """
    tokens = OmegaConf.select(config, TOKENS)
    if tokens is None:
        return
    if OmegaConf.select(config, ROWS) is not None:
        is_overridden = {key: origins.overridden(key) is not None for key in (ROWS, TOKENS)}
        if is_overridden[ROWS] == is_overridden[TOKENS]:
            raise _two_sizes(origins)
        if is_overridden[ROWS]:
            OmegaConf.update(config, TOKENS, None)
            return
    length = OmegaConf.select(config, LENGTH)
    # a length without a value, or out of its range, is refused for itself
    rows = max(1, tokens // length) if length else 1
    OmegaConf.update(config, ROWS, rows, force_add=True)


def _two_sizes(origins: Origins) -> UserError:
    """Return the refusal of a batch in rows and in tokens: which of them counts would be a guess."""
    places = {key: origins.of(key).where or key for key in (ROWS, TOKENS)}
    message = f"{ROWS} ({places[ROWS]}) and {TOKENS} ({places[TOKENS]}) are both set"
    cure = Fix.of("remove one of them: {0} or {1}", f"~{ROWS}", f"~{TOKENS}")
    return refusal("two_batch_sizes", message, places[TOKENS], cure)
