"""A PEFT adapter in a folder: its configuration, and whether its matrices fit the base model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.errors import refusal
from launch.files import load_json
from launch.planning.estimate.shape import ModelShape
from launch.planning.weight_files import BrokenFileError, read_safetensors_header

ADAPTER_CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MERGED = "merged"  # the folder beside a run's model/


@dataclass(frozen=True)
class Adapter:
    """A PEFT adapter in a folder."""

    folder: Path
    base: str  # the model that it was trained on: a hub id or a folder
    rank: int
    revision: str | None = None  # of the base
    # None, as the next two fields, if the adapter's configuration does not have it
    alpha: int | None = None
    dropout: float | None = None
    targets: tuple[str, ...] = ()  # names of the layers that it adapts
    dora: bool = False
    rslora: bool = False
    modules_to_save: tuple[str, ...] = ()  # the modules that it has as a whole

    @property
    def merged(self) -> Path:
        """The folder of its merged model: `merged` beside a run's `model`, else the folder's name
        with `-merged`.
        """
        if self.folder.name == "model":
            return self.folder.with_name(MERGED)
        return self.folder.with_name(f"{self.folder.name}-{MERGED}")

    @property
    def local_base(self) -> Path | None:
        """The folder of the base; None for a hub id."""
        path = Path(self.base).expanduser()
        return path if path.is_absolute() or path.exists() else None


def read_adapter(folder: Path) -> Adapter | None:
    """Return the adapter in a folder; None for a folder without one. Raises UserError:
    bad_adapter.
    """
    file = folder / ADAPTER_CONFIG
    if not file.is_file():
        return None
    try:
        return _parse_adapter(folder, load_json(file))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = (
            f"{file} is not the configuration of a LoRA adapter: {type(error).__name__}: {error}"
        )
        cure = "set it to a complete adapter, or a model"
        raise refusal("bad_adapter", message, "model.path", cure) from error


def _parse_adapter(folder: Path, config: Mapping[str, Any]) -> Adapter:
    """Return the adapter that PEFT's configuration describes.

    Raises KeyError, TypeError, ValueError or AttributeError for another configuration.
    """
    alpha = config.get("lora_alpha")
    is_whole = alpha is not None and float(alpha).is_integer()
    dropout = config.get("lora_dropout")
    targets = config.get("target_modules")
    names = [targets] if isinstance(targets, str) else sorted(str(name) for name in targets or ())
    return Adapter(
        folder,
        base=str(config["base_model_name_or_path"]),
        rank=int(config["r"]),
        revision=config.get("revision"),
        alpha=int(alpha) if alpha is not None and is_whole else None,
        dropout=None if dropout is None else float(dropout),
        targets=tuple(names),
        dora=bool(config.get("use_dora")),
        rslora=bool(config.get("use_rslora")),
        modules_to_save=tuple(map(str, config.get("modules_to_save") or ())),
    )


def check_adapter(adapter: Adapter, shape: ModelShape | None) -> None:
    """Check that the base of an adapter exists, and that every matrix fits the layer that it
    adapts.

    `shape` is that of the base, if it is known. Raises UserError: adapter_base, bad_adapter.
    """
    base = adapter.local_base
    if base is not None and not (base / "config.json").is_file():
        message = f"the adapter in {adapter.folder} was trained on {base}, which is not here"
        cure = f"put the model there, or correct base_model_name_or_path in its {ADAPTER_CONFIG}"
        raise refusal("adapter_base", message, "model.path", cure)
    try:
        shapes = read_safetensors_header(adapter.folder / WEIGHTS)
    except BrokenFileError as error:
        message = f"{adapter.folder / WEIGHTS} is missing or not readable: {error}"
        cure = "check that the run that wrote it has finished"
        raise refusal("bad_adapter", message, "model.path", cure) from error
    mismatch = _find_mismatch(shapes, shape) if shape is not None else None
    if mismatch:
        message = f"the adapter in {adapter.folder} does not fit {adapter.base}: {mismatch}"
        cure = "it belongs to a model of another shape"
        raise refusal("adapter_base", message, "model.path", cure)


def _find_mismatch(shapes: dict[str, tuple[int, ...]], shape: ModelShape) -> str | None:
    """Return how the matrices of an adapter do not fit the model; None if they do.

    Its A is rank x inputs, its B is outputs x rank (peft/tuners/lora/layer.py).
    """
    matrices = shape.matrices
    for name, adapter_shape in shapes.items():
        parts = name.split(".")
        layer = next((part for part in parts if part in matrices), None)
        if layer is None or len(adapter_shape) != 2:
            continue
        inputs, outputs = matrices[layer]
        rows, columns = adapter_shape
        if "lora_A" in parts:
            if columns != inputs:
                return f"{layer} has {inputs} inputs, the adapter {columns}"
        elif "lora_B" in parts:
            if rows != outputs:
                return f"{layer} has {outputs} outputs, the adapter {rows}"
        else:
            continue
        number = next((int(part) for part in parts if part.isdecimal()), 0)
        if number >= shape.layers:
            return f"the adapter has layer {number}, the model {shape.layers} layers"
    return None
