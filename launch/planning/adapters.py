"""Folders with a LoRA adapter: what they hold, which model they belong to, and where their merged model is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launch.errors import Problem, UserError
from launch.files import load_json
from launch.planning.estimate.shape import ModelShape
from launch.planning.tensor_files import BrokenFileError, read_safetensors_header

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
    alpha: int | None = None  # None, as the next two: its configuration has none
    dropout: float | None = None
    targets: tuple[str, ...] = ()  # names of the layers that it adapts

    @property
    def merged(self) -> Path:
        """The folder of its merged model: `merged` beside a run's `model`, else the folder's name with `-merged`."""
        if self.folder.name == "model":
            return self.folder.with_name(MERGED)
        return self.folder.with_name(f"{self.folder.name}-{MERGED}")

    @property
    def local_base(self) -> Path | None:
        """The folder of the base; None for a hub id."""
        path = Path(self.base).expanduser()
        return path if path.is_absolute() or path.exists() else None


def read_adapter(folder: Path) -> Adapter | None:
    """Return the adapter in a folder; None for a folder without one. Raises UserError: bad_adapter."""
    file = folder / ADAPTER_CONFIG
    if not file.is_file():
        return None
    try:
        config = load_json(file)
        alpha, dropout, targets = (config.get(key) for key in ("lora_alpha", "lora_dropout", "target_modules"))
        return Adapter(
            folder,
            str(config["base_model_name_or_path"]),
            int(config["r"]),
            config.get("revision"),
            alpha=int(alpha) if alpha is not None and float(alpha).is_integer() else None,
            dropout=None if dropout is None else float(dropout),
            targets=(targets,) if isinstance(targets, str) else tuple(sorted(str(name) for name in targets or ())),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{file} is not the configuration of a LoRA adapter: {type(error).__name__}: {error}"
        cure = "set it to a complete adapter, or a model"
        raise UserError(Problem("bad_adapter", message, "model.path", cure)) from error


def check_adapter(adapter: Adapter, shape: ModelShape | None) -> None:
    """Compare an adapter with its base: the base exists, and every matrix fits the layer that it adapts.

    `shape`: of the base; None where it is unknown. Raises UserError: adapter_base, bad_adapter.
    """
    base = adapter.local_base
    if base is not None and not (base / "config.json").is_file():
        message = f"the adapter in {adapter.folder} was trained on {base}, which is not here"
        cure = f"put the model there, or correct base_model_name_or_path in its {ADAPTER_CONFIG}"
        raise UserError(Problem("adapter_base", message, "model.path", cure))
    try:
        shapes = read_safetensors_header(adapter.folder / WEIGHTS)
    except BrokenFileError as error:
        message = f"{adapter.folder / WEIGHTS} is missing or not readable: {error}"
        raise UserError(
            Problem("bad_adapter", message, "model.path", "check that the run that wrote it has finished")
        ) from error
    wrong = _find_misfit(shapes, shape) if shape is not None else None
    if wrong:
        message = f"the adapter in {adapter.folder} does not fit {adapter.base}: {wrong}"
        raise UserError(Problem("adapter_base", message, "model.path", "it belongs to a model of another shape"))


def _find_misfit(shapes: dict[str, tuple[int, ...]], shape: ModelShape) -> str | None:
    """Return what does not fit: an adapter's A is rank x inputs its B outputs x rank (peft/tuners/lora/layer.py)."""
    matrices = shape.matrices
    for name, found in shapes.items():
        parts = name.split(".")
        layer = next((part for part in parts if part in matrices), None)
        side = next((part for part in parts if part in ("lora_A", "lora_B")), None)
        if layer is None or side is None or len(found) != 2:
            continue
        inputs, outputs = matrices[layer]
        size, wanted = (found[1], inputs) if side == "lora_A" else (found[0], outputs)
        if size != wanted:
            return f"{layer} has {wanted} {'inputs' if side == 'lora_A' else 'outputs'}, the adapter {size}"
        number = next((int(part) for part in parts if part.isdecimal()), 0)
        if number >= shape.layers:
            return f"the adapter has layer {number}, the model {shape.layers} layers"
    return None
