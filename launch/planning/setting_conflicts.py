"""Finds settings of a configuration that contradict each other, before anything runs."""

from __future__ import annotations

import json
import re

from launch.config.origins import Origins
from launch.config.recipe_keys import Packing, mapping_of
from launch.config.schema import Device, Family, Kind, Launcher, ModelConfig, RootConfig
from launch.errors import refusal
from launch.planning.estimate.shape import shape_from_yaml, with_parameters
from launch.planning.loss import EQUAL_WEIGHTS
from launch.planning.parallel import Parallel
from launch.worker.finding import Finding, Fix

# Relative difference of two numbers of parameters that is tolerated. Biases and further norms, which
# are not counted, are far less.
_SHAPE_TOLERANCE = 0.05
_FUSED_LOSS = re.compile(r"fused_linear_cross_entropy\W+true", re.IGNORECASE)


def check_contradictions(config: RootConfig, parallel: Parallel) -> None:
    """Check that settings of the configuration do not contradict each other.

    Raises UserError: liger_needs_gpu, flash_needs_gpu, liger_dpo_loss, epochs_in_schedule, and those
    of `check_evaluation` and `check_dealing`.
    """
    trainer = config.trainer
    is_on_cpu = parallel.width.device == Device.cpu
    if config.recipe.liger and is_on_cpu:
        message = (
            "Liger's kernels are written in Triton, which does not run on a CPU: the trainer "
            "would fail at load"
        )
        cure = Fix.of("set {0}, or {1}", "recipe.liger=false", "gpus=N")
        raise refusal("liger_needs_gpu", message, "recipe.liger", cure)
    attention = config.recipe.attention
    supported = mapping_of(trainer, "attention") or ()
    is_flash = attention.startswith("flash_") and attention in supported
    if is_flash and is_on_cpu and trainer.launcher == Launcher.accelerate:
        message = (
            f"recipe.attention={attention} does not run on a CPU: the model would fail to load"
        )
        cure = Fix.of("set {0}, or {1}", "recipe.attention=sdpa", "gpus=N")
        raise refusal("flash_needs_gpu", message, "recipe.attention", cure)
    _check_fused_dpo(config)
    _check_reward_schedule(config)
    check_evaluation(config)
    check_dealing(config)


def _check_fused_dpo(config: RootConfig) -> None:
    """Refuse Liger's fused loss for TRL's DPO, which computes its loss in a fused head of its own.

    `recipe.liger` replaces only the layers. Raises UserError: liger_dpo_loss.
    """
    if config.trainer.family != Family.trl or config.stage.kind != Kind.dpo:
        return
    kernels = config.flags.get("liger_kernel_config")
    text = json.dumps(kernels) if isinstance(kernels, dict) else str(kernels)
    if not _FUSED_LOSS.search(text):
        return
    dropped = "its fused head"
    if config.flags.get("precompute_ref_log_probs"):
        dropped += " and precomputed reference log-probs"
    message = (
        f"trl_dpo has no Liger loss: {dropped} would be dropped (trl/trainer/dpo_trainer.py:947)"
    )
    cure = "remove fused_linear_cross_entropy; recipe.liger=true has Liger's layers"
    raise refusal("liger_dpo_loss", message, "flags.liger_kernel_config", cure)


def _check_reward_schedule(config: RootConfig) -> None:
    """Refuse a falling schedule over several epochs of open-instruct's reward model.

    The script counts the epochs twice: `total_episodes` has them (reward_modeling.py:287), and the
    steps of the schedule are multiplied by them once more (reward_modeling.py:314). Raises
    UserError: epochs_in_schedule.
    """
    recipe = config.recipe
    is_script = config.trainer.entry.endswith("reward_modeling.py")
    if not is_script or recipe.epochs == 1 or recipe.lr_scheduler.startswith("constant"):
        return
    message = (
        f"reward_modeling.py counts the {recipe.epochs} epochs twice in its schedule, so the "
        f"learning rate would end after 1/{recipe.epochs} of it (reward_modeling.py:287, 314)"
    )
    cure = Fix.of("set {0}, or {1}", "recipe.epochs=1", "recipe.lr_scheduler=constant")
    raise refusal("epochs_in_schedule", message, "recipe.epochs", cure)


def check_evaluation(config: RootConfig) -> None:
    """Check that `evaluate=true` has a model that generates text.

    Raises UserError: not_generative, no_transformers_model.
    """
    if not config.evaluate:
        return
    if config.stage.kind == Kind.rm:
        message = "a reward model generates no text, so evaluate=true cannot score it"
        raise refusal("not_generative", message, "evaluate", Fix.of("remove it", "~evaluate"))
    if not config.trainer.output_glob.endswith("config.json"):
        message = (
            f"{config.trainer.name} writes checkpoints of its own, which evaluate=true cannot load"
        )
        cure = Fix.of("remove it, or set another {1}", "~evaluate", "trainer=")
        raise refusal("no_transformers_model", message, "evaluate", cure)


def check_dealing(config: RootConfig) -> None:
    """Refuse settings that the patches balanced_batches, token_weighting and token_sums do not
    support. The worker refuses them too.

    Raises UserError: balanced_sequence_parallel, weighted_auxiliary_loss.
    """
    weights_tokens = config.recipe.loss_averaging in EQUAL_WEIGHTS
    sequence_parallel = config.flags.get("sequence_parallel_size")
    splits_samples = isinstance(sequence_parallel, int) and sequence_parallel > 1
    if splits_samples and (config.recipe.balanced or weights_tokens):
        key = "recipe.balanced" if config.recipe.balanced else "recipe.loss_averaging"
        splits = f"flags.sequence_parallel_size={sequence_parallel} splits each sample"
        message = f"{key} distributes whole samples over the ranks, but {splits}"
        raise refusal("balanced_sequence_parallel", message, key, "remove one of the two")
    if weights_tokens and config.flags.get("load_balancing_loss") is True:
        message = "the load-balancing loss is added to the loss and is not a mean over tokens"
        cure = Fix.of(
            "set {0}, or remove {1}",
            "recipe.loss_averaging=micro_batch_means",
            "~flags.load_balancing_loss",
        )
        raise refusal("weighted_auxiliary_loss", message, "recipe.loss_averaging", cure)


def contradiction_warnings(config: RootConfig) -> tuple[Finding, ...]:
    """Return the warning bins_change_the_batch where it applies."""
    if config.recipe.packing != Packing.bins:
        return ()
    message = (
        "packing into bins fills a token budget, so the number of samples per step is not "
        "the global batch size"
    )
    cure = Fix.of("{0} keeps the global batch size", "recipe.packing=flatten")
    return (Finding.warning("bins_change_the_batch", message, "recipe.packing", cure),)


def shape_warnings(model: ModelConfig, origins: Origins) -> tuple[Finding, ...]:
    """Return shape_mismatch if the sizes in a model's YAML result in another number of parameters
    than the YAML gives. Memory and time are predicted from both.
    """
    shape = None if model.path else shape_from_yaml(model.shape)
    if shape is None:
        return ()
    given, counted = shape.parameters, with_parameters(shape).parameters
    if abs(counted / given - 1) <= _SHAPE_TOLERANCE:
        return ()
    message = (
        f"the sizes in model.shape make {counted / 1e9:.3g}e9 parameters, but its parameters are "
        f"{given / 1e9:.3g}e9"
    )
    where = origins.of("model.shape.parameters").where
    cure = "compare head_dim, intermediate and tied_embeddings with the model's config.json"
    return (Finding.warning("shape_mismatch", message, where, cure),)
