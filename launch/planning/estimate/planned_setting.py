"""The setting of a plan whose memory is estimated: its shape, its batch and what its flags choose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launch.config.kinds import Kind
from launch.config.recipe_keys import Precision, Quantization
from launch.config.schema import Device, Family, Mode
from launch.planning.environment import has_expandable_segments
from launch.planning.estimate.cards import card_memory
from launch.planning.estimate.optimizers import ADAMW, OptimizerState, find_optimizer
from launch.planning.estimate.planned_shape import planned_shape, why_shapeless
from launch.planning.estimate.setting import (
    AdapterSetting,
    Attention,
    Generation,
    MemorySetting,
)
from launch.planning.estimate.shape import ModelShape
from launch.planning.flags import values_of
from launch.planning.lora import Lora
from launch.planning.plan import Plan
from launch.planning.rlvr import uses_vllm
from launch.planning.vllm_server import planned_server
from launch.upstream.trainers import OLMO_CORE_SFT

# The values of flags that the estimate supports. Other values need another amount of memory:
# adapters, quantised weights or moments, sequences split over ranks, two forward passes of DPO.
_SUPPORTED_VALUES: Mapping[str, Any] = {
    "use_lora": False,
    "use_qlora": False,
    "sequence_parallel_size": 1,
    "concatenated_forward": True,
    "load_balancing_loss": False,
    "additional_model_arguments": {},
    "use_peft": False,
    "use_dora": False,
    "load_in_4bit": False,
    "load_in_8bit": False,
    "activation_offloading": False,
}
SINGLE_STEP = "olmo_core_single_step"  # the patch (launch/worker/patches/olmo_core_optimizer.py)


# Hidden states of a layer whose parts are checkpointed one by one: what goes into attention, into the
# MLP and into the norm after each. An addition needs nothing for backward, so that what goes into it
# is not kept.
_KEPT_BY_PARTS = 4
# Flags that the estimate supports where recipe.lora sets them.
_ADAPTER_FLAGS = ("use_lora", "use_qlora", "use_peft", "load_in_4bit")
# The kernel that each value of a trainer's flag chooses.
ATTENTION = {
    "torch": Attention.sdpa,
    "sdpa": Attention.sdpa,
    "eager": Attention.eager,
    "flash_2": Attention.flash,
    "flash_3": Attention.flash,
    "flash_attention_2": Attention.flash,
}
_EVALUATED = 8  # samples of a forward pass of an evaluation, by default


class UnknownMemoryError(Exception):
    """The memory of a plan cannot be estimated; the text is the reason."""


def planned_setting(plan: Plan, environ: Mapping[str, str], *, flash: bool) -> MemorySetting:
    """Return the setting of a plan with the longest micro batch that its limit allows.

    `flash` is whether flash-attn is installed for the trainer, which then uses it by default
    (upstream model_utils.py:77-89). Raises UnknownMemoryError.
    """
    _require_covered(plan)
    shape = planned_shape(plan, environ)
    if shape is None:
        why = why_shapeless(plan, environ)
        raise UnknownMemoryError(f"the shape of {plan.inputs.model.reference} is unknown: {why}")
    trainer = plan.config.trainer
    values = values_of(plan.flags)
    limit = _sample_limit(plan)
    is_compiled = plan.parallel.mode == Mode.fsdp
    is_trl = trainer.family == Family.trl
    has_liger = bool(values.get("use_liger_kernel"))
    is_packed = bool(values.get("packing") or values.get("padding_free") or trainer.always_packs)
    # A step is one row of each half; see planning/batches.py.
    is_one_row = is_compiled and is_packed and trainer.kind == Kind.dpo
    generation = None
    if trainer.kind == Kind.rlvr and not uses_vllm(plan.config):
        generation = _generation(plan, environ)
    setting = MemorySetting(
        shape=shape,
        kind=trainer.kind,
        mode=plan.parallel.mode,
        ranks=plan.parallel.width.world_size,
        micro_batch=1 if is_one_row else plan.batch.per_device,
        tokens=1,
        accumulation=1 if is_one_row else plan.batch.accumulation,
        packing=is_packed,
        liger=has_liger,
        fused_loss=has_liger and trainer.fuses_loss and not is_trl,  # TRL has a head in chunks
        checkpointing=_checkpoints_activations(values),
        kept_states=_KEPT_BY_PARTS if _checkpoints_parts(values) else 1,
        attention=_attention(values, flash=flash),
        # open-instruct trains in bf16 whatever is set (finetune.py:596, dpo_tune_cache.py:338).
        precision=plan.parallel.precision if is_trl else Precision.bf16,
        compiled=is_compiled,
        foreach_step=SINGLE_STEP not in plan.patches,
        # olmo_core_finetune shards within a machine, and replicates across machines (:211-218).
        shards=plan.parallel.width.local if trainer.name == OLMO_CORE_SFT else None,
        optimizer=planned_optimizer(plan),
        changes_optimizer=_changes_optimizer(plan),
        can_shard_weights=_can_shard_weights(plan),
        autocast=_has_autocast(plan),
        chunked_head=is_trl,
        reference=_has_live_reference(plan),
        extra_passes=_count_policy_passes(plan) + _count_reference_passes(plan),
        reference_passes=_count_reference_passes(plan),
        generation=generation,
        vllm_gib=_vllm_gib(plan, environ),
        reference_factor=_reference_factor(plan),
        evaluation_factor=_evaluation_factor(plan),
        adapter=_adapter_setting(plan, shape),
        expandable_segments=has_expandable_segments({**environ, **plan.env}),
    )
    # With context parallelism, each rank has its share of a row.
    return replace(setting, tokens=-(-limit * setting.sequences // plan.batch.ranks_per_row))


def _require_covered(plan: Plan) -> None:
    """Check that the estimate covers the plan. Raises UnknownMemoryError."""
    if plan.parallel.width.device != Device.cuda:
        raise UnknownMemoryError("the estimate covers GPUs only")
    if not plan.config.trainer.memory_model:
        raise UnknownMemoryError(f"the estimate does not cover trainer={plan.trainer}")
    values = values_of(plan.flags)
    for name, supported in _SUPPORTED_VALUES.items():
        if plan.lora is not None and name in _ADAPTER_FLAGS:
            continue
        if plan.lora is not None and plan.lora.dora and name == "use_dora":
            continue
        if name in values and values[name] != supported:
            raise UnknownMemoryError(f"the estimate does not cover --{name} {values[name]}")
    if plan.parallel.mode == Mode.fsdp and not values.get("compile_model", True):
        raise UnknownMemoryError("the estimate covers OLMo-core's trainers with torch.compile only")


def planned_optimizer(plan: Plan) -> OptimizerState:
    """Return what the optimizer of a plan keeps. Raises UnknownMemoryError.

    DeepSpeed's ZeRO gives an optimizer flat parts of many weights, for which only AdamW's states
    are known.
    """
    flags = values_of(plan.flags)
    optimizer = find_optimizer(plan.config.trainer, flags)
    if optimizer is None:
        name = flags.get("optim") or flags.get("optimizer_type")
        raise UnknownMemoryError(
            f"the estimate does not cover the optimizer {name} with these flags"
        )
    is_shared = plan.parallel.mode not in (Mode.single, Mode.ddp)
    if is_shared and plan.lora is None and replace(optimizer, fused=True) != ADAMW:
        raise UnknownMemoryError(
            f"the estimate covers AdamW alone with parallel={plan.parallel.mode}"
        )
    return optimizer


def _changes_optimizer(plan: Plan) -> bool:
    """Whether recipe.optimizer can be an 8-bit one: without ZeRO, and with no flag in its way."""
    is_trl = plan.config.trainer.family == Family.trl
    is_free = plan.config.recipe.optimizer is not None or "optim" not in plan.flags
    is_whole = plan.parallel.mode in (Mode.single, Mode.ddp) and plan.lora is None
    return is_trl and is_free and is_whole


def _attention(values: Mapping[str, Any], *, flash: bool) -> Attention:
    requested = str(values.get("attn_implementation"))
    return ATTENTION.get(requested, Attention.flash if flash else Attention.sdpa)


def _can_shard_weights(plan: Plan) -> bool:
    lora = plan.lora
    return lora is None or (lora.quantize == Quantization.none and lora.init is None)


def keeps_fp32_weights(plan: Plan) -> bool:
    """Whether the weights are kept in fp32 whatever the precision: TRL's by default
    (trl/trainer/model_config.py:93), which DeepSpeed turns into bf16.
    """
    if plan.config.trainer.family != Family.trl or plan.parallel.zero_stage:
        return False
    return str(values_of(plan.flags).get("dtype", "float32")) == "float32"


def _has_autocast(plan: Plan) -> bool:
    """Whether fp32 weights are computed with in bf16, as TRL does without DeepSpeed."""
    return plan.lora is None and keeps_fp32_weights(plan)


def _has_live_reference(plan: Plan) -> bool:
    """Whether a reference model is in memory during training, beside the one that is trained."""
    is_precomputed = values_of(plan.flags).get("precompute_ref_log_probs")
    return has_reference(plan) and plan.lora is None and not is_precomputed


def _count_policy_passes(plan: Plan) -> int:
    """Return the number of forward passes without gradients of each micro batch that the trained model
    makes: with KTO's KL term one of mismatched answers (trl/trainer/kto_trainer.py:1379).
    """
    is_kto = plan.config.stage.kind == Kind.kto
    return int(is_kto and values_of(plan.flags).get("loss_type", "kto") == "kto")


def _count_reference_passes(plan: Plan) -> int:
    """Return the number of forward passes of each micro batch that the reference of TRL's DPO or KTO
    makes, as a model of its own or as the model with its adapter switched off: of what is trained on,
    and of what the policy alone passes through as well (kto_trainer.py:1425-1436).

    Upstream's DPO has computed its reference before.
    """
    kind = plan.config.stage.kind
    is_precomputed = values_of(plan.flags).get("precompute_ref_log_probs")
    if kind not in (Kind.dpo, Kind.kto) or is_precomputed or not has_reference(plan):
        return 0
    return 1 + _count_policy_passes(plan)


def _sample_limit(plan: Plan) -> int:
    """Return the number of tokens of the longest sample, for RLVR of prompt and response.

    Raises UnknownMemoryError.
    """
    trainer = plan.config.trainer
    if trainer.kind == Kind.rlvr:
        return plan.config.recipe.max_seq_length
    name = "max_length" if trainer.family == Family.trl else "max_seq_length"
    limit = values_of(plan.flags).get(name)
    if not isinstance(limit, int):
        raise UnknownMemoryError("the length of a sample has no limit")
    return limit


def _checkpoints_activations(values: Mapping[str, Any]) -> bool:
    """Return whether activations are recomputed, by a flag or by OLMo-core's memory budget."""
    budget = values.get("activation_memory_budget", 1)
    return bool(values.get("gradient_checkpointing")) or budget < 1 or _checkpoints_parts(values)


