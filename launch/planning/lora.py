"""The LoRA adapter that a run trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.config.recipe_keys import KEYS, AdapterStart, Quantization, recipe_mapping
from launch.config.schema import RootConfig
from launch.planning.adapter import Adapter
from launch.planning.estimate.shape import LINEAR_LAYERS, ModelShape, layer_of_weight
from launch.planning.recipe import map_recipe_key

ALL_LINEAR = "all-linear"
_PREFIX = "lora."


@dataclass(frozen=True)
class Lora:
    """The adapter that a run trains."""

    rank: int
    alpha: int
    dropout: float
    targets: str | tuple[str, ...]  # ALL_LINEAR, or names of layers
    quantize: Quantization
    start: AdapterStart
    dora: bool = False
    rslora: bool = False
    init: str | None = None
    modules_to_save: tuple[str, ...] | None = None  # trained as a whole
    target_parameters: tuple[str, ...] | None = None

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
            dora=self.dora,
            rslora=self.rslora,
            modules_to_save=self.modules_to_save or (),
        )

    def count_parameters(self, shape: ModelShape) -> int:
        """Count the adapter's parameters: rank x (inputs + outputs) of every adapted layer or weight,
        and DoRA's length of each output.
        """
        inputs_and_outputs = 0
        for name in (*self.layer_names(shape.matrices), *self.weight_names()):
            inputs_and_outputs += sum(shape.matrices[name])
        lengths = self.count_outputs(shape) if self.dora else 0
        return shape.layers * (self.rank * inputs_and_outputs + lengths)

    def count_outputs(self, shape: ModelShape) -> int:
        """Count the outputs of the layers of a block that get an adapter."""
        return sum(shape.matrices[name][1] for name in self.layer_names(shape.matrices))

    def count_whole(self, shape: ModelShape) -> tuple[int, int] | None:
        """Count the weights of the modules that are trained as a whole, and those of them that are
        an embedding's; None if a module is unknown.
        """
        names = self.modules_to_save or ()
        tensors = shape.tensors
        if find_missing_module(names, tensors) is not None:
            return None
        whole = {tensor: size for tensor, size in tensors.items() if is_in_module(tensor, names)}
        return sum(whole.values()), whole.get("model.embed_tokens.weight", 0)

    def weight_names(self) -> list[str]:
        """Return those of a block's layers whose weight itself gets an adapter, each once."""
        names = map(layer_of_weight, self.target_parameters or ())
        return sorted({name for name in names if name is not None})

    def unknown_parameter(self) -> str | None:
        """Return the first of `target_parameters` that is not the weight of a layer of each block."""
        for parameter in self.target_parameters or ():
            if layer_of_weight(parameter) is None:
                return parameter
        return None

    def layer_names(self, matrices: Mapping[str, tuple[int, int]]) -> list[str]:
        """Return those of a block's layers that get an adapter."""
        if self.targets == ALL_LINEAR:
            return list(matrices)
        names = [name.rpartition(".")[2] for name in self.targets]
        return [name for name in names if name in matrices]


def is_in_module(tensor: str, names: Sequence[str]) -> bool:
    """Return whether a tensor belongs to one of the modules that PEFT trains as a whole: those whose
    path ends with one of `names` (peft/utils/other.py, _set_trainable).
    """
    parts = tensor.split(".")[:-1]
    paths = [".".join(parts[: length + 1]) for length in range(len(parts))]
    return any(path.endswith(tuple(names)) for path in paths)


def find_missing_module(names: Sequence[str], tensors: Iterable[str]) -> str | None:
    """Return the first of `names` that no module's path ends with; None if all do."""
    known = list(tensors)
    for name in names:
        if not any(is_in_module(tensor, (name,)) for tensor in known):
            return name
    return None


def find_missing_parameter(names: Sequence[str], tensors: Iterable[str]) -> str | None:
    """Return the first of `names` that is neither a tensor nor the end of a tensor's path
    (peft/tuners/tuners_utils.py, _inject_parameters); None if all are.
    """
    known = [f".{tensor}" for tensor in tensors]
    for name in names:
        if not any(tensor.endswith(f".{name}") for tensor in known):
            return name
    return None


def recipe_value(recipe: Mapping[str, Any], key: str, lora: Lora | None) -> Any:
    """Return the value of `recipe.KEY`. The keys of an adapter have the adapter's value, or None
    without one.
    """
    if not key.startswith(_PREFIX):
        return recipe[key]
    return lora.value(key.removeprefix(_PREFIX)) if lora else None


def resolve_lora(config: RootConfig, continued: Adapter | None = None) -> Lora | None:
    """Return the adapter that a run trains; None if all weights are trained.

    `continued` is the adapter that is trained further, whose settings hold. The rules in
    launch/planning/rules/adapters.py compare them with the recipe's, and both with the model.

    Raises UserError: unsupported_recipe, for a trainer without adapters.
    """
    lora = requested_lora(config)
    if lora is None:
        return None
    trainer = config.trainer
    rank = f"{_PREFIX}rank"
    if not recipe_mapping(trainer, rank):
        map_recipe_key(rank, lora.rank, {}, KEYS[rank].reason(trainer), trainer.name)
    return lora if continued is None else replace(lora, **settings_of_adapter(continued))


def requested_lora(config: RootConfig) -> Lora | None:
    """Return the adapter that the recipe requests; None if all weights are trained."""
    keys = config.recipe.lora
    if keys.rank is None:
        return None
    return Lora(
        rank=keys.rank,
        alpha=2 * keys.rank if keys.alpha is None else keys.alpha,
        dropout=keys.dropout,
        targets=_read_targets(keys.targets),
        quantize=keys.quantize,
        start=keys.start,
        dora=keys.dora,
        rslora=keys.rslora,
        init=keys.init,
        modules_to_save=_read_names(keys.modules_to_save),
        target_parameters=_read_names(keys.target_parameters),
    )


def settings_of_adapter(adapter: Adapter) -> dict[str, Any]:
    """Return the settings that an adapter's configuration has, by the keys of the recipe."""
    settings: dict[str, Any] = {"rank": adapter.rank}
    if adapter.alpha is not None:
        settings["alpha"] = adapter.alpha
    if adapter.dropout is not None:
        settings["dropout"] = adapter.dropout
    settings |= {"dora": adapter.dora, "rslora": adapter.rslora}
    if adapter.modules_to_save:
        settings["modules_to_save"] = adapter.modules_to_save
    if adapter.targets:
        names = {name.rpartition(".")[2] for name in adapter.targets}
        settings["targets"] = ALL_LINEAR if names == set(LINEAR_LAYERS) else tuple(sorted(names))
    return settings


def _read_names(value: Any) -> tuple[str, ...] | None:
    """Return the names in a list; None for null, and for a value that the rule lora_names refuses."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return None
    return tuple(map(str, value)) or None


def _read_targets(value: Any) -> str | tuple[str, ...]:
    """Return ALL_LINEAR or the names of layers; no names for a value that the rule lora_targets
    refuses.
    """
    if isinstance(value, str):
        return value if value == ALL_LINEAR else (value,)
    if isinstance(value, Sequence) and all(isinstance(name, str) for name in value):
        return tuple(value)
    return ()
