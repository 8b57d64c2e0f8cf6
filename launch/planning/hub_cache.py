"""Where the libraries of Hugging Face keep what they download."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder of huggingface_hub's downloads (huggingface_hub constants.py)."""
    return _named_folder(environ, "HF_HUB_CACHE", "hub")


def hub_data_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder of the data sets that `datasets` has prepared (datasets config.py)."""
    return _named_folder(environ, "HF_DATASETS_CACHE", "datasets")


def _named_folder(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """Return the folder that a variable names, else the one of that name in `hf_home`."""
    if environ.get(variable):
        return Path(environ[variable]).expanduser()
    return hf_home(environ) / default


def hf_home(environ: Mapping[str, str]) -> Path:
    """Return the folder of Hugging Face's caches and token (huggingface_hub constants.py)."""
    if environ.get("HF_HOME"):
        return Path(environ["HF_HOME"]).expanduser()
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]).expanduser() / "huggingface"
    return Path(environ.get("HOME", "~")).expanduser() / ".cache" / "huggingface"


def hub_snapshot(reference: str, environ: Mapping[str, str]) -> Path | None:
    """Return the newest cached snapshot of a hub model, if its weights are cached too."""
    folder = hub_cache(environ) / f"models--{reference.replace('/', '--')}" / "snapshots"
    try:
        snapshots = [path for path in folder.iterdir() if any(path.glob("*.safetensors"))]
        return max(snapshots, key=lambda path: path.stat().st_mtime, default=None)
    except OSError:
        return None
