"""A folder with a model: whether it is complete, whether its tensors are those of another folder,
and the number of its parameters, without torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from launch.files import load_json
from launch.planning.weight_files import (
    PICKLES,
    BrokenFileError,
    ForeignPickleError,
    StoredTensor,
    check_torch_file,
    have_same_bytes,
    read_safetensors_header,
    read_tensors,
)

NO_TOKENIZER = "the tokenizer is missing"
# Transformers loads the vocabulary from any one of these files.
_VOCABULARY_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "*.tiktoken",
)
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
# What does not belong to the model in its folder. Everything else is compared: a list of what
# belongs to a model would miss what the next version of a library loads.
_UNRELATED = (
    # checkpoints and logs of its training
    "checkpoint-*",
    "step_[0-9]*",
    "epoch_[0-9]*",
    "global_step*",
    "runs",
    "logs",
    "wandb",
    "training_args.bin",
    "trainer_state.json",
    "*_results.json",
    "*.log",
    # the same weights in the formats of other libraries
    "original",
    "consolidated*",
    "onnx",
    "openvino",
    "coreml",
    "metal",
    "*.gguf",
    "*.onnx",
    "*.h5",
    "*.msgpack",
    "rust_model.ot",
    # what people read, and the records of launch
    "*.md",
    "LICENSE*",
    "NOTICE*",
    "*.png",
    "*.jpg",
    "*.pdf",
    "demo.json",
    "digests.json",
    "merge.json",
)
EXPORT = "hf_model"  # the folder of a model of transformers beside checkpoints of OLMo-core
_NUMBERED_EXPERT = re.compile(r"experts\.\d+\.")
_ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")


def is_unrelated(name: str) -> bool:
    """Return whether a file or folder does not belong to the model, by its name relative to the
    model's folder.
    """
    last = name.rpartition("/")[2]
    return any(fnmatchcase(last, pattern) for pattern in _UNRELATED)


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder holds a model or an adapter, complete or not."""
    return any((folder / name).exists() for name in ("config.json", "adapter_config.json"))


def find_saved_model(folder: Path) -> Path:
    """Return where the model of a trainer's output folder is: in the folder, or where that has no
    configuration in the one below it that open-instruct exports into (dpo.py:98).
    """
    exported = folder / EXPORT
    if not is_model_folder(folder) and (exported / "config.json").is_file():
        return exported
    return folder


def find_output_faults(output: Path, output_glob: str) -> list[str]:
    """Return why a trainer's output folder is not a finished model, a sentence each.

    `output_glob` is the trainer's (schema.TrainerConfig.output_glob). Each folder with a
    configuration that it matches must hold a complete model. Other matches (OLMo-core's own
    checkpoints) only have to exist.
    """
    if output_glob == "config.json":
        return find_model_faults(output)
    matches = [*output.glob(output_glob)]
    if not matches:
        return [f"{output_glob} is missing"]
    folders = {path.parent for path in matches if path.name == "config.json"}
    faults = []
    for folder in sorted(folders):
        faults += [f"{folder.name}: {fault}" for fault in find_model_faults(folder)]
    return faults


