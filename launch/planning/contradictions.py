"""Settings that contradict each other, whatever the trainer: Liger, the dealing of samples to ranks."""

from __future__ import annotations

import json
import re

from launch.config.schema import Device, Family, Kind, Launcher, LossAveraging, Packing, RootConfig
from launch.errors import Problem, UserError
from launch.planning.parallel import Parallel

_FUSED_LOSS = re.compile(r"fused_linear_cross_entropy\W+true", re.IGNORECASE)


def check_contradictions(config: RootConfig, parallel: Parallel) -> None:
    """Raises UserError: liger_needs_gpu, flash_needs_gpu, liger_dpo_loss, and those of `check_evaluation` and
    `check_dealing`."""
    if config.recipe.liger and parallel.width.device == Device.cpu:
        message = "Liger's kernels are written in Triton, which does not run on a CPU: the trainer would fail at load"
        raise UserError(Problem("liger_needs_gpu", message, "recipe.liger", "set recipe.liger=false, or gpus=N"))
    attention, trainer = config.recipe.attention, config.trainer
    is_flash = attention.startswith("flash_") and attention in trainer.recipe.get("attention", ())
    if is_flash and parallel.width.device == Device.cpu and trainer.launcher == Launcher.accelerate:
        message = f"recipe.attention={attention} does not run on a CPU: the model would fail to load"
        raise UserError(Problem("flash_needs_gpu", message, "recipe.attention", "set recipe.attention=sdpa, or gpus=N"))
    _check_fused_dpo(config)
    check_evaluation(config)
    check_dealing(config)


def _check_fused_dpo(config: RootConfig) -> None:
    """TRL's DPO computes its loss in a fused head of its own; `recipe.liger` changes the layers alone."""
    kernels = config.flags.get("liger_kernel_config")
    text = json.dumps(kernels) if isinstance(kernels, dict) else str(kernels)
    if config.trainer.family != Family.trl or config.stage.kind != Kind.dpo or not _FUSED_LOSS.search(text):
        return
    cached = " and precomputed reference log-probs" if config.flags.get("precompute_ref_log_probs") else ""
    message = f"trl_dpo has no Liger loss: its fused head{cached} would be dropped (trl/trainer/dpo_trainer.py:947)"
    cure = "remove fused_linear_cross_entropy; recipe.liger=true has Liger's layers"
    raise UserError(Problem("liger_dpo_loss", message, "flags.liger_kernel_config", cure))


def check_evaluation(config: RootConfig) -> None:
    """Check that `evaluate=true` has a model that generates text. Raises UserError: not_generative,
    no_transformers_model."""
    if not config.evaluate:
        return
    if config.stage.kind == Kind.rm:
        message = "a reward model generates no text, so evaluate=true cannot score it"
        raise UserError(Problem("not_generative", message, "evaluate", "remove it"))
    if not config.trainer.leaves.endswith("config.json"):
        message = f"{config.trainer.name} writes checkpoints of its own, which evaluate=true cannot load"
        raise UserError(Problem("no_transformers_model", message, "evaluate", "remove it, or set another trainer="))


def check_dealing(config: RootConfig) -> None:
    """Check what the patches balanced_batches and token_weighting can't do; the worker refuses it too.

    Raises UserError: balanced_sequence_parallel, weighted_auxiliary_loss.
    """
    weights_tokens = config.recipe.loss_averaging == LossAveraging.tokens
    key = "recipe.balanced" if config.recipe.balanced else "recipe.loss_averaging" if weights_tokens else None
    sequence_parallel = config.flags.get("sequence_parallel_size")
    if key and isinstance(sequence_parallel, int) and sequence_parallel > 1:
        splits = f"flags.sequence_parallel_size={sequence_parallel} splits each sample"
        message = f"{key} distributes whole samples over the ranks, but {splits}"
        raise UserError(Problem("balanced_sequence_parallel", message, key, "remove one of the two"))
    if weights_tokens and config.flags.get("load_balancing_loss") is True:
        message = "the load-balancing loss is added to the loss and is not a mean over tokens"
        raise UserError(Problem("weighted_auxiliary_loss", message, "recipe.loss_averaging", "remove one of the two"))


def contradiction_warnings(config: RootConfig) -> tuple[Problem, ...]:
    """Return the warning bins_change_the_batch where it applies."""
    if config.recipe.packing != Packing.bins:
        return ()
    message = "packing into bins fills a token budget, so the number of samples per step is not the global batch size"
    cure = "recipe.packing=flatten keeps the global batch size"
    return (Problem("bins_change_the_batch", message, "recipe.packing", cure),)
