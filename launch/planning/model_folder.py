"""Check that a model folder is complete: configuration, tokenizer, and every shard with every tensor of the index."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from launch.files import load_json
from launch.planning.tensor_files import BrokenFileError, check_torch_file, read_safetensors_header

NO_TOKENIZER = "the tokenizer is missing"
# transformers loads the vocabulary from any one of these
_VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "*.tiktoken")
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
_ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")


def find_output_faults(output: Path, leaves: str) -> list[str]:
    """Return why a trainer's output folder is not a finished model, a sentence each.

    `leaves` is the glob of the trainer's output (schema.TrainerConfig.leaves): each folder that it matches by a
    configuration must be complete. Other matches (OLMo-core's own checkpoints) only have to exist.
    """
    if leaves == "config.json":
        return find_model_faults(output)
    matches = [*output.glob(leaves)]
    if not matches:
        return [f"{leaves} is missing"]
    folders = sorted({path.parent for path in matches if path.name == "config.json"})
    return [f"{folder.name}: {fault}" for folder in folders for fault in find_model_faults(folder)]


def find_model_faults(folder: Path) -> list[str]:
    """Return what a folder with a model or a LoRA adapter lacks, a sentence each, without loading anything."""
    if not folder.is_dir():
        return ["the folder is missing"]
    faults = [*find_weight_faults(folder)]
    if not any(any(folder.glob(name)) for name in _VOCABULARY_FILES):
        faults.append(NO_TOKENIZER)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (folder / name).exists():
            faults += _json_faults(folder / name)
    return faults


def find_weight_faults(folder: Path) -> Iterator[str]:
    """Yield what the weights and their configuration lack; the tokenizer is not checked."""
    if (folder / "adapter_config.json").exists():
        yield from _json_faults(folder / "adapter_config.json")
        weights = next((folder / name for name in _ADAPTER_FILES if (folder / name).exists()), None)
        yield from ["adapter_model.safetensors is missing"] if weights is None else _file_faults(weights)
        return
    if (folder / "config.json").exists():
        yield from _json_faults(folder / "config.json")
    else:
        yield "config.json is missing"
    for name in _WEIGHT_FILES:
        if (folder / f"{name}.index.json").exists():
            yield from _index_faults(folder / f"{name}.index.json")
            return
        if (folder / name).exists():
            yield from _file_faults(folder / name)
            return
    yield "the weights are missing"


def _index_faults(index: Path) -> Iterator[str]:
    try:
        weight_map: Mapping[str, str] = _read_object(index)["weight_map"]
        shards = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        yield f"{index.name} is unreadable"
        return
    for shard in shards:
        if not (index.parent / shard).exists():
            yield f"{shard} is missing"
            continue
        tensors = {tensor for tensor, file in weight_map.items() if file == shard}
        yield from _file_faults(index.parent / shard, tensors)


def _file_faults(path: Path, required: Collection[str] = ()) -> Iterator[str]:
    """Yield what is wrong with one file of weights, which must hold the tensors `required`."""
    try:
        if path.suffix != ".safetensors":
            check_torch_file(path)
            return
        tensors = read_safetensors_header(path)
    except BrokenFileError as broken:
        yield str(broken)
        return
    if not tensors:
        yield f"{path.name} holds no tensors"
    # a ZeRO-3 model saved without gathering it has empty tensors
    empty = sorted(name for name, shape in tensors.items() if 0 in shape)
    if empty:
        yield f"{path.name} has {len(empty)} empty tensors ({empty[0]}, ...)"
    missing = sorted(set(required) - set(tensors))
    if missing:
        yield f"{path.name} lacks {len(missing)} of {len(required)} tensors ({missing[0]}, ...)"


def _json_faults(path: Path) -> list[str]:
    try:
        _read_object(path)
    except (OSError, ValueError):
        return [f"{path.name} is unreadable"]
    return []


def _read_object(path: Path) -> dict[str, Any]:
    value = load_json(path)
    if not isinstance(value, dict):
        raise ValueError(path.name)
    return value
