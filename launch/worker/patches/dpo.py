"""Patches for open-instruct's DPO scripts: one process without DeepSpeed, no CUDA, a GPU that upstream lacks."""

from __future__ import annotations

import atexit
import types
from typing import Any

from .. import accelerator
from . import machine
from .patch import PatchContext, PatchInfo

_UNKNOWN = float("inf")  # as peak FLOP/s it makes upstream's utilisation figures 0 instead of a wrong number


def _make_process_group(context: PatchContext) -> None:
    def make(built: Any) -> None:
        import torch.distributed as dist

        if dist.is_initialized() or built.num_processes != 1:  # accelerate or DeepSpeed created one
            return
        # The reference cache is reduced on its own device; on a GPU, barrier() needs NCCL as well.
        backend = "cpu:gloo,cuda:nccl" if built.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        atexit.register(_end_process_group)
        context.events.emit("evidence", what="process_group", value=backend)

    # after accelerate has decided, so that it does not assume a distributed launch
    accelerator.when_built(make)


def _end_process_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():  # accelerate destroys it too when it ends a tracker's run
        dist.destroy_process_group()


def _replace_cuda_queries(_: PatchContext) -> None:
    import torch
    from open_instruct import utils

    # upstream divides max_memory_allocated(), which is 0 here, by total_memory
    torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(total_memory=1)
    utils.ModelDims.device_flops = property(lambda dims: _UNKNOWN)
    # accelerate numbers the CPUs of several ranks ("cpu:1"), and a reference cache is loaded to that name, which
    # torch.load does not know. 15 is an unused priority in torch, after its own "cpu".
    torch.serialization.register_package(15, lambda storage: None, _load_to_numbered_cpu)


def _load_to_numbered_cpu(storage: Any, location: str) -> Any:
    return storage if location.startswith("cpu:") else None


def unlisted_gpu(specs: dict[str, dict[str, float]], device: str) -> str | None:
    """Return the key under which upstream's `get_device_name` (utils.py:2538-2541) would look for `device`, if missing.

    `specs` is upstream's table GPU_SPECS, `device` torch's name of the GPU; None if the table has it.
    """
    name = device.lower().replace("-", " ")
    return None if any(key in name for key in specs) else name


def _not_needed_if_listed(_: PatchContext) -> str | None:
    if not machine.has_cuda():
        return "CUDA is not available"
    import torch
    from open_instruct import utils

    device = torch.cuda.get_device_name(0)
    return None if unlisted_gpu(utils.GPU_SPECS, device) else f"upstream lists {device}"


def list_gpu(specs: dict[str, dict[str, float]], device: str, memory: int, context: PatchContext) -> None:
    """Add `device` (`memory` in bytes, speed unknown) to upstream's table, and warn about utilisation figures."""
    name = unlisted_gpu(specs, device)
    if name is None:
        return
    specs[name] = {"flops": _UNKNOWN, "memory_size": float(memory), "memory_bandwidth": _UNKNOWN}
    context.events.warn(
        f"open-instruct does not know the GPU {device}: training is not affected, but its utilisation figures "
        "(perf/mfu_step, MFU%) will be 0"
    )


def _list_this_gpu(context: PatchContext) -> None:
    import torch
    from open_instruct import utils

    memory = torch.cuda.get_device_properties(0).total_memory
    list_gpu(utils.GPU_SPECS, torch.cuda.get_device_name(0), memory, context)


SINGLE_PROCESS_GROUP = PatchInfo(
    id="dpo_single_process_group",
    reason="the reference cache calls torch.distributed even for one process, which then has no process group",
    wanted=lambda facts: facts.world_size == 1 and not facts.zero_stage,
    condition="one process, and neither accelerate nor DeepSpeed created a process group",
    lines={
        "open_instruct/dpo_utils.py": {
            451: "dist.barrier()",
            491: "dist.all_reduce(chosen_tensor, op=dist.ReduceOp.MAX)",
            (518, 520): "dist.barrier()\n\n    return cache",
        }
    },
    apply=_make_process_group,
)

CPU_DEVICE = PatchInfo(
    id="dpo_cpu_device",
    reason="without CUDA the reference cache and the utilisation figures fail when they query the device",
    wanted=lambda facts: facts.on_cpu,
    condition="torch sees no CUDA device",
    lines={
        "open_instruct/dpo_utils.py": {487: "torch.cuda.get_device_properties(0).total_memory"},
        "open_instruct/model_utils.py": {115: "torch.load(path, weights_only=True, map_location=device)"},
        "open_instruct/utils.py": {
            1965: 'assert self.device_name is not None, "device_name must be set"',
            2510: "self.device_flops * num_training_gpus",
        },
    },
    apply=_replace_cuda_queries,
    not_needed=machine.not_needed_with_cuda,
)

UNLISTED_GPU = PatchInfo(
    id="dpo_unlisted_gpu",
    reason="DPO refuses a GPU that upstream's table of GPU speeds lacks, though only a utilisation figure needs it",
    wanted=lambda facts: not facts.on_cpu,
    condition="torch sees a CUDA device whose name is not in upstream's GPU_SPECS",
    lines={
        "open_instruct/utils.py": {
            1805: "GPU_SPECS = {",
            1860: "get_device_name(torch.cuda.get_device_name(0))",
            2538: 'device_name.lower().replace("-", " ")',
            2541: "if key in normalized_device_name:",
        }
    },
    apply=_list_this_gpu,
    not_needed=_not_needed_if_listed,
)
