"""Reads files of weights without torch: the tensors of safetensors files, and what is wrong with
files that torch.load reads.

Truncated files are found; bytes that changed in the middle of the data are not.
"""

from __future__ import annotations

import io
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from launch.files import open_file, parse_json
from launch.planning.pickle_imports import find_foreign_import

_HEADER_LIMIT = 100_000_000  # bytes, as in the safetensors library
_BLOCK = 1 << 20  # bytes
_PICKLE = b"\x80"
PICKLES = (".pt", ".pth", ".pkl", ".bin")  # what torch.load reads in a checkpoint
_LFS_POINTER = b"version https://git-lfs"


class BrokenFileError(Exception):
    """A file is not what its name promises; the message is a sentence about it."""


class ForeignPickleError(BrokenFileError):
    """A file would import what no trainer writes, if it were loaded."""


def read_safetensors_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a safetensors file's tensors, by name. Raises BrokenFileError, also for
    a wrong file size.
    """
    return {name: tensor.shape for name, tensor in read_tensors(path).items()}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a safetensors file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int  # of its bytes in the file
    end: int


def have_same_bytes(one: StoredTensor, two: StoredTensor) -> bool:
    """Return whether two tensors of the same size are equal, byte for byte."""
    with open_file(one.file) as first, open_file(two.file) as second:
        first.seek(one.begin)
        second.seek(two.begin)
        left = one.end - one.begin
        while left > 0:
            size = min(left, _BLOCK)
            if first.read(size) != second.read(size):
                return False
            left -= size
    return True


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file, by name. Raises BrokenFileError, also for a wrong
    file size.

    The file has 8 bytes of little-endian length, a JSON header of that length, and the data, to
    which the header's `data_offsets` refer.
    """
    try:
        size = path.stat().st_size
        with open_file(path) as stream:
            _refuse_pointer(path, stream.read(len(_LFS_POINTER)))
            stream.seek(0)
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _HEADER_LIMIT):
                raise BrokenFileError(f"{path.name} has a truncated header ({size} bytes)")
            header = parse_json(stream.read(length))
        tensors, end = _parse_header(header, path, 8 + length)
    except OSError as error:
        raise BrokenFileError(f"{path.name} can't be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BrokenFileError(f"{path.name} has no readable header") from error
    required = 8 + length + end
    if size != required:
        raise BrokenFileError(f"{path.name} has {size} bytes, but its header requires {required}")
    return tensors


def _refuse_pointer(path: Path, start: bytes) -> None:
    """Raise BrokenFileError if a file's first bytes are those of a Git LFS pointer."""
    if start == _LFS_POINTER:
        message = f"{path.name} is a Git LFS pointer, not the weights: run `git lfs pull`"
        raise BrokenFileError(message)


def _parse_header(
    header: dict[str, Any], path: Path, start: int
) -> tuple[dict[str, StoredTensor], int]:
    """Return the tensors by name, whose data begins at byte `start`, and the bytes of the data.

    Raises ValueError, TypeError, KeyError or AttributeError for another header.
    """
    tensors: dict[str, StoredTensor] = {}
    end = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, stop = entry["data_offsets"]
        if not 0 <= begin <= stop:
            raise ValueError(name)
        shape = tuple(int(size) for size in entry["shape"])
        tensors[name] = StoredTensor(path, str(entry["dtype"]), shape, start + begin, start + stop)
        end = max(end, stop)
    return tensors, end


def check_torch_file(path: Path) -> None:
    """Raise BrokenFileError unless `path` is a complete file of torch.save: a zip archive, its
    directory written last.

    The pickle inside is read, which checks its checksum, and has to import only what trainers
    write; the tensors' data is only located. Files of torch before 1.6 have no recognisable end,
    and are only searched for imports.
    """
    try:
        size = path.stat().st_size
        with open_file(path) as stream:
            start = stream.read(len(_LFS_POINTER))
            _refuse_pointer(path, start)
            if start[:1] == _PICKLE:
                stream.seek(0)
                _refuse_imports(path, stream)
                return
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.header_offset + entry.compress_size > size:
                    raise BrokenFileError(f"{path.name} is truncated in {entry.filename}")
                if entry.filename.endswith("data.pkl"):
                    _refuse_imports(path, io.BytesIO(archive.read(entry)))
    except OSError as error:
        raise BrokenFileError(f"{path.name} can't be read: {error.strerror}") from error
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
        raise BrokenFileError(f"{path.name} is truncated ({size} bytes)") from error


def _refuse_imports(path: Path, stream: IO[bytes]) -> None:
    """Raise BrokenFileError if the pickles at the beginning of a stream import what no trainer
    writes, and ValueError if there is none.
    """
    name = find_foreign_import(stream)
    while name is None and stream.read(1) == _PICKLE:  # of torch before 1.6, up to its tensors
        stream.seek(-1, os.SEEK_CUR)
        try:
            name = find_foreign_import(stream)
        except ValueError:
            return
    if name is not None:
        raise ForeignPickleError(f"{path.name} would import {name}, which no trainer writes")
