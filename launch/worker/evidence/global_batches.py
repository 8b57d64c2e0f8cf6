"""Checks whether the samples of a global batch are dealt by length, and how the loss of a step is averaged."""

from __future__ import annotations

from .. import sampling
from ..finding import Evidence
from .batches import ForwardInputs
from .trainer_objects import TrainerObjects

TOKENS, MICRO_BATCH_MEANS = "tokens", "micro_batch_means"


def collect(
    objects: TrainerObjects, first: ForwardInputs | None, balanced: str | None, averaging: str | None
) -> list[Evidence]:
    """Return the findings "balanced" and "loss_averaging", as far as requested."""
    findings = [] if balanced is None else [_check_balanced(objects, first, balanced)]
    if averaging is not None:
        value, how = _find_averaging(objects)
        findings.append(Evidence("loss_averaging", value, how).compare(averaging))
    return findings


def _check_balanced(objects: TrainerObjects, first: ForwardInputs | None, requested: str) -> Evidence:
    batches = sampling.find_sampler(objects.dataloader)
    if batches is None or not batches.balanced:
        return Evidence("balanced", "false", "the sampler of the data loader").compare(requested)
    if first is None or batches.first_batch is None:
        return Evidence("balanced", None, "the first micro batch was not seen").compare(requested)
    tokens, actual = batches.tokens_of(batches.first_batch), first.tokens
    if batches.has_pairs and batches.layout.padded and first.rows == len(batches.first_batch.lengths):
        tokens //= 2  # the chosen halves alone: concatenated_forward=false (dpo_utils.py:323)
    how = f"the first micro batch of this rank has the {tokens} tokens that were dealt to it"
    if actual != tokens:
        how = f"{tokens} tokens were dealt to the first micro batch of this rank, and the model got {actual}"
    return Evidence("balanced", str(actual == tokens).lower(), how).compare(requested)


def _find_averaging(objects: TrainerObjects) -> tuple[str, str]:
    if objects.trainer is not None:
        uses_step_tokens = bool(getattr(objects.trainer, "model_accepts_loss_kwargs", False))
        return (
            TOKENS if uses_step_tokens else MICRO_BATCH_MEANS,
            "whether the Trainer passes the token count of the whole step to the model",
        )
    modules = objects.wrapped.modules() if objects.wrapped is not None else ()
    is_weighted = any(getattr(module, "weighs_tokens_for_launch", False) for module in modules)
    return TOKENS if is_weighted else MICRO_BATCH_MEANS, "whether the loss of the first micro batch was weighted"
