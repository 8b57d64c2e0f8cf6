"""The patches: the changes to upstream's code that trainers need, each with its reason and sources.

A patch is a `PatchInfo` in a module of this folder, and its id is listed in `_IDS`. The launcher
itself reads the patches, because a plan shows what a run changes: a module is imported when one of
its patches is looked up, and imports neither a trainer nor torch. `launch/planning/command.py`
decides which runs get a patch.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

from .patch import PatchContext, PatchError, PatchInfo, UpstreamSource, install

# {module of this folder: the ids of its patches}. A patch that is missing here is never applied.
_IDS = {
    "batches": ("balanced_batches", "token_weighting", "token_sums"),
    "dpo": (
        "dpo_single_process_group",
        "dpo_unlisted_gpu",
        "dpo_steps",
        "dpo_reference_cache",
    ),
    "finetune": (
        "finetune_local_model",
        "finetune_steps",
        "registered_models",
        "reward_steps",
    ),
    "olmo_core": (
        "olmo_core_first_checkpoint",
        "olmo_core_tokens",
        "olmo_core_evidence",
        "unused_imports",
    ),
    "olmo_core_documents": (
        "olmo_core_documents",
        "dpo_packed_padding",
        "olmo_core_whole_chats",
    ),
    "olmo_core_export": ("olmo_core_export",),
    "olmo_core_optimizer": ("olmo_core_single_step",),
    "olmo_core_resume": (
        "olmo_core_async_saves",
        "dpo_output_folder",
        "dpo_resumed_position",
        "olmo_core_resume",
        "olmo_core_signals",
    ),
    "olmo_core_steps": ("olmo_core_steps", "olmo_core_packed_data"),
    "on_cpu": (
        "deepspeed_on_cpu",
        "olmo_core_on_cpu",
        "cuda_memory_on_cpu",
        "dpo_cpu_device",
    ),
    "preview": ("preview",),
    "progress": ("dataset_cache", "saving"),
    "resume": ("exact_resume",),
    "universal": ("universal_checkpoint",),
    "shared": ("chat_template", "evidence", "lengths", "adapter_inputs"),
}
_MODULES = {id: module for module, ids in _IDS.items() for id in ids}


class _Patches(Mapping[str, PatchInfo]):
    """The patches by id. Their modules are imported one by one, as patches are looked up."""

    def __getitem__(self, id: str) -> PatchInfo:
        module = importlib.import_module(f".{_MODULES[id]}", __name__)
        for value in vars(module).values():
            if isinstance(value, PatchInfo) and value.id == id:
                return value
        raise KeyError(id)

    def __contains__(self, id: object) -> bool:
        return id in _MODULES

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


PATCHES: Mapping[str, PatchInfo] = _Patches()

# The patches that check the requested settings. Each trainer has at most one.
EVIDENCE_PATCHES = ("evidence", "olmo_core_evidence")
# The patches that a resumed run gets, with its checkpoint. Each trainer of open-instruct has at most
# one.
EXACT_RESUME = "exact_resume"
RESUME_PATCHES = (EXACT_RESUME, "olmo_core_resume")
# The patch of a run that resumes from a DeepSpeed checkpoint of another width.
UNIVERSAL_CHECKPOINT = "universal_checkpoint"

__all__ = [
    "EVIDENCE_PATCHES",
    "EXACT_RESUME",
    "PATCHES",
    "RESUME_PATCHES",
    "UNIVERSAL_CHECKPOINT",
    "PatchContext",
    "PatchError",
    "PatchInfo",
    "UpstreamSource",
    "install",
]
