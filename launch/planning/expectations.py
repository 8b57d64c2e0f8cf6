"""What the worker has to find in effect: the `--expect` pairs of a plan, by the keys of the evidence.

The keys and values are those of launch/worker/expectations.py. A setting that the recipe leaves open
is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launch.config.kinds import KINDS
from launch.config.recipe_key import RecipeKey, Requested
from launch.config.recipe_keys import (
    KEYS,
    AdapterStart,
    Packing,
    Quantization,
    recipe_mapping,
    recipe_mappings,
)
from launch.config.schema import Family, Launcher, RootConfig, TrainerConfig
from launch.errors import UserError
from launch.planning.batch_split import CONTEXT_FLAG
from launch.planning.learnt import learning_flags, requested_learning
from launch.planning.lora import requested_lora
from launch.planning.mixture import MixtureEntry
from launch.planning.parallel import Parallel
from launch.planning.recipe import flags_of_key, map_recipe_key
from launch.upstream.pin.lock import locked_schema
from launch.upstream.trainers import OLMO_CORE_SFT
from launch.worker.trl_options import LEARNS_TEXT
from launch.worker.wording import count_of

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
    learnt = requested_learning(config)
    is_cut = (
        learnt == LEARNS_TEXT and config.recipe.packing != Packing.bins
    )  # `text_cut` is allowed
    is_overridden = bool(learning_flags(config).keys() & config.flags.keys())
    if learnt is not None and not is_cut and not is_overridden:
        requested["train_on"] = learnt
    shares = _shares_of(config, mixture)
    if shares is not None:
        requested["mixture"] = shares
    if config.trainer.lora_flags.get(parallel.precision, {}).keys() & config.flags.keys():
        requested.pop("base_dtype", None)
    for key, mapping in recipe_mappings(config.trainer).items():
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
    degree = config.flags.get(CONTEXT_FLAG)
    if config.trainer.name == OLMO_CORE_SFT and isinstance(degree, int) and degree > 1:
        requested["context_parallel"] = str(degree)
    max_steps = recipe_mapping(config.trainer, "max_steps")
    if flags_of_key(max_steps) & config.flags.keys():
        requested.pop("epochs", None)
    return requested


def _shares_of(config: RootConfig, mixture: Sequence[MixtureEntry]) -> str | None:
    """Return the share of each data set; None where its rows are not counted before they are loaded.

    This holds for hub data, for a data set that is named twice, and for built data if the trainer
    itself holds out rows. Flags of the user's own that name data replace the mixture.
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
    """Whether the rate of a step depends on more than what the recipe sets."""
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
    requested = {}
    for key, row in KEYS.items():
        if row.proof is None or row.unproven(config.trainer) is not None:
            continue
        value = _requested_value(key, row, config, parallel)
        if value is not None:
            requested[row.proof.evidence] = value
    if config.recipe.lora.rank is not None:
        requested["first_update"] = "adapter"
    return requested


def _requested_value(
    key: str, row: RecipeKey, config: RootConfig, parallel: Parallel
) -> str | None:
    """Return what the evidence of a key is compared with; None if it is not checked."""
    assert row.proof is not None
    if row.proof.requested == Requested.elsewhere:
        return None
    if row.proof.requested == Requested.computed:
        return COMPUTED[key](config, parallel)
    value = _value_of(config, key)
    if row.proof.requested == Requested.if_set and value == row.default:
        return None
    return _as_evidence(value)


def _value_of(config: RootConfig, key: str) -> Any:
    section, _, name = key.rpartition(".")
    return getattr(config.recipe.lora if section else config.recipe, name)


def _as_evidence(value: Any) -> str:
    """Return a value as the worker writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


def _grad_clip(config: RootConfig, _: Parallel) -> str:
    norm = config.recipe.max_grad_norm
    return repr(float(norm)) if norm else "none"


def _global_batch(config: RootConfig, _: Parallel) -> str | None:
    if config.recipe.packing == Packing.bins:
        return None
    if not config.flags.keys().isdisjoint(_SPLIT_SAMPLES):
        return None
    return count_of(config.recipe.global_batch_size, KINDS[config.data.kind].unit)


def _global_tokens(config: RootConfig, _: Parallel) -> str | None:
    """Return the tokens of a step whose rows are all max_seq_length long, padding included."""
    if config.trainer.name != OLMO_CORE_SFT:
        return None
    if not config.flags.keys().isdisjoint((*_SPLIT_SAMPLES, "max_seq_length")):
        return None
    return f"{config.recipe.global_batch_size * config.recipe.max_seq_length} tokens"


def _liger(config: RootConfig, _: Parallel) -> str | None:
    if not config.recipe.liger:
        return None
    fuses = config.trainer.fuses_loss and config.trainer.family == Family.open_instruct
    return _LIGER_FUSED if fuses else _LIGER_LAYERS


def _number_or_default(key: str) -> Compute:
    """Return what computes a number that is the trainer's default where the recipe leaves it open.
    The default is that of the lock; of a trainer that is not in the lock it is not checked.
    """

    def compute(config: RootConfig, _: Parallel) -> str | None:
        value = getattr(config.recipe, key)
        if value is None:
            value = _default_of(config.trainer, key)
        return None if value is None else repr(float(value))

    return compute


def _epochs(config: RootConfig, _: Parallel) -> str | None:
    return str(config.recipe.epochs) if config.recipe.max_steps is None else None


def _max_steps(config: RootConfig, _: Parallel) -> str | None:
    return None if config.recipe.max_steps is None else str(config.recipe.max_steps)


def _loss(config: RootConfig, _: Parallel) -> str | None:
    """Return the trainer's own name of the loss."""
    mapping = recipe_mapping(config.trainer, "loss")
    if config.recipe.loss is None or not mapping:
        return None
    flags = map_recipe_key("loss", config.recipe.loss, mapping, None, config.trainer.name)
    (name,) = flags.values()
    return ",".join(name) if isinstance(name, list) else str(name)


