"""The model that a run saved: digests of its files, in DONE, which every later use of the model compares."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from launch.data.local import Digest
from launch.errors import Problem
from launch.files import read_json_object

# what is loaded of a model: weights, configuration, tokenizer, chat template, code
_PATTERNS = (
    *("*.safetensors", "*.safetensors.index.json", "pytorch_model*", "adapter_model.bin", "config.json", "*.py"),
    *("adapter_config.json", "generation_config.json", "chat_template*", "tokenizer*", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.*", "merges.txt", "spiece.model", "*.tiktoken"),
)
EXPORT = "hf_model"  # the folder that dpo.py exports into, at most one below its output (dpo.py:97)
_CURE = "restore the file, or move the changed model to a folder of its own and name that"


def digest_model(folder: Path, digest: Digest) -> dict[str, str]:
    """Return the digest of each file that a model, or an adapter, is loaded from; {} for a hub id."""
    files = (path for place in ("*", f"{EXPORT}/*", f"*/{EXPORT}/*") for path in folder.glob(place) if path.is_file())
    loaded = (path for path in files if any(fnmatch(path.name, pattern) for pattern in _PATTERNS))
    names = sorted(path.relative_to(folder).as_posix() for path in loaded)
    return {name: value for name in names if (value := digest(folder / name)) is not None}


def run_of(model: Path) -> Path | None:
    """Return the finished run that a model's folder is of: beside its DONE, or below as an export of it."""
    above = model.parents if model.name == EXPORT else (model.parent,)
    return next((folder for folder in above if (folder / "DONE").is_file()), None)


def find_changes(run: Path, digest: Digest) -> list[Problem]:
    """Return how the model of a finished run, or its adapter's base, differs from what its DONE holds.

    [] for a run of a version that recorded no digests. The ids are model_changed and base_changed.
    """
    recorded = read_json_object(run / "DONE").get("model")
    if not isinstance(recorded, dict):
        return []
    problems = []
    output, base = run / "model", Path(str(recorded.get("base")))
    if changed := _compare(recorded.get("files"), output, digest):
        message = f"the model in {output} is not the one that this run saved: {changed}"
        problems.append(Problem("model_changed", message, None, _CURE))
    if changed := _compare(recorded.get("base_files"), base, digest):
        message = f"{base} is not the model that the adapter in {output} was trained on: {changed}"
        problems.append(Problem("base_changed", message, None, "restore the base: on another one it means nothing"))
    return problems


def _compare(recorded: object, folder: Path, digest: Callable[[Path], str | None]) -> str | None:
    if not isinstance(recorded, dict) or not recorded:
        return None
    if not folder.is_dir():
        return "the folder is gone"
    now = digest_model(folder, digest)
    names = sorted({*recorded, *now})
    states = {True: "changed", False: "was added"}
    changed = [
        f"{name} {'is gone' if name not in now else states[name in recorded]}"
        for name in names
        if now.get(name) != recorded.get(name)
    ]
    more = f" and {len(changed) - 2} more" if len(changed) > 2 else ""
    return f"{', '.join(changed[:2])}{more}" if changed else None
