"""The LoRA adapter that a recipe requests, checked against the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.config.origins import Origins
from launch.config.recipe_keys import KEYS, AdapterStart, Quantization, mapping_of
from launch.config.schema import Family, RootConfig
from launch.errors import UserError, did_you_mean, refusal
from launch.planning.adapter import Adapter
from launch.planning.estimate.shape import LINEAR_LAYERS, ModelShape
from launch.planning.parallel import Parallel
from launch.planning.recipe import map_recipe_key
from launch.worker.finding import Finding, Fix

ALL_LINEAR = "all-linear"
_PREFIX = "lora."
_RECIPE = "recipe.lora."
_OUTPUT_LAYERS = ("lm_head", "embed_out")


@dataclass(frozen=True)
class Lora:
    """The adapter that a run trains."""

    rank: int
    alpha: int
    dropout: float
    targets: str | tuple[str, ...]  # ALL_LINEAR, or names of layers
    quantize: Quantization
    start: AdapterStart

    def value(self, key: str) -> Any:
        """Return the value of `recipe.lora.KEY` as plain data."""
        value = getattr(self, key)
        return list(value) if isinstance(value, tuple) else value

    def as_adapter(self, folder: Path) -> Adapter:
        """Return the adapter that a run with these settings writes into `folder`."""
        targets = LINEAR_LAYERS if isinstance(self.targets, str) else self.targets
        return Adapter(
            folder,
            base="",
            rank=self.rank,
            alpha=self.alpha,
            dropout=self.dropout,
            targets=tuple(targets),
        )

    def count_parameters(self, shape: ModelShape) -> int:
        """Count the adapter's parameters: rank x (inputs + outputs) of every adapted layer."""
        inputs_and_outputs = 0
        for name in self.layer_names(shape.matrices):
            inputs_and_outputs += sum(shape.matrices[name])
        return shape.layers * self.rank * inputs_and_outputs

    def count_layers(self, shape: ModelShape) -> int:
        """Count the layers of a block that get an adapter."""
        return len(self.layer_names(shape.matrices))

    def layer_names(self, matrices: Mapping[str, tuple[int, int]]) -> list[str]:
        """Return those of a block's layers that get an adapter."""
        if self.targets == ALL_LINEAR:
            return list(matrices)
        names = [name.rpartition(".")[2] for name in self.targets]
        return [name for name in names if name in matrices]


def recipe_value(recipe: Mapping[str, Any], key: str, lora: Lora | None) -> Any:
    """Return the value of `recipe.KEY`. The keys of an adapter have the adapter's value, or None
    without one.
    """
    if not key.startswith(_PREFIX):
        return recipe[key]
    return lora.value(key.removeprefix(_PREFIX)) if lora else None


def resolve_lora(
    config: RootConfig,
    origins: Origins,
    parallel: Parallel,
    shape: ModelShape | None,
    continued: Adapter | None = None,
) -> Lora | None:
    """Return the adapter that the recipe requests; None if all weights are trained.

    `shape` is the model's. Without it only the trainer's own library checks rank and targets.
    `continued` is the adapter that is trained further, whose settings hold where the recipe sets
    none.

    Raises UserError: unsupported_recipe, lora_rank, lora_targets, lora_without_rank,
    adapter_settings, quantized_parallel.
    """
    keys = config.recipe.lora
    trainer = config.trainer
    if keys.rank is None:
        _refuse_keys_without_rank(origins)
        return None
    # a trainer without adapters is refused before anything else is checked
    rank = f"{_PREFIX}rank"
    if not mapping_of(trainer, rank):
        map_recipe_key(rank, keys.rank, {}, KEYS[rank].reason(trainer), trainer.name)
    lora = Lora(
        rank=keys.rank,
        alpha=2 * keys.rank if keys.alpha is None else keys.alpha,
        dropout=keys.dropout,
        targets=_read_targets(keys.targets),
        quantize=keys.quantize,
        start=keys.start,
    )
    problems = [*_target_problems(lora, shape), *_rank_problems(lora, shape)]
    if continued is not None:
        settings = _settings_of(continued)
        problems += _continuing_problems(lora, continued, settings, origins)
        lora = replace(lora, **settings)
    problems += _quantization_problems(lora, config, parallel)
    if problems:
        raise UserError([_located(problem, origins) for problem in problems])
    return lora


def _continuing_problems(
    lora: Lora, adapter: Adapter, settings: Mapping[str, Any], origins: Origins
) -> list[Finding]:
    """Find settings of the recipe that differ from those of the adapter that is trained further,
    which keeps its own `settings`.
    """
    if adapter.rank != lora.rank:
        message = f"the adapter in {adapter.folder} has rank {adapter.rank}, got {lora.rank}"
        cure = Fix.of("set {0}", f"recipe.lora.rank={adapter.rank}")
        return [Finding.error("lora_rank", message, "recipe.lora.rank", cure)]
    differing = []
    for key, value in settings.items():
        is_set = origins.of(f"{_RECIPE}{key}").where is not None
        if is_set and _comparable(getattr(lora, key)) != _comparable(value):
            differing.append(key)
    if not differing:
        return []
    kept = " and ".join(f"{key} {_as_text(settings[key])}" for key in differing)
    requested = " and ".join(_as_text(getattr(lora, key)) for key in differing)
    message = f"the adapter in {adapter.folder} keeps its own {kept}, got {requested}"
    keys = " and ".join(_RECIPE + key for key in differing)
    cure = Fix.of(f"remove {keys}, or set {{0}}", "recipe.lora.start=merged")
    return [Finding.error("adapter_settings", message, f"{_RECIPE}{differing[0]}", cure)]


