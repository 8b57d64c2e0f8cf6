"""Finds a NaN or an infinite number in the weights of a model, without torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from launch.files import open_file, parse_json

_HEADER_LIMIT = 100_000_000  # bytes, as in the safetensors library
_BLOCK = 1 << 24  # bytes of a tensor that are read at a time; a multiple of each size
# By type: bytes of a number; the bits of the exponent in its last byte, and in the one before.
# All of them are set in a number that is not finite, and only there.
_EXPONENTS = {
    "BF16": (2, 0x7F, 0x80),
    "F16": (2, 0x7C, 0x00),
    "F32": (4, 0x7F, 0x80),
    "F64": (8, 0x7F, 0xF0),
}


def find_non_finite_weight(model: Path) -> str | None:
    """Return the first tensor of a folder's safetensors files that is not finite, as `NAME in FILE`.

    None if there is none, and for files that cannot be read.
    """
    for path in sorted(model.glob("*.safetensors")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            for name in _non_finite_tensors(path):
                return f"{name} in {path.name}"
    return None


def _non_finite_tensors(path: Path) -> Iterator[str]:
    with open_file(path) as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > _HEADER_LIMIT:
            return
        header = parse_json(stream.read(length))
        for name, entry in header.items():
            if name == "__metadata__" or entry["dtype"] not in _EXPONENTS:
                continue
            size, high, low = _EXPONENTS[entry["dtype"]]
            begin, end = entry["data_offsets"]
            stream.seek(8 + length + begin)
            for at in range(begin, end, _BLOCK):
                block = stream.read(min(_BLOCK, end - at))
                if _is_any_non_finite(block, size, high, low):
                    yield name
                    break


def _is_any_non_finite(block: bytes, size: int, high: int, low: int) -> bool:
    """Return whether a number of the block has all bits of its exponent set.

    Numbers have `size` bytes, the last of which is the most significant. `high` and `low` are the
    exponent's bits in the last byte and in the one before.
    """
    last = block[size - 1 :: size]
    # a byte of 1 for each number whose last byte has all bits of the exponent
    marks = last.translate(bytes(byte & high == high for byte in range(256)))
    if 1 not in marks:
        return False
    before = block[size - 2 :: size]
    at = marks.find(1)
    while at >= 0:
        if before[at] & low == low:
            return True
        at = marks.find(1, at + 1)
    return False
