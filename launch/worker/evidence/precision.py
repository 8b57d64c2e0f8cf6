"""Checks how the trainer computes: dtypes, activation checkpointing, ZeRO, gradient clipping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from . import Evidence
from .trainer_objects import TrainerObjects

_SHORT_NAMES = {"torch.bfloat16": "bf16", "torch.float32": "fp32", "torch.float16": "fp16"}


def short_dtype(dtype: object) -> str:
    """Return `bf16` for `torch.bfloat16`; a dtype without a short name keeps torch's name."""
    return _SHORT_NAMES.get(str(dtype), str(dtype).removeprefix("torch."))


def check_dtypes(objects: TrainerObjects) -> list[Evidence]:
    """ "dtype" (what the matrix products are computed in), "parameter_dtype", "master_dtype" (of
    the optimizer).
    """
    # the storage dtype of quantised weights says nothing about the computation, and an adapter has
    # its own dtype
    weights = (p for p in objects.model.parameters() if getattr(p, "quant_state", None) is None)
    types = dtypes_by_size(p for p in weights if p.is_floating_point())
    if not types:
        return [Evidence("dtype", None, "no parameters")]
    mixed = str(getattr(objects.accelerator, "mixed_precision", "no"))
    autocast = mixed == "bf16" and types[0] == "fp32" and objects.engine is None
    how = "autocast over fp32 parameters" if autocast else "the model's parameters"
    computed = "bf16" if autocast else types[0]
    findings = [
        Evidence("dtype", computed, how),
        Evidence("parameter_dtype", ",".join(types), "the model's parameters, by decreasing size"),
    ]
    master = _master_dtype(objects)
    if master is not None:
        findings.append(Evidence("master_dtype", master, "what the optimizer updates"))
    return findings


def dtypes_by_size(parameters: Iterable[Any]) -> list[str]:
    """Return how `parameters` are stored, by decreasing number of elements: a dtype, or
    bitsandbytes' 4-bit nf4.
    """
    counts: Counter[str] = Counter()
    for parameter in parameters:
        packed = str(getattr(getattr(parameter, "quant_state", None), "quant_type", ""))
        counts[packed or short_dtype(parameter.dtype)] += count_elements(parameter)
    return [dtype for dtype, _ in counts.most_common()]


def count_elements(parameter: Any) -> int:
    """Count the elements of a parameter; one that ZeRO-3 partitions counts in full, a packed one
    unpacked.
    """
    # bitsandbytes packs two 4-bit weights into a byte
    state = getattr(parameter, "quant_state", None)
    if state is not None:
        return int(state.shape.numel())
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def _master_dtype(objects: TrainerObjects) -> str | None:
    """Return the dtype of the weights that the optimizer updates; DeepSpeed keeps its own
    copies.
    """
    optimizer = objects.optimizer
    if optimizer is None:
        return None
    for name in (
        "fp32_partitioned_groups_flat",
        "single_partition_of_fp32_groups",
        "fp32_groups_flat_partition",
    ):
        # ZeRO-3; ZeRO-1 and ZeRO-2; the bf16 optimizer without ZeRO
        groups = getattr(optimizer, name, None)
        if groups:
            return ",".join(dtypes_by_size(groups))
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return ",".join(dtypes_by_size(parameters)) or None


def check_checkpointing(objects: TrainerObjects) -> Evidence:
    """ "gradient_checkpointing": on when layers have it on, as they themselves read it in their
    forward.
    """
    switches = []
    for module in objects.model.modules():
        switch = getattr(module, "gradient_checkpointing", None)
        if isinstance(switch, bool):
            switches.append(switch)
    value = None
    if switches:
        value = "true" if any(switches) else "false"
    how = f"{sum(switches)} of {len(switches)} modules have it on"
    return Evidence("gradient_checkpointing", value, how)


def check_zero(objects: TrainerObjects, requested: str | None) -> list[Evidence]:
    """ "zero_stage" of the engine that trains, and "zero_offload" where it offloads."""
    engine = objects.engine
    if engine is None:
        absent = Evidence("zero_stage", 0, "no DeepSpeed engine trains")
        return [] if requested in (None, "0") else [absent]
    stage = int(engine.zero_optimization_stage())
    how = "the DeepSpeed engine"
    if stage == 3:
        is_partitioned = [hasattr(parameter, "ds_id") for parameter in objects.model.parameters()]
        how = (
            f"the DeepSpeed engine; {sum(is_partitioned)} of {len(is_partitioned)} parameters "
            "are partitioned"
        )
    findings = [Evidence("zero_stage", stage, how)]
    places = {
        "optimizer": engine.zero_offload_optimizer(),
        "parameters": engine.zero_offload_param(),
    }
    devices = {
        name: str(getattr(config.device, "value", config.device))
        for name, config in places.items()
        if config
    }
    offloaded = [f"{name} on {device}" for name, device in devices.items() if device != "none"]
    if offloaded:
        findings.append(Evidence("zero_offload", ", ".join(offloaded), "the DeepSpeed engine"))
    return findings


def check_clipping(
    objects: TrainerObjects, trainer_norm: float | None, requested: str | None
) -> Evidence:
    """ "clip": the norm that gradients are clipped at, "none" without clipping.

    `trainer_norm`: the norm that the trainer clipped at before its first optimizer step. Under
    DeepSpeed the engine clips at its own value, whatever the trainer requests
    (accelerate/accelerator.py:3023).
    """
    if objects.engine is not None:
        return judge_clipping(
            float(objects.engine.gradient_clipping()), "the DeepSpeed engine", requested
        )
    return judge_clipping(
        trainer_norm or 0.0, "the trainer's own call before its first optimizer step", requested
    )


def judge_clipping(norm: float, how: str, requested: str | None) -> Evidence:
    """Return the finding "clip" for the norm in effect; 0 means that nothing is clipped."""
    wanted = 0.0 if requested in (None, "none") else float(str(requested))
    finding = Evidence("clip", repr(norm) if norm > 0 else "none", how)
    return finding.judge(requested, abs(norm - wanted) <= 1e-9 * max(1.0, wanted))
