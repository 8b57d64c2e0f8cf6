"""Checks how the trainer computes: dtypes, activation checkpointing, ZeRO, gradient clipping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from . import Evidence
from .trainer_objects import TrainerObjects

_SHORT_NAMES = {"torch.bfloat16": "bf16", "torch.float32": "fp32", "torch.float16": "fp16"}


# The attributes in which DeepSpeed's optimizers hold their copies of the weights.
_DEEPSPEED_COPIES = (
    "fp32_partitioned_groups_flat",  # ZeRO-3
    "single_partition_of_fp32_groups",  # ZeRO-1 and ZeRO-2
    "fp32_groups_flat_partition",  # the bf16 optimizer without ZeRO
)


def short_dtype(dtype: object) -> str:
    """Return `bf16` for `torch.bfloat16`; a dtype without a short name keeps torch's name."""
    return _SHORT_NAMES.get(str(dtype), str(dtype).removeprefix("torch."))


def check_dtypes(objects: TrainerObjects) -> list[Evidence]:
    """Return the evidence "dtype" (what the matrix products are computed in), "parameter_dtype" and
    "master_dtype" (of the weights that the optimizer updates).
    """
    # The storage dtype of quantised weights says nothing about the computation, and an adapter has
    # its own dtype.
    weights = (p for p in objects.model.parameters() if getattr(p, "quant_state", None) is None)
    types = dtypes_by_size(p for p in weights if p.is_floating_point())
    if not types:
        return [Evidence("dtype", None, "no parameters")]
    mixed = str(getattr(objects.accelerator, "mixed_precision", "no"))
    autocast = mixed == "bf16" and types[0] == "fp32" and objects.engine is None
    how = "autocast over fp32 parameters" if autocast else "parameters() of the model"
    computed = "bf16" if autocast else types[0]
    evidence = [
        Evidence("dtype", computed, how),
        Evidence(
            "parameter_dtype", ",".join(types), "parameters() of the model, by decreasing size"
        ),
    ]
    master = master_dtype(objects)
    if master is not None:
        evidence.append(Evidence("master_dtype", master, "param_groups of the optimizer"))
    return evidence


def dtypes_by_size(parameters: Iterable[Any]) -> list[str]:
    """Return how `parameters` are stored: a dtype, or bitsandbytes' 4-bit nf4.

    The one with most elements comes first.
    """
    counts: Counter[str] = Counter()
    for parameter in parameters:
        packed = str(getattr(getattr(parameter, "quant_state", None), "quant_type", ""))
        counts[packed or short_dtype(parameter.dtype)] += count_elements(parameter)
    return [dtype for dtype, _ in counts.most_common()]


def count_elements(parameter: Any) -> int:
    """Count the elements of a parameter.

    A parameter that ZeRO-3 partitions counts in full, and a packed one unpacked.
    """
    # bitsandbytes packs two 4-bit weights into a byte.
    state = getattr(parameter, "quant_state", None)
    if state is not None:
        return int(state.shape.numel())
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def master_dtype(objects: TrainerObjects) -> str | None:
    """Return the dtype of the weights that the optimizer updates; DeepSpeed's has copies."""
    optimizer = objects.optimizer
    if optimizer is None:
        return None
    for name in _DEEPSPEED_COPIES:
        groups = getattr(optimizer, name, None)
        if groups:
            return ",".join(dtypes_by_size(groups))
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return ",".join(dtypes_by_size(parameters)) or None


def check_checkpointing(objects: TrainerObjects) -> Evidence:
    """Return the evidence "gradient_checkpointing": whether layers have it on.

    The layers read the same switch in their forward pass.
    """
    switches = []
    for module in objects.model.modules():
        switch = getattr(module, "gradient_checkpointing", None)
        if isinstance(switch, bool):
            switches.append(switch)
    value = None
    if switches:
        value = "true" if any(switches) else "false"
    how = f"{sum(switches)} of {len(switches)} modules have gradient_checkpointing on"
    return Evidence("gradient_checkpointing", value, how)


def check_zero(objects: TrainerObjects, requested: str | None) -> list[Evidence]:
    """Return the evidence "zero_stage" of DeepSpeed's engine, and "zero_offload" if it offloads."""
    engine = objects.engine
    if engine is None:
        absent = Evidence("zero_stage", 0, "no DeepSpeed engine trains")
        return [] if requested in (None, "0") else [absent]
    stage = int(engine.zero_optimization_stage())
    how = "DeepSpeedEngine.zero_optimization_stage()"
    if stage == 3:
        is_partitioned = [hasattr(parameter, "ds_id") for parameter in objects.model.parameters()]
        how = f"{how}; {sum(is_partitioned)} of {len(is_partitioned)} parameters are partitioned"
    evidence = [Evidence("zero_stage", stage, how)]
    offloaded = []
    for name, config in (
        ("optimizer", engine.zero_offload_optimizer()),
        ("parameters", engine.zero_offload_param()),
    ):
        device = str(getattr(config.device, "value", config.device)) if config else "none"
        if device != "none":
            offloaded.append(f"{name} on {device}")
    if offloaded:
        evidence.append(
            Evidence("zero_offload", ", ".join(offloaded), "the configuration of DeepSpeedEngine")
        )
    return evidence


def check_clipping(
    objects: TrainerObjects, trainer_norm: float | None, requested: str | None
) -> Evidence:
    """Return the evidence "grad_clip": the norm that gradients are clipped at.

    `trainer_norm` is the norm that the trainer clipped at before its first optimizer step. Under
    DeepSpeed the engine clips at its own value, whatever the trainer requests
    (accelerate/accelerator.py:3023).
    """
    if objects.engine is not None:
        norm = float(objects.engine.gradient_clipping())
        return judge_clipping(norm, "DeepSpeedEngine.gradient_clipping()", requested)
    how = "Accelerator.clip_grad_norm_() before the first optimizer step"
    return judge_clipping(trainer_norm or 0.0, how, requested)


def judge_clipping(norm: float, how: str, requested: str | None) -> Evidence:
    """Return the evidence "grad_clip" for the norm in effect; 0 means that nothing is clipped."""
    wanted = 0.0 if requested in (None, "none") else float(str(requested))
    evidence = Evidence("grad_clip", repr(norm) if norm > 0 else "none", how)
    return evidence.judge(requested, abs(norm - wanted) <= 1e-9 * max(1.0, wanted))
