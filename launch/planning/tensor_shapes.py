"""The shapes of the tensors in a safetensors file, from its header alone."""

from __future__ import annotations

import struct
from pathlib import Path

from launch.files import open_file, parse_json

_HEADER_LIMIT = 100 << 20  # bytes; the format's own limit


def read_tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor, by name. Raises OSError, ValueError, KeyError, TypeError or struct.error for a
    file that is not one."""
    with open_file(file) as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        if size > _HEADER_LIMIT:
            raise ValueError(f"{file} has no safetensors header")
        header = parse_json(stream.read(size))
    return {name: tuple(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"}