def find_model_faults(folder: Path) -> list[str]:
    """Return what a folder with a model or a LoRA adapter lacks, a sentence each, without loading
    anything.
    """
    if folder.is_file():
        return ["it is a file"]
    if not folder.is_dir():
        return ["the folder is missing"]
    faults = list(find_weight_faults(folder))
    if not any(any(folder.glob(name)) for name in _VOCABULARY_FILES):
        faults.append(NO_TOKENIZER)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (folder / name).exists():
            faults += _json_faults(folder / name)
    return faults


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the weights in a folder, complete or not; checkpoints below it do not
    count.
    """
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    return sum(file.stat().st_size for file in files if file.is_file())


def find_weight_faults(folder: Path) -> Iterator[str]:
    """Yield what the weights and their configuration lack; the tokenizer is not checked."""
    if (folder / "adapter_config.json").exists():
        yield from _adapter_faults(folder)
        return
    if (folder / "config.json").exists():
        yield from _json_faults(folder / "config.json")
    else:
        yield "config.json is missing"
    # in the order in which transformers looks for them (modeling_utils.py)
    for name in _WEIGHT_FILES:
        index = folder / f"{name}.index.json"
        if (folder / name).exists():
            yield from _file_faults(folder / name)
            if index.exists() and not _is_indexed(name, index):
                yield f"{name} lies beside {index.name}, which names others, and is loaded alone"
            return
        if index.exists():
            yield from _index_faults(index)
            return
    yield "the weights are missing"


def _is_indexed(name: str, index: Path) -> bool:
    """Return whether an index names this file alone."""
    try:
        return set(_read_object(index)["weight_map"].values()) == {name}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _adapter_faults(folder: Path) -> Iterator[str]:
    """Yield what is wrong with an adapter's configuration and weights."""
    yield from _json_faults(folder / "adapter_config.json")
    for name in _WEIGHT_FILES:
        if (folder / name).exists() or (folder / f"{name}.index.json").exists():
            yield f"it holds an adapter (adapter_config.json) and a whole model ({name})"
            return
    for name in _ADAPTER_FILES:
        if (folder / name).exists():
            yield from _file_faults(folder / name)
            return
    yield "adapter_model.safetensors is missing"


def _index_faults(index: Path) -> Iterator[str]:
    """Yield what is wrong with the shards that an index names."""
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
    # A ZeRO-3 model that was saved without gathering its weights has empty tensors.
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


def find_other_tensor(folder: Path, other: Path) -> str | None:
    """Return the name of the first tensor that two folders hold with the same name, type and shape,
    and with other bytes; None if there is none.

    Raises BrokenFileError, OSError.
    """
    first = _folder_tensors(folder)
    second = _folder_tensors(other)
    for name in sorted(first.keys() & second.keys()):
        one = first[name]
        two = second[name]
        is_comparable = (one.dtype, one.shape) == (two.dtype, two.shape)
        if is_comparable and not have_same_bytes(one, two):
            return name
    return None


def _folder_tensors(folder: Path) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= read_tensors(file)
    return tensors


def find_foreign_pickle(folder: Path) -> str | None:
    """Return a sentence about a file of a checkpoint that would import what no trainer writes; None
    without one.
    """
    for path in sorted(folder.rglob("*")):
        if path.suffix not in PICKLES and path.name != ".metadata":
            continue
        try:
            check_torch_file(path)
        except ForeignPickleError as foreign:
            return str(foreign)
        except BrokenFileError:
            continue
    return None


def count_parameters(folder: Path) -> int | None:
    """Count the elements of all tensors in a folder's safetensors files, from their headers.

    Returns None without a readable file, and where one of them is missing. Another form of the same
    weights beside them (`consolidated*`) is not counted.
    """
    parameters = 0
    try:
        for file in _weight_files(folder):
            shapes = read_safetensors_header(file).values()
            parameters += sum(math.prod(shape) for shape in shapes)
    except (BrokenFileError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return parameters or None


def read_tensor_names(folder: Path) -> list[str] | None:
    """Return the names of all tensors in a folder's safetensors files, by their index or headers.

    Returns None without a readable file, and where each expert of a mixture is stored by itself:
    transformers joins them as it loads them, under other names.
    """
    index = folder / "model.safetensors.index.json"
    names: list[str] = []
    try:
        if index.is_file() and not (folder / "model.safetensors").is_file():
            names = list(_read_object(index)["weight_map"])
        else:
            for file in _weight_files(folder):
                names += read_safetensors_header(file)
    except (BrokenFileError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if any(_NUMBERED_EXPERT.search(name) for name in names):
        return None
    return names or None


def _weight_files(folder: Path) -> list[Path]:
    """Return the files that transformers would load: `model.safetensors`, else those of the index,
    else the shards, where all of them exist.
    """
    index = folder / "model.safetensors.index.json"
    whole = folder / "model.safetensors"
    if whole.is_file():
        return [whole]
    if index.is_file():
        names = set(load_json(index)["weight_map"].values())
        return sorted(folder / name for name in names)
    shards = sorted(folder.glob("model-*-of-*.safetensors"))
    totals = {int(path.stem.rpartition("-")[2]) for path in shards}  # N of model-1-of-N
    return shards if totals == {len(shards)} else []
