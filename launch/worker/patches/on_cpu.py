"""Patches for a machine without CUDA."""

from __future__ import annotations

import os
import types
from typing import Any

from ..cuda import has_cuda
from ..hooks import replaces
from .patch import PatchContext, PatchInfo

# With these peak FLOP/s, upstream's utilisation figures are 0 instead of wrong.
UNKNOWN_SPEED = float("inf")


def not_needed_with_cuda(_: PatchContext) -> str | None:
    """Return why a patch for machines without CUDA is not needed, or None if it is."""
    return "CUDA is available" if has_cuda() else None


def _not_deepspeed_on_cpu(context: PatchContext) -> str | None:
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() != "true":
        return "accelerate is not configured to use DeepSpeed"
    if "LOCAL_RANK" not in os.environ:
        return "LOCAL_RANK is not set: not one of several ranks"
    return not_needed_with_cuda(context)


def _use_gloo(_: PatchContext) -> None:
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    # Without a GPU the original returns no backend; DeepSpeed starts gloo anyway, and accelerate,
    # which has no backend, sets the number of processes to 1.
    def prepare_backend(*_: Any, **__: Any) -> tuple[str, Any]:
        return "gloo", DistributedType.MULTI_CPU

    PartialState._prepare_backend = prepare_backend


DEEPSPEED = PatchInfo(
    id="deepspeed_on_cpu",
    reason="sets accelerate's backend to gloo, because without a GPU it treats every DeepSpeed rank "
    "as a single process",
    lines={
        "accelerate/state.py": {
            195: "self._prepare_backend(cpu, use_sagemaker_dp, original_backend)",
            (288, 289): "if self.backend is None: self.distributed_type = DistributedType.NO",
            755: "def _prepare_backend(",
        }
    },
    apply=_use_gloo,
    not_needed=_not_deepspeed_on_cpu,
)


def _run_olmo_core(_: PatchContext) -> None:
    from olmo_core import train
    from olmo_core.data import NumpyDataLoaderConfig
    from olmo_core.train.callbacks import GPUMemoryMonitorCallback

    @replaces(train, "prepare_training_environment")
    def prepare_with_gloo(prepare: Any, **options: Any) -> None:
        prepare(**{**options, "backend": "gloo"})

    @replaces(NumpyDataLoaderConfig, "build")
    def build_in_process(build: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        self.num_workers = 0
        return build(self, *arguments, **options)

    def do_nothing(callback: Any) -> None:
        pass

    GPUMemoryMonitorCallback.pre_train = do_nothing
    GPUMemoryMonitorCallback.post_step = do_nothing


OLMO_CORE = PatchInfo(
    id="olmo_core_on_cpu",
    reason="sets OLMo-core's backend to gloo, loads data in the training process and skips memory "
    "statistics, because it requires NCCL and CUDA even on a CPU",
    lines={
        "olmo_core/train/__init__.py": {88: 'backend: Optional[str] = "cpu:gloo,cuda:nccl",'},
        "olmo_core/distributed/utils.py": {168: "torch.cuda.set_device(device)"},
        "olmo_core/train/callbacks/gpu_memory_monitor.py": {
            39: "torch.cuda.reset_peak_memory_stats()"
        },
        "open_instruct/olmo_core_finetune.py": {289: "num_workers=4,"},
        "open_instruct/olmo_core_utils.py": {
            26: "from olmo_core.train import prepare_training_environment"
        },
    },
    apply=_run_olmo_core,
    not_needed=not_needed_with_cuda,
)


def _replace_current_device(_: PatchContext) -> None:
    import torch

    # The memory statistics themselves are 0 if CUDA was never initialised.
    torch.cuda.current_device = lambda: 0


CUDA_MEMORY_ON_CPU = PatchInfo(
    id="cuda_memory_on_cpu",
    reason="gives finetune.py a device number for CUDA's memory statistics, which it reads at every "
    "logged step even without CUDA",
    lines={
        "open_instruct/finetune.py": {
            903: "torch.cuda.max_memory_reserved(device=torch.cuda.current_device())",
            904: "torch.cuda.max_memory_allocated(device=torch.cuda.current_device())",
        }
    },
    apply=_replace_current_device,
    not_needed=not_needed_with_cuda,
)


def _replace_cuda_queries(_: PatchContext) -> None:
    import torch
    from open_instruct import utils

    # Upstream divides max_memory_allocated(), which is 0 here, by total_memory.
    torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(total_memory=1)
    utils.ModelDims.device_flops = property(lambda dims: UNKNOWN_SPEED)
    # accelerate numbers the CPUs of several ranks ("cpu:1"), and a reference cache is loaded to
    # such a name, which torch.load does not know. 15 is an unused priority in torch, after its own
    # "cpu".
    torch.serialization.register_package(15, lambda storage: None, _load_to_numbered_cpu)


def _load_to_numbered_cpu(storage: Any, location: str) -> Any:
    return storage if location.startswith("cpu:") else None


CPU_DEVICE = PatchInfo(
    id="dpo_cpu_device",
    reason="gives DPO's reference cache and utilisation figures answers to their queries of a CUDA "
    "device, which fail without CUDA",
    lines={
        "open_instruct/dpo_utils.py": {487: "torch.cuda.get_device_properties(0).total_memory"},
        "open_instruct/model_utils.py": {
            115: "torch.load(path, weights_only=True, map_location=device)"
        },
        "open_instruct/utils.py": {
            1965: 'assert self.device_name is not None, "device_name must be set"',
            2510: "self.device_flops * num_training_gpus",
        },
    },
    apply=_replace_cuda_queries,
    not_needed=not_needed_with_cuda,
)
