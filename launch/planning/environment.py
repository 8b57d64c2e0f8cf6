"""The environment variables that a run sets, and those that it removes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.config.kinds import Kind
from launch.config.schema import Device, Family, TrainerConfig
from launch.planning.parallel import Parallel

# Variables of another scheduler or another launcher that would change what the trainer does:
# BEAKER_JOB_ID moves the tokenised cache to a path of its own (finetune.py:428),
# BEAKER_EXPERIMENT_ID needs a folder of its own (utils.py:1790), GIT_COMMIT makes it query GitHub
# without a time-out (utils.py:770); the others belong to an enclosing launch.
# BEAKER_ASSIGNED_CPU_COUNT stays: it only sets how many processes tokenise
# (dataset_transformation.py:1952).
_FOREIGN = (
    "BEAKER_JOB_ID",
    "BEAKER_EXPERIMENT_ID",
    "BEAKER_WORKLOAD_ID",
    "BEAKER_NODE_HOSTNAME",
    "GIT_COMMIT",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "ACCELERATE_USE_CPU",
    "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_USE_FSDP",
    "ACCELERATE_MIXED_PRECISION",
    "ACCELERATE_GRADIENT_CLIPPING",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE",
)

# The variables that set torch's allocator; the first one that is set counts. Older versions of torch
# read only the second, ROCm also the third (torch c10/core/AllocatorConfig.h,
# c10/cuda/CUDAAllocatorConfig.h).
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_EXPANDABLE_SEGMENTS = "expandable_segments:True"


def build_environment(
    trainer: TrainerConfig,
    parallel: Parallel,
    checkout: Path | None,
    reference_cache: Path,
    environ: Mapping[str, str],
    *,
    expandable_segments: bool,
) -> dict[str, str]:
    """Return the variables that a run sets.

    PYTHONPATH keeps the value of `environ` behind the checkout. `expandable_segments` applies to
    GPUs, unless `environ` sets torch's allocator itself; vLLM's sleep mode does not work with it.
    """
    variables = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    if parallel.width.device == Device.cpu:
        variables["CUDA_VISIBLE_DEVICES"] = ""
        if parallel.width.world_size > 1 and not parallel.zero_stage:
            # accelerate's --cpu silently starts one process
            variables["ACCELERATE_USE_CPU"] = "true"
    elif expandable_segments and not any(environ.get(name) for name in ALLOCATOR_VARIABLES):
        variables |= dict.fromkeys(ALLOCATOR_VARIABLES[:2], _EXPANDABLE_SEGMENTS)
    if trainer.family == Family.open_instruct and trainer.kind == Kind.dpo:
        # upstream's default is an absolute path of another cluster, which root creates silently
        # (dpo_utils.py:191)
        variables["REFERENCE_LOGPROBS_CACHE_PATH"] = str(reference_cache)
    # RLVR's verifiers may call open-instruct
    if checkout and (trainer.family == Family.open_instruct or trainer.kind == Kind.rlvr):
        folders = [str(checkout)]
        if environ.get("PYTHONPATH"):
            folders.append(environ["PYTHONPATH"])
        variables["PYTHONPATH"] = os.pathsep.join(folders)
    return variables


def has_expandable_segments(variables: Mapping[str, str]) -> bool:
    """Return whether torch's allocator uses expandable segments under these variables."""
    for name in ALLOCATOR_VARIABLES:
        settings = variables.get(name)
        if settings:
            return _EXPANDABLE_SEGMENTS in settings.replace(" ", "")
    return False


def variables_to_unset(variables: Mapping[str, str], servers: Sequence[str]) -> tuple[str, ...]:
    """Return the variables that a run removes: those of other launchers, and of the `servers` of a
    tracker, that it does not set.
    """
    return tuple(name for name in (*_FOREIGN, *servers) if name not in variables)