def _checkpoints_parts(values: Mapping[str, Any]) -> bool:
    """Return whether OLMo-core checkpoints the parts of a layer one by one, whatever the budget
    (olmo_core_utils.py:160).
    """
    return values.get("activation_checkpointing_mode") == "selected_modules"


def has_reference(plan: Plan) -> bool:
    """Return whether a second model is in memory: TRL's DPO and KTO have one, and its GRPO if the KL
    divergence counts.
    """
    trainer = plan.config.trainer
    if trainer.kind == Kind.rlvr and not values_of(plan.flags).get("beta"):
        return False
    return trainer.live_reference


def _generation(plan: Plan, environ: Mapping[str, str]) -> Generation:
    """Return what a rank samples at the limit of every length. Raises UnknownMemoryError."""
    recipe = plan.config.recipe
    flags = values_of(plan.flags)
    card = None
    if flags.get("use_transformers_continuous_batching"):
        card = card_memory(plan.config.cluster, environ)
        if card is None or "transformers_continuous_batching_config" in flags:
            raise UnknownMemoryError(
                "continuous batching takes a share of the GPU: set cluster.gpu_memory=GIB"
            )
    response = recipe.response_length or 0
    rows = plan.batch.per_device * plan.batch.accumulation
    return Generation(rows, recipe.max_seq_length - response, response, card.gib if card else None)


