"""The patches that a run needs. The worker checks the condition and the source of each again before it applies it."""

from __future__ import annotations

from launch import resources
from launch.config.schema import Device, LossAveraging, RecipeConfig
from launch.planning.flags import Flags
from launch.planning.inputs import Inputs
from launch.planning.parallel import Parallel
from launch.worker.patches import PATCHES


def choose_batch_patches(trainer: str, recipe: RecipeConfig) -> tuple[str, ...]:
    """Return the patches for recipe keys, applied before those of `choose_patches`, which report their figures."""
    enabled = {
        "balanced_batches": recipe.balanced,
        "token_weighting": recipe.loss_averaging == LossAveraging.tokens,
    }
    return tuple(name for name, is_enabled in enabled.items() if is_enabled and trainer in PATCHES[name].trainers)


def choose_patches(
    trainer: str, recipe: RecipeConfig, parallel: Parallel, inputs: Inputs, flags: Flags
) -> tuple[str, ...]:
    """Return the ids of `launch.worker.patches`, with `=VALUE` where a patch takes a value, in order of application."""
    on_cpu = parallel.width.device == Device.cpu
    chosen: list[str] = []
    if parallel.zero_stage and on_cpu:
        chosen.append("deepspeed_on_cpu")
    if trainer == "finetune":
        if inputs.model.local:
            chosen.append("finetune_local_model")
        if on_cpu:
            chosen.append("cuda_memory_on_cpu")
        chosen.append("finetune_grad_norm")
    elif trainer == "dpo_tune_cache":
        if parallel.width.world_size == 1 and not parallel.zero_stage:
            chosen.append("dpo_single_process_group")
        chosen.append("dpo_cpu_device" if on_cpu else "dpo_unlisted_gpu")
        chosen += ["dpo_steps", "dpo_reference_cache"]
    elif trainer == "reward_modeling":
        chosen.append("registered_models")
    elif trainer in ("trl_sft", "trl_dpo"):
        chosen += _trl_patches(trainer, recipe, inputs, flags)
    elif trainer in ("dpo", "olmo_core_finetune"):
        chosen += _olmo_core_patches(trainer, on_cpu, flags)
    if trainer in PATCHES["evidence"].trainers:
        chosen.append("evidence")
    return tuple(chosen)


def _trl_patches(trainer: str, recipe: RecipeConfig, inputs: Inputs, flags: Flags) -> list[str]:
    chosen = ["trainer_steps"]
    if recipe.early_stop is not None:
        chosen.append(f"early_stop={recipe.early_stop}")
    if inputs.model.adapter is not None and not inputs.model.build:
        chosen.append("continue_adapter")
    if trainer == "trl_dpo" and flags.chat_template:
        chosen.append(f"trl_chat_template={resources.ROOT}/launch/templates/{flags.chat_template}.jinja")
    if inputs.held_out is not None:
        chosen.append(f"trl_validation={inputs.held_out!r}")  # before the subset, which may repeat rows
    if flags.subset:
        chosen.append(f"trl_subset={flags.subset}")
    if _is_true(flags, "padding_free") and not _is_true(flags, "packing"):
        chosen.append("trl_flatten")
    return chosen


def _olmo_core_patches(trainer: str, on_cpu: bool, flags: Flags) -> list[str]:
    chosen = ["unused_imports"] if trainer == "dpo" else []
    if on_cpu:
        chosen.append("olmo_core_on_cpu")
    if trainer == "dpo":
        chosen += ["dpo_cpu_device" if on_cpu else "dpo_unlisted_gpu", "dpo_reference_cache"]
    if trainer == "olmo_core_finetune":  # always packs
        chosen.append("olmo_core_documents")
    elif _is_true(flags, "packing"):
        chosen += ["olmo_core_documents", "dpo_packed_padding"]
    return [*chosen, "olmo_core_console", "olmo_core_tokens", "olmo_core_evidence"]


def _is_true(flags: Flags, name: str) -> bool:
    return name in flags.flags and flags.flags[name].value is True
