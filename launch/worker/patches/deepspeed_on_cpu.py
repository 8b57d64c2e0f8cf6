"""Enables real ZeRO between CPU processes: accelerate ignores the process group that DeepSpeed created."""

from __future__ import annotations

import os

from . import machine
from .patch import PatchContext, PatchInfo


def _not_deepspeed_on_cpu(context: PatchContext) -> str | None:
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() != "true":
        return "accelerate is not configured to use DeepSpeed"
    if "LOCAL_RANK" not in os.environ:
        return "LOCAL_RANK is not set: not one of several ranks"
    return machine.not_needed_with_cuda(context)


def _use_gloo(_: PatchContext) -> None:
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    # Without a GPU the original returns no backend; DeepSpeed starts gloo anyway, and accelerate, having no backend,
    # sets the number of processes to 1.
    PartialState._prepare_backend = lambda self, *arguments, **options: ("gloo", DistributedType.MULTI_CPU)


PATCH = PatchInfo(
    id="deepspeed_on_cpu",
    reason="without a GPU accelerate treats every DeepSpeed rank as a single process; this sets its backend to gloo",
    wanted=lambda facts: facts.on_cpu and facts.zero_stage > 0,
    condition="torch sees no CUDA device, and accelerate is configured to use DeepSpeed",
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
