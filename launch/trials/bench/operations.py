"""The operations per token that a setting's utilisation (MFU) counts, and what it leaves out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from launch.config.schema import Kind, Packing
from launch.planning.estimate.flops import token_flops
from launch.planning.estimate.shape import ModelShape, read_shape, shape_from_yaml
from launch.planning.plan import Plan

_ADAPTERS = ("use_lora", "use_qlora", "use_peft")


@dataclass(frozen=True)
class Operations:
    """Floating-point operations per token without padding."""

    per_token: float | None  # None when the model's shape is unknown
    document: float | None  # mean tokens of a document, which attention spans; None when attention is left out
    reference: bool  # the reference model's forward pass in each step is counted too
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        if self.per_token is None:
            return f"MFU is unknown: {'; '.join(self.left_out)}"
        parts = [f"MFU counts {self.per_token / 1e9:.4g} GFLOP per token without padding, without recomputation"]
        if self.document is not None:
            parts.append(f"attention over documents of {self.document:.0f} tokens, the mean")
        if self.reference:
            parts.append("the reference model's forward pass in each step")
        return "; ".join([*parts, *(f"not counted: {what}" for what in self.left_out)])

    def as_json(self) -> dict[str, Any]:
        return {
            "per_token": self.per_token,
            "document_tokens": None if self.document is None else round(self.document, 1),
            "reference_in_step": self.reference,
            "left_out": list(self.left_out),
        }


def count_operations(plan: Plan, tokens: Sequence[float]) -> Operations:
    """Count a plan's operations; `tokens`: without padding, of each step."""
    shape, reference = _find_shape(plan), _evaluates_reference(plan)
    document = _mean_document_tokens(plan, tokens)
    frozen = any(name in plan.flags and plan.flags[name].value is True for name in _ADAPTERS)
    if shape is None:
        return Operations(None, document, reference, ("the model's shape is unknown",))
    left_out = [] if document is not None else ["attention, because the length of the documents is unknown"]
    left_out += ["the adapters"] if frozen else []
    headless = plan.config.stage.kind == Kind.rm  # one number per sequence instead of the output matrix
    per_token = token_flops(shape, document, frozen=frozen, reference=reference, headless=headless)
    return Operations(per_token, document, reference, tuple(left_out))


def _mean_document_tokens(plan: Plan, tokens: Sequence[float]) -> float | None:
    """The mean tokens of a document; None where packing fills a token budget, so that documents are not counted."""
    if not tokens or plan.config.recipe.packing == Packing.bins:
        return None
    documents = plan.batch.global_ * (2 if plan.config.stage.kind in (Kind.dpo, Kind.rm) else 1)
    return statistics.fmean(tokens) / documents


def _find_shape(plan: Plan) -> ModelShape | None:
    """The shape in the model folder's config.json, else the one in the model's YAML."""
    local = plan.inputs.model.local
    shape = read_shape(local) if local else None
    return shape or (None if plan.config.model.path else shape_from_yaml(plan.config.model.shape))


def _evaluates_reference(plan: Plan) -> bool:
    """Whether each step runs the reference model too; open-instruct's trainers cache its log-probs before training."""
    if not plan.config.trainer.live_reference:
        return False
    cached = plan.flags.get("precompute_ref_log_probs")
    return not (cached and cached.value is True)