def _settings_of(adapter: Adapter) -> dict[str, Any]:
    """Return the settings that an adapter's configuration has, by the keys of the recipe."""
    settings: dict[str, Any] = {"rank": adapter.rank}
    if adapter.alpha is not None:
        settings["alpha"] = adapter.alpha
    if adapter.dropout is not None:
        settings["dropout"] = adapter.dropout
    if adapter.targets:
        names = {name.rpartition(".")[2] for name in adapter.targets}
        settings["targets"] = ALL_LINEAR if names == set(LINEAR_LAYERS) else tuple(sorted(names))
    return settings


def _comparable(value: Any) -> Any:
    """Return the value of a setting; of targets, the set of their layers."""
    if value == ALL_LINEAR:
        return set(LINEAR_LAYERS)
    if isinstance(value, tuple):
        return {name.rpartition(".")[2] for name in value}
    return value


def _as_text(value: Any) -> str:
    return f"[{','.join(value)}]" if isinstance(value, tuple) else str(value)


def _refuse_keys_without_rank(origins: Origins) -> None:
    for key in ("alpha", "dropout", "targets", "quantize", "start"):
        source = origins.of(f"recipe.lora.{key}")
        if (origins.overridden(f"recipe.lora.{key}") or "").startswith("recipe.lora"):
            message = (
                f"recipe.lora.{key} has no effect without recipe.lora.rank: all weights are trained"
            )
            cure = Fix.of("set {0}, or remove it", "recipe.lora.rank=16", f"~recipe.lora.{key}")
            raise refusal("lora_without_rank", message, source.where, cure)


def _read_targets(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value if value == ALL_LINEAR else (value,)
    is_list = isinstance(value, Sequence) and bool(value)
    if not is_list or not all(isinstance(name, str) for name in value):
        message = f"recipe.lora.targets={value} is neither all-linear nor a list of names"
        overrides = ("recipe.lora.targets=all-linear", "recipe.lora.targets=[q_proj,v_proj]")
        cure = Fix.of("set {0}, or {1}", *overrides)
        raise refusal("lora_targets", message, "recipe.lora.targets", cure)
    return tuple(value)


def _target_problems(lora: Lora, shape: ModelShape | None) -> list[Finding]:
    """Check the names of layers against the model's. An adapter of an output layer would not
    train.
    """
    if lora.targets == ALL_LINEAR:
        return []
    output = [name for name in lora.targets if name in _OUTPUT_LAYERS]
    if output:
        layer = output[0]
        message = (
            f"the trainers don't train an adapter of {layer}: the loss reads its weight directly"
        )
        return [Finding.error("lora_targets", message, "recipe.lora.targets", f"remove {layer}")]
    if shape is None:
        return []
    known = shape.matrices
    unknown = [name for name in lora.targets if name.rpartition(".")[2] not in known]
    if not unknown:
        return []
    message = f"a {shape.model_type} model has no layer '{unknown[0]}'"
    cure = did_you_mean(unknown[0], known) or f"it has {', '.join(known)}"
    return [Finding.error("lora_targets", message, "recipe.lora.targets", cure)]


def _rank_problems(lora: Lora, shape: ModelShape | None) -> list[Finding]:
    """Check that the rank is not above that of the smallest adapted layer."""
    if shape is None or lora.rank < 1:
        return []
    matrices = shape.matrices
    sizes = {name: min(matrices[name]) for name in lora.layer_names(matrices)}
    name = min(sizes, key=sizes.__getitem__, default=None)
    if name is None or lora.rank <= sizes[name]:
        return []
    inputs, outputs = matrices[name]
    message = (
        f"rank {lora.rank} is above the rank of {name} ({inputs} x {outputs}): the adapter "
        "would be larger than it"
    )
    cure = f"set it to {sizes[name]} or less; 8 to 256 is usual"
    return [Finding.error("lora_rank", message, "recipe.lora.rank", cure)]


def _quantization_problems(lora: Lora, config: RootConfig, parallel: Parallel) -> list[Finding]:
    """Check that the parallel mode supports 4-bit weights.

    bitsandbytes packs them into bytes, which ZeRO-3 can't partition. open-instruct does not support
    DeepSpeed with them (finetune.py:210; dpo_utils.py:269).
    """
    if lora.quantize == Quantization.none:
        return []
    trainer = config.trainer
    reason = None
    if parallel.zero_stage and trainer.family == Family.open_instruct:
        reason = f"{trainer.name} has no 4-bit weights with DeepSpeed"
    elif parallel.zero_stage == 3:
        reason = "ZeRO-3 can't partition 4-bit weights"
    if reason is None:
        return []
    mode = "ddp" if parallel.width.world_size > 1 else "single"
    message = f"{reason}, got parallel={parallel.mode}"
    cure = Fix.of("set {0}", f"parallel={mode}")
    return [Finding.error("quantized_parallel", message, "recipe.lora.quantize", cure)]


def _located(problem: Finding, origins: Origins) -> Finding:
    """Return the problem with the place where its key is set."""
    where = origins.of(problem.where).where if problem.where else None
    return Finding.error(problem.id, problem.message, where or problem.where, problem.cure)
