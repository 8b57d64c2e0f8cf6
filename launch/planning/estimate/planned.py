"""The memory setting of a plan: its model's shape, its flags as the trainer sees them, its longest micro batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launch.config.schema import Device, Family, Precision, Quantization
from launch.planning.environment import has_expandable_segments
from launch.planning.estimate.setting import AdapterSetting, Attention, MemorySetting
from launch.planning.estimate.shape import ModelShape, read_shape
from launch.planning.estimate.weights import count_parameters, hub_snapshot
from launch.planning.inputs import model_shape
from launch.planning.plan import Plan

# the values that the estimate supports; others train in another way: adapters, quantised weights or moments, sequences
# split over ranks, DPO's two forward passes in place of one
_SUPPORTED_VALUES: Mapping[str, Any] = {
    **dict.fromkeys(("use_lora", "use_qlora", "use_8bit_optimizer", "dpo_use_paged_optimizer"), False),
    "sequence_parallel_size": 1,
    "concatenated_forward": True,
    "load_balancing_loss": False,
    "additional_model_arguments": {},
    **dict.fromkeys(("use_peft", "use_dora", "load_in_4bit", "load_in_8bit", "activation_offloading"), False),
    "eval_strategy": "no",
}
_OF_ADAPTERS = ("use_lora", "use_qlora", "use_peft", "load_in_4bit")  # supported where recipe.lora sets them
_ATTENTION = {
    **dict.fromkeys(("torch", "sdpa"), Attention.sdpa),
    "eager": Attention.eager,
    **dict.fromkeys(("flash_2", "flash_3", "flash_attention_2"), Attention.flash),
}


class UnknownMemoryError(Exception):
    """The memory of a plan cannot be estimated; the text is the reason."""


def planned_shape(plan: Plan, environ: Mapping[str, str]) -> ModelShape | None:
    """Return the shape of a plan's model, from its local config.json or from its YAML; None where neither has it.

    An adapter and its merged model have the shape of the adapter's base.
    """
    model = plan.inputs.model
    adapter = model.adapter
    local, reference = (adapter.local_base, adapter.base) if adapter else (model.local, model.reference)
    folder = local or hub_snapshot(reference, environ)
    shape = read_shape(folder) if folder else None
    if folder and shape:
        return replace(shape, parameters=count_parameters(folder) or shape.parameters)
    if folder and not model.build:  # another model than the YAML's shape
        return None
    return model_shape(plan.config, plan.inputs)


def planned_setting(plan: Plan, environ: Mapping[str, str], *, flash: bool) -> MemorySetting:
    """Return the setting of a plan with the longest micro batch that its limit allows. Raises UnknownMemoryError.

    `flash`: flash-attn is installed for the trainer, which then uses it by default (upstream model_utils.py:77-89).
    """
    if plan.parallel.width.device != Device.cuda:
        raise UnknownMemoryError("the estimate covers GPUs only")
    if not plan.config.trainer.memory_model:
        raise UnknownMemoryError(f"the estimate does not cover trainer={plan.trainer}")
    for name, supported in _SUPPORTED_VALUES.items():
        if plan.lora is not None and name in _OF_ADAPTERS:
            continue
        if name in plan.flags and plan.flags[name].value != supported:
            raise UnknownMemoryError(f"the estimate does not cover --{name} {plan.flags[name].value}")
    shape = planned_shape(plan, environ)
    if shape is None:
        raise UnknownMemoryError(f"the shape of {plan.inputs.model.reference} is unknown")

    def flag(name: str, default: Any = None) -> Any:
        return plan.flags[name].value if name in plan.flags else default

    trainer = plan.config.trainer
    is_trl = trainer.family == Family.trl
    limit = flag("max_length" if is_trl else "max_seq_length")
    if not isinstance(limit, int):
        raise UnknownMemoryError("the length of a sample has no limit")
    attention = _ATTENTION.get(flag("attn_implementation"), Attention.flash if flash else Attention.sdpa)
    liger = bool(flag("use_liger_kernel", False))
    setting = MemorySetting(
        shape=shape,
        kind=trainer.kind,
        mode=plan.parallel.mode,
        ranks=plan.parallel.width.world_size,
        micro_batch=plan.batch.per_device,
        tokens=1,
        accumulation=plan.batch.accumulation,
        packing=bool(flag("packing", False) or flag("padding_free", False)),
        liger=liger,
        fused_loss=liger and trainer.fuses_loss and not is_trl,  # TRL has a head in chunks
        checkpointing=bool(flag("gradient_checkpointing", False)) or flag("activation_memory_budget", 1) < 1,
        attention=attention,
        precision=plan.parallel.precision
        if is_trl
        else Precision.bf16,  # finetune.py:596 and dpo_tune_cache.py:338, whatever the launcher sets
        fused_optimizer=bool(flag("fused_optimizer", True)),
        autocast=is_trl and plan.lora is None and not plan.parallel.zero_stage and "dtype" not in plan.flags,
        chunked_head=is_trl,
        reference=trainer.live_reference and plan.lora is None and not flag("precompute_ref_log_probs", False),
        reference_factor=_reference_factor(plan),
        adapter=_adapter_setting(plan, shape),
        expandable_segments=has_expandable_segments({**environ, **plan.env}),
    )
    return replace(setting, tokens=limit * setting.sequences)


def _reference_factor(plan: Plan) -> float:
    """Return the samples of a forward pass of TRL's precomputation over those of training (dpo_trainer.py:1017)."""
    values = {name: flag.value for name, flag in plan.flags.items()}
    if not plan.config.trainer.live_reference or not values.get("precompute_ref_log_probs"):
        return 0.0
    samples = values.get("precompute_ref_batch_size")
    return samples / plan.batch.per_device if isinstance(samples, int) and samples > 0 else 1.0


def _adapter_setting(plan: Plan, shape: ModelShape) -> AdapterSetting | None:
    if plan.lora is None:
        return None
    quantized = plan.lora.quantize == Quantization.nf4
    is_trl = plan.config.trainer.family == Family.trl
    return AdapterSetting(
        parameters=plan.lora.count_parameters(shape),
        rank=plan.lora.rank,
        layers=plan.lora.count_layers(shape),
        fp32=not (is_trl and quantized) and plan.parallel.zero_stage != 3,
        quantized=quantized,
        other_bytes=4 if quantized and not is_trl else 2,
    )
