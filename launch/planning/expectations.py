"""What the worker has to find in effect: the `--expect` pairs of a plan, by the keys of the evidence.

The keys and values are those of launch/worker/expectations.py. A setting that the recipe leaves open
is not checked.
"""

from __future__ import annotations

from launch.config.schema import Family, Kind, Launcher, Packing, Quantization, RootConfig
from launch.planning.parallel import Parallel
from launch.planning.recipe import flags_of_key

_LIGER_LAYERS = "rms_norm,rope,swiglu"
# open-instruct's SFT fuses the loss too (finetune.py:586). Its DPO needs the logits and sets
# fused_linear_cross_entropy=False (dpo_tune_cache.py:328), and TRL has a fused head of its own
# (sft_trainer.py:1140).
_LIGER_FUSED = f"{_LIGER_LAYERS},fused_linear_cross_entropy"
# With these flags the sequences of a rank's forward passes are not its samples: several ranks share
# one, or a flat row is padded with positions that begin nothing.
_SPLIT_SAMPLES = (
    "sequence_parallel_size",
    "cp_degree",
    "context_parallel_degree",
    "pad_to_multiple_of",
)
# The key of the evidence by the key of the recipe, where they differ.
_NAMES_OF_EVIDENCE = {"max_grad_norm": "clip", "lora.rank": "lora", "lora.quantize": "base_dtype"}


def build_expectations(config: RootConfig, parallel: Parallel) -> dict[str, str]:
    """Return the `--expect` pairs of a plan: accelerate's state, and the settings that show in the
    model, the optimizer and the batches.

    OLMo-core's trainers, which torchrun starts, have no Accelerator: only their ranks and device
    are checked.
    """
    if config.trainer.launcher == Launcher.ray:
        return {}
    state = parallel.expectations()
    if config.trainer.launcher == Launcher.torchrun:
        state = {name: state[name] for name in ("world_size", "device")}
    return {**state, **requested_settings(config, parallel)}


def requested_settings(config: RootConfig, parallel: Parallel) -> dict[str, str]:
    """Return the settings that the recipe requests, by the keys of the evidence.

    A recipe key is left out when the user sets its flag with `flags.NAME=`: the flag wins over the
    recipe.
    """
    requested = _settings_of_recipe(config, parallel)
    if config.trainer.lora_flags.get(parallel.precision, {}).keys() & config.flags.keys():
        requested.pop("base_dtype", None)
    for key, entry in config.trainer.recipe.items():
        if flags_of_key(entry) & config.flags.keys():
            requested.pop(_NAMES_OF_EVIDENCE.get(key, key), None)
    if "packing" not in requested:  # it is unknown how many samples a row holds
        requested.pop("global_batch", None)
    return requested


def overridden_settings(config: RootConfig, parallel: Parallel) -> dict[str, str]:
    """Return the settings of the recipe that are not checked, because a flag of the user's
    overrides them.
    """
    checked = requested_settings(config, parallel)
    settings = _settings_of_recipe(config, parallel)
    return {name: value for name, value in settings.items() if name not in checked}


def _settings_of_recipe(config: RootConfig, parallel: Parallel) -> dict[str, str]:
    """Return the settings of the recipe, by the keys of the evidence."""
    recipe = config.recipe
    requested = {
        "dtype": parallel.precision.value,
        "packing": recipe.packing.value,
        "gradient_checkpointing": str(recipe.gradient_checkpointing).lower(),
        "clip": repr(float(recipe.max_grad_norm)) if recipe.max_grad_norm else "none",
    }
    if recipe.packing != Packing.bins and config.flags.keys().isdisjoint(_SPLIT_SAMPLES):
        unit = {Kind.sft: "samples", Kind.rlvr: "completions"}.get(config.data.kind, "pairs")
        requested["global_batch"] = f"{recipe.global_batch_size} {unit}"
    if recipe.liger:
        fuses = config.trainer.fuses_loss and config.trainer.family == Family.open_instruct
        requested["liger"] = _LIGER_FUSED if fuses else _LIGER_LAYERS
    if recipe.balanced:
        requested["balanced"] = "true"
    if recipe.loss_averaging is not None:
        requested["loss_averaging"] = recipe.loss_averaging.value
    if recipe.attention != "auto":
        requested["attention"] = recipe.attention
    if recipe.chat_template:
        requested["chat_template"] = recipe.chat_template
    if recipe.lora.rank is not None:
        requested["lora"] = str(recipe.lora.rank)
        requested["base_dtype"] = parallel.precision.value
        if recipe.lora.quantize != Quantization.none:
            requested["base_dtype"] = recipe.lora.quantize.value
        requested["first_update"] = "adapter"
    return requested


def allowed_expectations(config: RootConfig) -> tuple[str, ...]:
    """Return the ids in `allow` that turn a failed expectation into a warning."""
    allowed = [name for name in config.allow if name.startswith(("refuted_", "unproven_"))]
    if "data_small_epoch" in config.allow:  # it is what the plan reports of local data
        allowed.append("refuted_global_batch")
    return tuple(dict.fromkeys(allowed))
