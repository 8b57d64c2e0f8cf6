"""Runs OLMo-core's trainers without CUDA: gloo between the ranks, no GPU memory monitor, no data loader processes.

Each of the four loader processes would import the whole trainer first.
"""

from __future__ import annotations

from typing import Any

from ..replacing import replaces
from . import machine
from .patch import PatchContext, PatchInfo


def _use_cpu(_: PatchContext) -> None:
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

    GPUMemoryMonitorCallback.pre_train = GPUMemoryMonitorCallback.post_step = lambda callback: None


PATCH = PatchInfo(
    id="olmo_core_on_cpu",
    reason="OLMo-core requires NCCL and the memory statistics of a CUDA device even without one",
    wanted=lambda facts: facts.on_cpu,
    condition="torch sees no CUDA device",
    lines={
        "olmo_core/train/__init__.py": {88: 'backend: Optional[str] = "cpu:gloo,cuda:nccl",'},
        "olmo_core/distributed/utils.py": {168: "torch.cuda.set_device(device)"},
        "olmo_core/train/callbacks/gpu_memory_monitor.py": {39: "torch.cuda.reset_peak_memory_stats()"},
        "open_instruct/olmo_core_finetune.py": {289: "num_workers=4,"},
        "open_instruct/olmo_core_utils.py": {26: "from olmo_core.train import prepare_training_environment"},
    },
    apply=_use_cpu,
    not_needed=machine.not_needed_with_cuda,
)
