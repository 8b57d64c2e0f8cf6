"""The patches: the differences from upstream that a trainer needs, each with an id, a reason and checked sources.

Importing this package imports neither a trainer nor torch, because the planner reads the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import (
    balanced_batches,
    deepspeed_on_cpu,
    dpo,
    dpo_packed_padding,
    dpo_steps,
    early_stop,
    evidence,
    finetune,
    finetune_grad_norm,
    lengths,
    olmo_core_console,
    olmo_core_documents,
    olmo_core_evidence,
    olmo_core_on_cpu,
    olmo_core_tokens,
    olmo_core_whole_chats,
    preview,
    reference_cache,
    registered_models,
    resume,
    resume_trl,
    token_weighting,
    trainer_steps,
    trl_flatten,
    trl_models,
    trl_subset,
    trl_validation,
    unused_imports,
)
from .patch import PatchContext, PatchError, PatchInfo, PlanFacts, UpstreamSource, install

_ALL: tuple[PatchInfo, ...] = (
    finetune.LOCAL_MODEL,
    finetune.CUDA_MEMORY_ON_CPU,
    dpo.SINGLE_PROCESS_GROUP,
    dpo.CPU_DEVICE,
    dpo.UNLISTED_GPU,
    dpo_packed_padding.PATCH,
    dpo_steps.STEPS,
    reference_cache.CACHE,
    registered_models.PATCH,
    resume.RESUME,
    resume_trl.RESUME,
    finetune_grad_norm.PATCH,
    balanced_batches.PATCH,
    token_weighting.PATCH,
    lengths.PATCH,
    lengths.TRL_PATCH,
    evidence.PATCH,
    olmo_core_console.PATCH,
    olmo_core_documents.PATCH,
    olmo_core_evidence.PATCH,
    olmo_core_on_cpu.PATCH,
    olmo_core_tokens.PATCH,
    olmo_core_whole_chats.PATCH,
    deepspeed_on_cpu.PATCH,
    trainer_steps.STEPS,
    trl_flatten.PATCH,
    trl_models.CONTINUE,
    trl_models.TEMPLATE,
    trl_subset.SUBSET,
    trl_validation.PATCH,
    early_stop.PATCH,
    preview.PATCH,
    preview.TRL_PATCH,
    unused_imports.PATCH,
)

# the patches that check the requested settings; each trainer has at most one
EVIDENCE_PATCHES = (evidence.PATCH.id, olmo_core_evidence.PATCH.id)

PATCHES: Mapping[str, PatchInfo] = MappingProxyType({patch.id: patch for patch in _ALL})

__all__ = [
    "EVIDENCE_PATCHES",
    "PATCHES",
    "PatchContext",
    "PatchError",
    "PatchInfo",
    "PlanFacts",
    "UpstreamSource",
    "install",
]
