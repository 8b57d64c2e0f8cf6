"""Patches for open_instruct/finetune.py: a local model folder, and a machine without CUDA."""

from __future__ import annotations

import os
from typing import Any

from ..replacing import replaces
from . import machine
from .patch import PatchContext, PatchInfo


def _accept_local_model(_: PatchContext) -> None:
    import huggingface_hub

    @replaces(huggingface_hub, "snapshot_download")
    def download_unless_local(download: Any, repo_id: str, *arguments: Any, **options: Any) -> Any:
        # from_pretrained uses the same test for a local model
        return repo_id if os.path.isdir(repo_id) else download(repo_id, *arguments, **options)  # noqa: PTH112


def _replace_current_device(_: PatchContext) -> None:
    import torch

    torch.cuda.current_device = lambda: 0  # the memory statistics themselves are 0 if CUDA was never initialised


LOCAL_MODEL = PatchInfo(
    id="finetune_local_model",
    reason="finetune.py downloads the model even if it is a local folder, and fails on the folder's name",
    wanted=lambda facts: facts.local_model,
    condition="the model is a local folder (tested at each call)",
    lines={
        "open_instruct/finetune.py": {
            41: "from huggingface_hub import HfApi, snapshot_download",
            527: "snapshot_download(model_path, revision=args.model_revision)",
        }
    },
    apply=_accept_local_model,
)

CUDA_MEMORY_ON_CPU = PatchInfo(
    id="cuda_memory_on_cpu",
    reason="finetune.py reads CUDA's memory statistics at every logged step, and fails without CUDA",
    wanted=lambda facts: facts.on_cpu,
    condition="torch sees no CUDA device",
    lines={
        "open_instruct/finetune.py": {
            903: "torch.cuda.max_memory_reserved(device=torch.cuda.current_device())",
            904: "torch.cuda.max_memory_allocated(device=torch.cuda.current_device())",
        }
    },
    apply=_replace_current_device,
    not_needed=machine.not_needed_with_cuda,
)
