"""The number of parameters of a plan's model: from local weight files, or from the shape in its YAML."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launch.files import load_json
from launch.planning.plan import Plan
from launch.planning.tensor_files import BrokenFileError, read_safetensors_header


@dataclass(frozen=True)
class ModelSize:
    """The number of a model's parameters."""

    parameters: float
    source: str  # where the number comes from


def find_model_size(plan: Plan, environ: Mapping[str, str]) -> ModelSize | None:
    """Return the number of parameters of a plan's model; None when it is unknown on this machine."""
    model = plan.inputs.model
    folder = model.local or hub_snapshot(model.reference, environ)
    counted = count_parameters(folder) if folder else None
    if counted:
        return ModelSize(counted, "its safetensors files")
    packed = sum(path.stat().st_size for path in folder.glob("pytorch_model*.bin")) if folder else 0
    if packed:
        return ModelSize(packed / 2, "the size of its pytorch_model files, at 2 bytes a parameter")
    configured = plan.config.model
    if configured.shape.parameters and not configured.path:  # model.path is another model than the YAML's shape
        return ModelSize(configured.shape.parameters, "its shape")
    return None


def count_parameters(folder: Path) -> int | None:
    """Count the elements of all tensors in a folder's safetensors files, from their headers.

    Returns None without a readable file, and where one of them is missing. Another form of the same weights beside them
    (`consolidated*`) is not counted.
    """
    try:
        shapes = [shape for file in _weight_files(folder) for shape in read_safetensors_header(file).values()]
        return sum(map(math.prod, shapes)) or None
    except (BrokenFileError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _weight_files(folder: Path) -> list[Path]:
    """Return the files that transformers would load: those of the index, else `model.safetensors`, else the shards,
    where all of them exist."""
    index, whole = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        names = set(load_json(index)["weight_map"].values())
        return sorted(folder / name for name in names)
    if whole.is_file():
        return [whole]
    shards = sorted(folder.glob("model-*-of-*.safetensors"))
    totals = {int(path.stem.rpartition("-")[2]) for path in shards}
    return shards if totals == {len(shards)} else []


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder of huggingface_hub's downloads (huggingface_hub constants.py)."""
    if environ.get("HF_HUB_CACHE"):
        return Path(environ["HF_HUB_CACHE"]).expanduser()
    return hf_home(environ) / "hub"


def hf_home(environ: Mapping[str, str]) -> Path:
    """Return the folder of Hugging Face's caches and token (huggingface_hub constants.py)."""
    cache = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".cache")
    return Path(environ.get("HF_HOME") or f"{cache}/huggingface").expanduser()


def hub_snapshot(reference: str, environ: Mapping[str, str]) -> Path | None:
    """Return the newest cached snapshot of a hub model, if its weights are cached too."""
    folder = hub_cache(environ) / f"models--{reference.replace('/', '--')}" / "snapshots"
    try:
        snapshots = [path for path in folder.iterdir() if any(path.glob("*.safetensors"))]
        return max(snapshots, key=lambda path: path.stat().st_mtime, default=None)
    except OSError:
        return None
