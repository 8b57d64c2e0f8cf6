"""Counts the floating-point operations of a step, for the MFU."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from launch.config.kinds import KINDS, Kind
from launch.config.recipe_keys import Packing
from launch.planning.estimate.planned_setting import has_reference
from launch.planning.estimate.shape import token_flops
from launch.planning.flags import values_of
from launch.planning.plan import Plan


@dataclass(frozen=True)
class Operations:
    """Floating-point operations per token without padding."""

    per_token: float | None  # None when the model's shape is unknown
    # Mean tokens of a document, over which attention spans; None when attention is left out.
    document_tokens: float | None
    reference_in_step: bool  # whether the reference model's forward pass is counted too
    left_out: tuple[str, ...]  # parts that are not counted

    def __str__(self) -> str:
        if self.per_token is None:
            return f"MFU is unknown: {'; '.join(self.left_out)}"
        gflop = self.per_token / 1e9
        parts = [f"MFU counts {gflop:.4g} GFLOP per token without padding, without recomputation"]
        if self.document_tokens is not None:
            parts.append(f"attention over documents of {self.document_tokens:.0f} tokens, the mean")
        if self.reference_in_step:
            parts.append("the reference model's forward pass in each step")
        parts += [f"not counted: {what}" for what in self.left_out]
        return "; ".join(parts)


def count_operations(plan: Plan, tokens: Sequence[float]) -> Operations:
    """Count the operations of a plan's training per token.

    `tokens`: the number of tokens without padding of each step.
    """
    # open-instruct's trainers, and others with this flag, compute the reference's log-probs before
    # the training.
    is_precomputed = values_of(plan.flags).get("precompute_ref_log_probs")
    reference = has_reference(plan) and not is_precomputed
    document_tokens = _mean_document_tokens(plan, tokens)
    if plan.shape is None:
        unknown = ("the model's shape is unknown",)
        return Operations(None, document_tokens, reference, unknown)
    left_out = []
    if document_tokens is None:
        left_out.append("attention, because the length of the documents is unknown")
    if plan.trains_adapter:
        left_out.append("the adapters")
    per_token = token_flops(
        plan.shape,
        document_tokens,
        frozen=plan.trains_adapter,
        reference=reference,
        # A reward model has one number per sequence instead of the output matrix.
        headless=plan.config.stage.kind == Kind.rm,
    )
    return Operations(per_token, document_tokens, reference, tuple(left_out))


def _mean_document_tokens(plan: Plan, tokens: Sequence[float]) -> float | None:
    """Return the mean tokens of a document; `tokens`: those of each step.

    None is returned if packing fills a token budget, since the documents of a step are then not
    counted.
    """
    if not tokens or plan.config.recipe.packing == Packing.bins:
        return None
    documents = plan.batch.global_ * KINDS[plan.config.stage.kind].sequences
    return statistics.fmean(tokens) / documents
