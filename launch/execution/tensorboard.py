"""Write TensorBoard files from metrics.jsonl while the run is live: the same for every trainer, without packages.

open-instruct can't do it itself: finetune fails at any `report_to` without wandb (finetune.py:469), and the other
trainers offer no choice of tracker. A file holds TFRecords of `Event` protocol buffers: the length (8 bytes), its
masked CRC-32C, the data, and the data's masked CRC-32C (tensorflow core/lib/io/record_writer.cc). The messages' fields
are those of tensorflow core/util/event.proto and core/framework/summary.proto.
"""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from launch.execution.record.history import RunHistory
from launch.redact import process_redactor

_INTERVAL = 2.0  # seconds
_NOT_SCALARS = ("step", "time")


@contextlib.contextmanager
def tensorboard_writer(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Write the steps of the run in `folder` into its `tensorboard` folder while this context lasts.

    An earlier attempt's files are rewritten from the record, so that no step is there twice. A full disk stops the
    writing, not the run.
    """
    finished = threading.Event()
    thread = threading.Thread(target=_follow, args=(folder, finished, say), name="tensorboard", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _follow(folder: Path, finished: threading.Event, say: Callable[[str], None]) -> None:
    try:
        target = folder / "tensorboard"
        target.mkdir(parents=True, exist_ok=True)
        for old_file in target.glob("events.out.tfevents.*.launch"):
            old_file.unlink()
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.launch"
        file, history = EventFile(target / name, time.time()), RunHistory(folder)
        with contextlib.closing(file):
            running = True
            while running:
                running = not finished.wait(_INTERVAL)
                for event in history.read():
                    if event.kind == "step" and (values := extract_scalars(event.data)):
                        file.add_scalars(values, event.data["step"], event.time)
                file.flush()
    except OSError as error:
        say(f"warning: TensorBoard's file can't be written: {error.strerror or error}")


def extract_scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a step by tag; a NaN, which is null in the record, becomes NaN again."""
    tags = {}
    for name, value in values.items():
        if name.endswith("_text") and values.get(name.removesuffix("_text"), 0) is None:
            with contextlib.suppress(ValueError):
                tags[_tag(name.removesuffix("_text"))] = float(value)
        elif name not in _NOT_SCALARS and isinstance(value, (int, float)) and not isinstance(value, bool):
            tags[_tag(name)] = float(value)
    return tags


def _tag(name: str) -> str:
    """Return the tag of a metric, as transformers names it: `train/loss`, `eval/loss`."""
    return f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"


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
