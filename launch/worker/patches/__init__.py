"""The patches: what must differ from upstream for a trainer to run here, each named, checked and listed.

Importing this imports no trainer, no torch: the planner reads the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import (
    balanced_batches,
    deepspeed_on_cpu,
    dpo,
    dpo_steps,
    evidence,
    finetune,
    finetune_grad_norm,
    olmo_core_console,
    reference_cache,
    resume,
    resume_trl,
    token_weighting,
    trainer_steps,
    trl_subset,
)
from .patch import Context, PatchError, PatchInfo, Source, install

_ALL: tuple[PatchInfo, ...] = (
    finetune.LOCAL_MODEL,
    finetune.CUDA_MEMORY_ON_CPU,
    dpo.SINGLE_PROCESS_GROUP,
    dpo.CPU_DEVICE,
    dpo.UNLISTED_GPU,
    dpo_steps.STEPS,
    reference_cache.CACHE,
    resume.RESUME,
    resume_trl.RESUME,
    finetune_grad_norm.PATCH,
    balanced_batches.PATCH,
    token_weighting.PATCH,
    evidence.PATCH,
    olmo_core_console.PATCH,
    deepspeed_on_cpu.PATCH,
    trainer_steps.STEPS,
    trl_subset.SUBSET,
)

PATCHES: Mapping[str, PatchInfo] = MappingProxyType({patch.id: patch for patch in _ALL})

__all__ = ["PATCHES", "Context", "PatchError", "PatchInfo", "Source", "install"]