def _of_adapter(compute: Compute) -> Compute:
    """Return what computes a setting of an adapter; None without one."""

    def compute_with_adapter(config: RootConfig, parallel: Parallel) -> str | None:
        return None if config.recipe.lora.rank is None else compute(config, parallel)

    return compute_with_adapter


def _of_new_adapter(compute: Compute) -> Compute:
    """Return what computes a setting of a new adapter: one that is trained on keeps its own."""

    def compute_if_new(config: RootConfig, parallel: Parallel) -> str | None:
        is_new = config.recipe.lora.start == AdapterStart.merged
        return compute(config, parallel) if is_new else None

    return _of_adapter(compute_if_new)


def _dtype(_: RootConfig, parallel: Parallel) -> str:
    return parallel.precision.value


def _lora(config: RootConfig, _: Parallel) -> str:
    return str(config.recipe.lora.rank)


def _lora_dropout(config: RootConfig, _: Parallel) -> str:
    return repr(float(config.recipe.lora.dropout))


def _lora_alpha(config: RootConfig, _: Parallel) -> str | None:
    lora = requested_lora(config)
    return None if lora is None else str(lora.alpha)


def _lora_targets(config: RootConfig, _: Parallel) -> str | None:
    """Return `all-linear`, or the names of the layers in order, without those of their modules.

    None for an expression that several names match.
    """
    targets = config.recipe.lora.targets
    names = targets if isinstance(targets, list) else [str(targets)]
    if names == ["all-linear"]:
        return "all-linear"
    layers = {name.rpartition(".")[2] for name in names}
    return ",".join(sorted(layers)) if all(map(str.isidentifier, layers)) else None


def _lora_start(config: RootConfig, _: Parallel) -> str | None:
    """Return whether the adapter is new; None where its start is not zero: `lora_init` shows that."""
    return config.recipe.lora.start.value if config.recipe.lora.init is None else None


def _lora_dora(config: RootConfig, _: Parallel) -> str | None:
    return "true" if config.recipe.lora.dora else None


def _lora_rslora(config: RootConfig, _: Parallel) -> str | None:
    return "true" if config.recipe.lora.rslora else None


def _lora_init(config: RootConfig, _: Parallel) -> str | None:
    return config.recipe.lora.init


def _lora_modules(config: RootConfig, _: Parallel) -> str | None:
    return _join_names(config.recipe.lora.modules_to_save)


def _lora_parameters(config: RootConfig, _: Parallel) -> str | None:
    return _join_names(config.recipe.lora.target_parameters)


def _join_names(names: Any) -> str | None:
    """Return the names of a list in order; None without one."""
    return ",".join(sorted(map(str, names))) if names else None


def _base_dtype(config: RootConfig, parallel: Parallel) -> str:
    quantize = config.recipe.lora.quantize
    return parallel.precision.value if quantize == Quantization.none else quantize.value


Compute = Callable[[RootConfig, Parallel], str | None]
# What computes the requested value of each key whose row marks it as computed. A function has the
# name of the evidence, by which the worker's side is found.
COMPUTED: Mapping[str, Compute] = {
    "global_batch_size": _global_batch,
    "global_batch_tokens": _global_tokens,
    "warmup_ratio": _number_or_default("warmup_ratio"),
    "weight_decay": _number_or_default("weight_decay"),
    "epochs": _epochs,
    "max_steps": _max_steps,
    "max_grad_norm": _grad_clip,
    "precision": _dtype,
    "liger": _liger,
    "loss": _loss,
    "lora.rank": _of_adapter(_lora),
    "lora.alpha": _of_new_adapter(_lora_alpha),
    "lora.dropout": _of_new_adapter(_lora_dropout),
    "lora.targets": _of_new_adapter(_lora_targets),
    "lora.quantize": _of_adapter(_base_dtype),
    "lora.start": _of_adapter(_lora_start),
    "lora.dora": _of_new_adapter(_lora_dora),
    "lora.rslora": _of_new_adapter(_lora_rslora),
    "lora.init": _of_new_adapter(_lora_init),
    "lora.modules_to_save": _of_new_adapter(_lora_modules),
    "lora.target_parameters": _of_new_adapter(_lora_parameters),
}


def _default_of(trainer: TrainerConfig, key: str) -> float | None:
    """Return the value that a trainer gives a recipe key that is left open; None if it is unknown.

    A trainer without warm-up has no flag for it, and 0 steps of it.
    """
    entry = recipe_mapping(trainer, key)
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