def _vllm_gib(plan: Plan, environ: Mapping[str, str]) -> float:
    """Return how many GiB vLLM takes of a GPU that trains, by default 0.3 of its memory
    (trl/trainer/grpo_config.py).

    Raises UnknownMemoryError.
    """
    flags = values_of(plan.flags)
    server = planned_server(plan)
    is_on_card = flags.get("vllm_mode", "colocate") == "colocate"
    if server is not None:
        is_on_card = server.gpus == 0
    if not flags.get("use_vllm") or not is_on_card:
        return 0.0
    card = card_memory(plan.config.cluster, environ)
    if card is None:
        raise UnknownMemoryError("vLLM takes a share of the GPU: set cluster.gpu_memory=GIB")
    return card.gib * float(flags.get("vllm_gpu_memory_utilization", 0.3))


def _reference_factor(plan: Plan) -> float:
    """Return the ratio of samples in a forward pass of TRL's precomputation to those in one of
    training (dpo_trainer.py:1017).
    """
    values = values_of(plan.flags)
    if not plan.config.trainer.live_reference or not values.get("precompute_ref_log_probs"):
        return 0.0
    samples = values.get("precompute_ref_batch_size")
    if not isinstance(samples, int) or samples <= 0:
        return 1.0
    return samples / plan.batch.per_device


