"""Checks the files of a checkpoint of torch.distributed.checkpoint by its index, without torch.

The index, `.metadata`, is a pickle with the file of each part of a tensor and the part's place in it
(torch/distributed/checkpoint/metadata.py, `storage_data`). No class that it names is imported: each
is read as a `_Stub`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launch.files import read_file

INDEX = ".metadata"


class _Stub:
    """Stands for an object of any class in the pickle, and keeps only its attributes."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take any arguments."""

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, Mapping):
            self.__dict__.update(state)


class _IndexReader(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        return _Stub


def find_shard_faults(folder: Path) -> Iterator[str]:
    """Yield the faults of a distributed checkpoint's files, as phrases.

    The index may be missing, or files that it names may be missing, or shorter than their parts.
    """
    try:
        ends = read_file_ends(folder / INDEX)
    except (OSError, ValueError, pickle.UnpicklingError, EOFError, LookupError, TypeError) as error:
        yield f"{folder.name}/{INDEX} is missing or unreadable ({type(error).__name__})"
        return
    for name, end in sorted(ends.items()):
        file = folder / name
        size = file.stat().st_size if file.is_file() else None
        if size is None:
            yield f"{folder.name}/{name} is missing"
        elif size < end:
            yield f"{folder.name}/{name} is truncated ({size} of {end} bytes)"


def read_file_ends(index: Path) -> dict[str, int]:
    """Return the minimum size of each file of a distributed checkpoint in bytes, by its name.

    Raises OSError for an index that can't be read; ValueError, EOFError, LookupError, TypeError or
    UnpicklingError for one that is truncated or has another content.
    """
    root = _IndexReader(io.BytesIO(read_file(index))).load()
    parts = getattr(root, "storage_data", None)
    if not isinstance(parts, Mapping) or not parts:
        raise ValueError("it names no files")
    ends: dict[str, int] = {}
    for part in parts.values():
        name = str(part.relative_path)
        if Path(name).name != name:
            raise ValueError(f"{name} is not in the folder")
        ends[name] = max(ends.get(name, 0), int(part.offset) + int(part.length))
    return ends
