"""Check without torch that a file of tensors is complete: safetensors by the header, torch's files as zip archives.

Truncated files are found; bytes that changed in the middle of the data are not.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from launch.files import open_file, parse_json

_HEADER_LIMIT = 100_000_000  # bytes, as in the safetensors library
_PICKLE = b"\x80"
_LFS_POINTER = b"version https://git-lfs"


class BrokenFileError(Exception):
    """A file is not what its name promises; the message is a sentence about it."""


def read_safetensors_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a safetensors file's tensors, by name. Raises BrokenFileError, also for a wrong file size.

    The format: 8 bytes of little-endian length, a JSON header of that length, and the data, to which the header's
    `data_offsets` refer.
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
        shapes, end = _parse_header(header)
    except OSError as error:
        raise BrokenFileError(f"{path.name} can't be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BrokenFileError(f"{path.name} has no readable header") from error
    if size != 8 + length + end:
        raise BrokenFileError(f"{path.name} has {size} bytes, but its header requires {8 + length + end}")
    return shapes


def _refuse_pointer(path: Path, start: bytes) -> None:
    """Raise BrokenFileError if a file's first bytes are those of a Git LFS pointer."""
    if start == _LFS_POINTER:
        raise BrokenFileError(f"{path.name} is a Git LFS pointer, not the weights: run `git lfs pull`")


def _parse_header(header: dict[str, dict[str, list[int]]]) -> tuple[dict[str, tuple[int, ...]], int]:
    shapes: dict[str, tuple[int, ...]] = {}
    end = 0
    for name, entry in header.items():
        if name != "__metadata__":
            begin, stop = entry["data_offsets"]
            if not 0 <= begin <= stop:
                raise ValueError(name)
            shapes[name] = tuple(int(size) for size in entry["shape"])
            end = max(end, stop)
    return shapes, end


def check_torch_file(path: Path) -> None:
    """Raise BrokenFileError unless `path` is a complete file of torch.save: a zip archive, its directory written last.

    The pickle inside is read, which checks its checksum; the tensors' data is only located. Files of torch before 1.6
    have no recognisable end, and pass.
    """
    try:
        size = path.stat().st_size
        with open_file(path) as stream:
            start = stream.read(len(_LFS_POINTER))
        _refuse_pointer(path, start)
        if start[:1] == _PICKLE:
            return
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.header_offset + entry.compress_size > size:
                    raise BrokenFileError(f"{path.name} is truncated in {entry.filename}")
                if entry.filename.endswith("data.pkl"):
                    archive.read(entry)
    except OSError as error:
        raise BrokenFileError(f"{path.name} can't be read: {error.strerror}") from error
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
        raise BrokenFileError(f"{path.name} is truncated ({size} bytes)") from error
