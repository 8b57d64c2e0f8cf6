"""What the worker has to find in effect: the `--expect` pairs of a plan, by the keys of the evidence.

The keys and values are those of launch/worker/expectations.py. A setting that the recipe leaves open
is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launch.config.recipe_keys import (
    KEYS,
    AdapterStart,
    Packing,
    Quantization,
    mapping_of,
    mappings_of,
)
from launch.config.schema import Family, Kind, Launcher, RootConfig, TrainerConfig
from launch.errors import UserError
from launch.planning.mixture import MixtureEntry
from launch.planning.parallel import Parallel
from launch.planning.recipe import flags_of_key, map_recipe_key
from launch.upstream.pin.lock import locked_schema

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
# The rate of a step is expected by these three, and by nothing else: with one of these flags, or with
# a schedule that depends on the loss, none of them is checked.
_SCHEDULE = ("learning_rate", "lr_scheduler", "warmup_ratio")
_SCHEDULE_FLAGS = (
    "final_lr_ratio",
    "lr_scheduler_kwargs",
    "sequence_parallel_size",
    "warm_up_steps",
)
# The order of the rows is expected by the seed alone: with one of these flags it is not checked.
_ORDER_FLAGS = (
    "accelerator_config",
    "data_loader_seed",
    "data_seed",
    "dataset_streaming",
    "ignore_data_skip",
    "max_train_samples",
    "shuffle_dataset",
    "train_sampling_strategy",
)
# With these flags a trainer has other rows than those of the mixture, or does not count them.
_OTHER_ROWS = ("dataset_streaming", "max_train_samples", "dataset_cache_mode")
_MEASURED_SCHEDULES = ("reduce_lr_on_plateau", "greedy")
# The evidence whose requested value is computed here, or by the worker. That of any other key is the
# key's own value.
_COMPUTED = frozenset(
    (
        *("dtype", "packing", "gradient_checkpointing", "clip", "global_batch", "liger"),
        *("balanced", "loss_averaging", "attention", "chat_template"),
        *("learning_rate", "lr_scheduler", "warmup_ratio", "weight_decay", "epochs", "max_steps"),
        *("beta", "temperature", "kl_beta", "clip_range", "response_length", "loss"),
        *("lora", "lora_alpha", "lora_dropout", "lora_targets", "lora_start", "base_dtype"),
        *("samples_per_prompt", "rewards", "seed", "max_seq_length"),
    )
)


def build_expectations(
    config: RootConfig, parallel: Parallel, mixture: Sequence[MixtureEntry] = ()
) -> dict[str, str]:
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
    return {**state, **requested_settings(config, parallel, mixture)}


def requested_settings(
    config: RootConfig, parallel: Parallel, mixture: Sequence[MixtureEntry] = ()
) -> dict[str, str]:
    """Return the settings that the recipe and the data request, by the keys of the evidence.

    A recipe key is left out when the user sets its flag with `flags.NAME=`: the flag wins over the
    recipe.
    """
    requested = _settings_of_recipe(config, parallel)
    shares = _shares_of(config, mixture)
    if shares is not None:
        requested["mixture"] = shares
    if config.trainer.lora_flags.get(parallel.precision, {}).keys() & config.flags.keys():
        requested.pop("base_dtype", None)
    for key, mapping in mappings_of(config.trainer).items():
        proof = KEYS[key].proof
        if proof is not None and flags_of_key(mapping) & config.flags.keys():
            requested.pop(proof.evidence, None)
    if "packing" not in requested:  # it is unknown how many samples a row holds
        requested.pop("global_batch", None)
    if _has_other_schedule(config, requested):
        for key in _SCHEDULE:
            requested.pop(key, None)
    if not config.flags.keys().isdisjoint((*_ORDER_FLAGS, *_SPLIT_SAMPLES)):
        requested.pop("seed", None)
    max_steps = mapping_of(config.trainer, "max_steps")
    if flags_of_key(max_steps) & config.flags.keys():
        requested.pop("epochs", None)
    return requested


def _shares_of(config: RootConfig, mixture: Sequence[MixtureEntry]) -> str | None:
    """Return the share of each data set; None where its rows are not counted before they are loaded.

    That is so of hub data, and of a data set that is named twice; and of built data of which the
    trainer itself holds rows out. Flags of the user's that name data replace the mixture.
    """
    names = [entry.source.reference for entry in mixture]
    is_counted = all(entry.data is not None or entry.source.build for entry in mixture)
    launch = config.trainer.launch
    of_data = {launch[key] for key in ("mixer", "splits", "dataset", "split") if key in launch}
    if not names or not is_counted or len(set(names)) < len(names):
        return None
    if config.data.validation is not None and any(entry.data is None for entry in mixture):
        return None
    if not config.flags.keys().isdisjoint({*of_data, *_OTHER_ROWS}):
        return None
    return ",".join(repr(float(entry.share)) for entry in mixture)


def _has_other_schedule(config: RootConfig, requested: Mapping[str, str]) -> bool:
    """Whether the rate of a step depends on more than the recipe says."""
    is_measured = requested.get("lr_scheduler") in _MEASURED_SCHEDULES
    is_changed = not config.flags.keys().isdisjoint(_SCHEDULE_FLAGS)
    return is_measured or is_changed or not requested.keys() >= set(_SCHEDULE)


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
    requested.update(_optimizer_settings(config))
    requested.update(_objective_settings(config))
    requested["seed"] = str(recipe.seed)
    if flags_of_key(mapping_of(config.trainer, "max_seq_length")):  # RLVR limits prompts before
        requested["max_seq_length"] = str(recipe.max_seq_length)
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
        requested["lora_start"] = recipe.lora.start.value
        if recipe.lora.start == AdapterStart.merged:  # else the adapter keeps its own
            alpha = 2 * recipe.lora.rank if recipe.lora.alpha is None else recipe.lora.alpha
            requested["lora_alpha"] = str(alpha)
            requested["lora_dropout"] = repr(float(recipe.lora.dropout))
            layers = _adapted_layers(recipe.lora.targets)
            if layers is not None:
                requested["lora_targets"] = layers
        requested["base_dtype"] = parallel.precision.value
        if recipe.lora.quantize != Quantization.none:
            requested["base_dtype"] = recipe.lora.quantize.value
        requested["first_update"] = "adapter"
    requested.update(_plain_settings(config))
    return requested


def _adapted_layers(targets: Any) -> str | None:
    """Return `all-linear`, or the names of the layers in order, without those of their modules.

    None for an expression that several names match.
    """
    names = targets if isinstance(targets, list) else [str(targets)]
    if names == ["all-linear"]:
        return "all-linear"
    layers = {name.rpartition(".")[2] for name in names}
    return ",".join(sorted(layers)) if all(map(str.isidentifier, layers)) else None


def _plain_settings(config: RootConfig) -> dict[str, str]:
    """Return the settings whose evidence is compared with the value of the recipe key itself.

    A key that has its default is not checked.
    """
    requested = {}
    for key, row in KEYS.items():
        proof = row.proof
        if proof is None or proof.evidence in _COMPUTED or row.unproven(config.trainer) is not None:
            continue
        section, _, name = key.rpartition(".")
        value = getattr(config.recipe.lora if section else config.recipe, name)
        if value != row.default:
            requested[proof.evidence] = repr(value) if isinstance(value, float) else _as_text(value)
    return requested


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _optimizer_settings(config: RootConfig) -> dict[str, str]:
    """Return the rates, the weight decay and the steps that the recipe requests.

    What it leaves open is the trainer's default, as the lock has it; of a trainer that is not in
    the lock it is not checked.
    """
    recipe = config.recipe
    requested = {"learning_rate": repr(recipe.learning_rate), "lr_scheduler": recipe.lr_scheduler}
    for key in ("warmup_ratio", "weight_decay"):
        value = getattr(recipe, key)
        if value is None:
            value = _default_of(config.trainer, key)
        if value is not None:
            requested[key] = repr(float(value))
    if recipe.max_steps is not None:
        requested["max_steps"] = str(recipe.max_steps)
    else:
        requested["epochs"] = str(recipe.epochs)
    return requested


def _objective_settings(config: RootConfig) -> dict[str, str]:
    """Return the loss and its numbers, as far as the recipe has them."""
    recipe = config.recipe
    numbers = {
        "beta": recipe.beta,
        "temperature": recipe.temperature,
        "kl_beta": recipe.kl_beta,
        "clip_range": recipe.clip,
    }
    requested = {name: repr(float(value)) for name, value in numbers.items() if value is not None}
    if recipe.response_length is not None:
        requested["response_length"] = str(recipe.response_length)
    mapping = mapping_of(config.trainer, "loss")
    if recipe.loss is not None and mapping:
        # the trainer's own name of the loss
        (name,) = map_recipe_key("loss", recipe.loss, mapping, None, config.trainer.name).values()
        requested["loss"] = ",".join(name) if isinstance(name, list) else str(name)
    return requested


def _default_of(trainer: TrainerConfig, key: str) -> float | None:
    """Return the value that a trainer gives a recipe key that is left open; None if it is unknown.

    A trainer without warm-up has no flag for it, and 0 steps of it.
    """
    entry = mapping_of(trainer, key)
    if not isinstance(entry, str):
        return 0.0 if key == "warmup_ratio" else None
    try:
        default = locked_schema(trainer.name).fields[entry].default
    except (UserError, LookupError):  # a trainer of the user's own
        return None
    return default if isinstance(default, int | float) else None


def allowed_expectations(config: RootConfig) -> tuple[str, ...]:
    """Return the ids in `allow` that turn a failed expectation into a warning."""
    allowed = [name for name in config.allow if name.startswith(("refuted_", "unproven_"))]
    if "data_small_epoch" in config.allow:  # it is what the plan reports of local data
        allowed.append("refuted_global_batch")
    return tuple(dict.fromkeys(allowed))
