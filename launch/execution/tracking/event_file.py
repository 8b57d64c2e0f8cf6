"""Write TensorBoard's event files without TensorBoard: TFRecords of `Event` protocol buffers.

A record is the length (8 bytes), its masked CRC-32C, the data, and the data's masked CRC-32C (tensorflow
core/lib/io/record_writer.cc). The messages' fields are those of tensorflow core/util/event.proto and
core/framework/summary.proto.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from launch.redact import process_redactor

_POLYNOMIAL = 0x82F63B78  # CRC-32C, reversed
_MASK_DELTA = 0xA282EAD8
_VERSION = b"brain.Event:2"


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) checksum.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes_field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _encode_event(time: float, step: int, summary: bytes) -> bytes:
    return struct.pack("<Bd", 1 << 3 | 1, time) + _varint(2 << 3) + _varint(step) + _bytes_field(5, summary)


def _encode_scalar(tag: str, value: float) -> bytes:
    try:
        number = struct.pack("<Bf", 2 << 3 | 5, value)
    except OverflowError:  # beyond the range of a 32-bit float
        number = struct.pack("<Bf", 2 << 3 | 5, math.copysign(math.inf, value))
    return _bytes_field(1, _bytes_field(1, tag.encode()) + number)


class EventFile:
    """One event file, created when it is opened. Times are unix seconds."""

    def __init__(self, path: Path, time: float) -> None:
        self._file: BinaryIO = path.open("wb")
        self._write(struct.pack("<Bd", 1 << 3 | 1, time) + _bytes_field(3, _VERSION))

    def add_scalars(self, values: Mapping[str, float], step: int, time: float) -> None:
        """Write the values of one step, by tag."""
        redact = process_redactor().redact_text
        self._write(
            _encode_event(time, step, b"".join(_encode_scalar(redact(tag), value) for tag, value in values.items()))
        )

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        self._file.write(length + _masked_crc(length) + data + _masked_crc(data))