def _evaluation_factor(plan: Plan) -> float:
    """Return the ratio of samples in a forward pass of the evaluation on validation data to those in
    one of training; 0 where the trainer evaluates nothing.

    transformers evaluates 8 samples at once by default (training_args.py,
    per_device_eval_batch_size).
    """
    values = values_of(plan.flags)
    if values.get("eval_strategy", "no") == "no":
        return 0.0
    samples = values.get("per_device_eval_batch_size", _EVALUATED)
    return samples / plan.batch.per_device if isinstance(samples, int) else 1.0


def _adapter_setting(plan: Plan, shape: ModelShape) -> AdapterSetting | None:
    lora = plan.lora
    if lora is None:
        return None
    whole = lora.count_whole(shape)
    if whole is None:
        raise UnknownMemoryError(
            "the estimate does not cover a module of recipe.lora.modules_to_save"
        )
    quantized = lora.quantize == Quantization.nf4
    if lora.target_parameters:
        _require_known_weights(plan, lora)
    is_trl = plan.config.trainer.family == Family.trl
    fp32 = not (is_trl and quantized) and plan.parallel.zero_stage != 3
    casts_inputs = fp32 and (
        lora.dropout > 0
        or bool(plan.parallel.zero_stage)
        or plan.parallel.precision != Precision.bf16
    )
    return AdapterSetting(
        parameters=lora.count_parameters(shape),
        rank=lora.rank,
        names=tuple(lora.layer_names(shape.matrices)),
        fp32=fp32,
        casts=casts_inputs,
        quantized=quantized,
        drops_inputs=lora.dropout > 0,
        dora_outputs=lora.count_outputs(shape) if lora.dora else 0,
        whole=whole[0],
        whole_embedding=whole[1],
        other_bytes=4 if quantized and not is_trl else 2,
        weights=tuple(math.prod(shape.matrices[name]) for name in lora.weight_names()),
    )


def _require_known_weights(plan: Plan, lora: Lora) -> None:
    """Check that the estimate covers the parameters that have an adapter. Raises
    UnknownMemoryError.
    """
    key = "recipe.lora.target_parameters"
    unknown = lora.unknown_parameter()
    if unknown is not None:
        raise UnknownMemoryError(
            f"the estimate does not cover '{unknown}' of {key}: it is not the weight of a linear "
            "layer of every block, such as q_proj.weight"
        )
    if lora.quantize != Quantization.none:
        raise UnknownMemoryError(f"the estimate does not cover {key} of 4-bit weights")
    if plan.parallel.zero_stage == 3:
        raise UnknownMemoryError(f"the estimate does not cover {key} under ZeRO-3")
