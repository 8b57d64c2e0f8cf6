"""The patches: the changes of upstream's code that trainers need, each with its reason and sources.

A patch is a `PatchInfo` in a module of this folder, and is listed in `_REGISTERED`. Importing this
package imports neither a trainer nor torch, because the launcher itself reads the patches: a plan
records what a run changes. `launch/planning/command.py` decides which runs get a patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import (
    batches,
    dpo,
    finetune,
    olmo_core,
    olmo_core_documents,
    olmo_core_export,
    olmo_core_optimizer,
    olmo_core_resume,
    olmo_core_steps,
    on_cpu,
    preview,
    progress,
    resume,
    shared,
)
from .patch import PatchContext, PatchError, PatchInfo, UpstreamSource, install

# every patch is registered here; one that is missing is never applied
_REGISTERED = (
    batches.BALANCED,
    batches.TOKEN_WEIGHTING,
    batches.TOKEN_SUMS,
    dpo.SINGLE_PROCESS_GROUP,
    dpo.UNLISTED_GPU,
    dpo.STEPS,
    dpo.CACHE,
    finetune.LOCAL_MODEL,
    finetune.STEPS,
    finetune.REGISTERED_MODELS,
    finetune.REWARD_STEPS,
    olmo_core.FIRST_CHECKPOINT,
    olmo_core.TOKEN_COUNT,
    olmo_core.EVIDENCE,
    olmo_core.UNUSED_IMPORTS,
    olmo_core_documents.SEPARATION,
    olmo_core_documents.PADDING,
    olmo_core_documents.WHOLE_CHATS,
    olmo_core_optimizer.ONE_BY_ONE,
    olmo_core_export.PATCH,
    olmo_core_resume.ASYNC_SAVES,
    olmo_core_resume.OUTPUT,
    olmo_core_resume.POSITION,
    olmo_core_resume.RESUME,
    olmo_core_resume.SIGNALS,
    olmo_core_steps.STEPS,
    olmo_core_steps.PACKED_DATA,
    on_cpu.DEEPSPEED,
    on_cpu.OLMO_CORE,
    on_cpu.CUDA_MEMORY_ON_CPU,
    on_cpu.CPU_DEVICE,
    preview.PATCH,
    progress.DATASET,
    progress.SAVING,
    resume.RESUME,
    shared.CHAT_TEMPLATE,
    shared.EVIDENCE,
    shared.LENGTHS,
    shared.ADAPTER_INPUTS,
)

# by id
PATCHES: Mapping[str, PatchInfo] = MappingProxyType({patch.id: patch for patch in _REGISTERED})

# the patches that check the requested settings; each trainer has at most one
EVIDENCE_PATCHES = (shared.EVIDENCE.id, olmo_core.EVIDENCE.id)
# the patches that a resumed run gets, with its checkpoint; a trainer of open-instruct has at most one
EXACT_RESUME = resume.RESUME.id
RESUME_PATCHES = (EXACT_RESUME, olmo_core_resume.RESUME.id)

__all__ = [
    "EVIDENCE_PATCHES",
    "EXACT_RESUME",
    "PATCHES",
    "RESUME_PATCHES",
    "PatchContext",
    "PatchError",
    "PatchInfo",
    "UpstreamSource",
    "install",
]
