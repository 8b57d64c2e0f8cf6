"""Run by torch.distributed.run: real ZeRO between CPU processes, the bytes of all tensors alive
counted on rank 0.

zero_memory.py STAGE: prints what was counted and what is predicted for it, as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import replace
from unittest import mock

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import deepspeed.ops
import torch
import torch.distributed

from launch.config.schema import Mode
from launch.planning.estimate import model_state
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.memory_estimate import GIB
from tests.planning.estimate.test_saved import SMALL, Alive, batch_of, build, setting

# Three minutes to compile, and only inference calls it (deepspeed/comm/torch.py:292).
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
BUCKET, SUB_GROUP = 100_000, 300_000  # elements: small enough for a tiny model to fill


def count(stage: int) -> dict[str, float]:
    """The peaks of the last optimizer step's second micro batch and of that step; and the bytes
    between the steps.
    """
    requested = setting(SMALL, 4, 64, accumulation=2, padding=False)
    hidden = SMALL.hidden
    shared = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    own = {
        3: {
            "reduce_bucket_size": hidden**2,
            "sub_group_size": SUB_GROUP,
            "stage3_prefetch_bucket_size": int(0.9 * hidden**2),
            "stage3_param_persistence_threshold": 10 * hidden,
        }
    }
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": requested.accumulation,
        "zero_optimization": shared
        | own.get(stage, {"reduce_bucket_size": BUCKET, "allgather_bucket_size": BUCKET}),
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True},
    }
    model = build(requested)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=adamw, config=config, dist_init_required=False
    )
    batch = batch_of(requested)
    alive = Alive(torch.nn.Module())
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter):
            alive.see(thing)
    peaks = {}
    with alive:
        for _ in range(2 * requested.accumulation):
            alive.most = alive.now
            loss = engine(**batch, labels=batch["input_ids"], use_cache=False).loss
            engine.backward(loss)
            del loss
            peaks["backward"], alive.most = float(alive.most), alive.now
            engine.step()
            peaks["step"], peaks["between"] = float(alive.most), float(alive.now)
    mode, ranks = Mode(f"zero{stage}"), torch.distributed.get_world_size()
    with mock.patch.multiple(model_state, ZERO_BUCKET=BUCKET, SUB_GROUP=SUB_GROUP):
        estimate = estimate_memory(replace(requested, mode=mode, ranks=ranks))
    moments = {name: size * GIB for name, size in estimate.moments.items()}
    peaks["predicted_step"] = moments.pop("step")
    peaks["predicted_backward"] = max(moments.values())
    return peaks


if __name__ == "__main__":
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    counted = count(int(sys.argv[1]))
    if torch.distributed.get_rank() == 0:
        print(f"COUNTED {json.dumps(counted)}", flush=True)
    torch.distributed.destroy_process_group()
