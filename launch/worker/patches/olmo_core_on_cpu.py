"""Runs OLMo-core's trainers without CUDA: gloo between the ranks, no GPU memory monitor, no data loader processes.

Each of the four loader processes would import the whole trainer first.
"""

from __future__ import annotations

import functools
from typing import Any

from . import machine
from .patch import PatchContext, PatchInfo, UpstreamSource


def _use_cpu(_: PatchContext) -> None:
    from olmo_core import train
    from olmo_core.data import NumpyDataLoaderConfig
    from olmo_core.train.callbacks import GPUMemoryMonitorCallback

    prepare = train.prepare_training_environment

    @functools.wraps(prepare)
    def prepare_with_gloo(**options: Any) -> None:
        prepare(**{**options, "backend": "gloo"})

    build = NumpyDataLoaderConfig.build

    @functools.wraps(build)
    def build_in_process(self: Any, *arguments: Any, **options: Any) -> Any:
        self.num_workers = 0
        return build(self, *arguments, **options)

    train.prepare_training_environment = prepare_with_gloo
    NumpyDataLoaderConfig.build = build_in_process
    GPUMemoryMonitorCallback.pre_train = GPUMemoryMonitorCallback.post_step = lambda callback: None


PATCH = PatchInfo(
    id="olmo_core_on_cpu",
    reason="OLMo-core requires NCCL and the memory statistics of a CUDA device even without one",
    wanted=lambda facts: facts.on_cpu,
    condition="torch sees no CUDA device",
    sources=(
        UpstreamSource(
            "olmo_core/train/__init__.py", 'backend: Optional[str] = "cpu:gloo,cuda:nccl",', 88, 88, "3.0.0"
        ),
        UpstreamSource("olmo_core/distributed/utils.py", "torch.cuda.set_device(device)", 168, 168, "3.0.0"),
        UpstreamSource(
            "olmo_core/train/callbacks/gpu_memory_monitor.py", "torch.cuda.reset_peak_memory_stats()", 39, 39, "3.0.0"
        ),
        UpstreamSource("open_instruct/olmo_core_finetune.py", "num_workers=4,", 289, 289),
        UpstreamSource(
            "open_instruct/olmo_core_utils.py", "from olmo_core.train import prepare_training_environment", 26, 26
        ),
    ),
    apply=_use_cpu,
    not_needed=machine.not_needed_with_cuda,
)
