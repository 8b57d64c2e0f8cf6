"""Connects a rank to its supervisor through two FIFOs in the folder that LAUNCH_CHANNEL names.

`rank-N.out` takes everything that the rank prints (the trainer's own output, text); `rank-N.events`
takes JSON lines. The supervisor created both and holds them open. Sending an event never blocks
training and never fails it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from .json_codec import SCHEMA_VERSION

EVENT_BYTES = 4095  # below PIPE_BUF on Linux, so each write() is atomic
_ELLIPSIS = "..."


def rank() -> int:
    """Return the global rank of this process.

    torchrun and accelerate set it as RANK; a single process has none, and is rank 0.
    """
    return int(os.environ.get("RANK", "0"))


class EventWriter:
    """Writes events.

    Without a descriptor it drops them: the command was pasted into a shell.
    """

    def __init__(self, descriptor: int | None, rank: int) -> None:
        self._descriptor = descriptor
        self.rank = rank
        self._before_checkpoint: list[Callable[[], None]] = []

    @property
    def is_first_of_machine(self) -> bool:
        """Whether this is the first process of the run on its machine."""
        return os.environ.get("LOCAL_RANK", "0") == "0"

    def before_checkpoint(self, callback: Callable[[], None]) -> None:
        """Register what is called, on every rank, before a checkpoint is written."""
        self._before_checkpoint.append(callback)

    def emit(self, kind: str, **fields: Any) -> None:
        """Send one event of `kind`; it is dropped if the pipe is full or closed, or the event is
        too long.
        """
        if self._descriptor is None:
            return
        event = {
            "schema_version": SCHEMA_VERSION,
            "kind": kind,
            "time": time.time(),
            "rank": self.rank,
            **fields,
        }
        with contextlib.suppress(OSError, ValueError):
            os.write(self._descriptor, encode_event(event))

    def begin(self, phase: str) -> None:
        """Send, from the first process of each machine, that the trainer begins a phase."""
        if self.is_first_of_machine:
            self.emit("phase", phase=phase)

    def begin_checkpoint(self) -> None:
        """Send, from the first rank, that the trainer writes a checkpoint.

        Its next step ends the phase.
        """
        for callback in self._before_checkpoint:
            callback()
        if self.rank == 0:
            self.begin("checkpoint")

    def warn(self, message: str) -> None:
        """Send a "warning" event, and print the same message to stderr for the rank's log."""
        self.emit("warning", message=message)
        print(f"launch: warning: {message}", file=sys.stderr, flush=True)

    def error(self, message: str, **fields: Any) -> None:
        """Send an "error" event: the reason why this rank ends."""
        self.emit("error", message=message, **fields)


def encode_event(event: Mapping[str, Any]) -> bytes:
    """Encode `event` as one line of JSON of at most EVENT_BYTES bytes.

    A step that is too long loses its last numbers: a mixture of experts logs several for each
    layer. In any other event that is too long, the longest text is shortened. Raises ValueError if
    there is no number left to drop, or no text to shorten.
    """
    fields = dict(event)
    while True:
        line = (json.dumps(fields, default=str) + "\n").encode("ascii")
        excess = len(line) - EVENT_BYTES
        if excess <= 0:
            return line
        last = next(reversed(fields))
        if fields.get("kind") == "step" and isinstance(fields[last], float):
            del fields[last]
            continue
        texts = {name: value for name, value in fields.items() if isinstance(value, str)}
        longest = max(texts, key=lambda name: len(texts[name]))
        text = texts[longest]
        if len(text) <= len(_ELLIPSIS):
            kind = fields.get("kind")
            raise ValueError(f"event of kind {kind} does not fit in {EVENT_BYTES} bytes")
        # A character is at least one byte of JSON, so that cutting `excess` characters is enough.
        kept = max(0, len(text) - excess - len(_ELLIPSIS))
        fields[longest] = text[:kept] + _ELLIPSIS


def connect(environment: Mapping[str, str]) -> EventWriter:
    """Redirect this process's output into the FIFO of its rank and return its event writer.

    Without LAUNCH_CHANNEL nothing is redirected. A FIFO without a reader is ignored, so that a rank
    whose supervisor is gone does not hang in open().
    """
    folder = environment.get("LAUNCH_CHANNEL")
    number = rank()
    if not folder:
        return EventWriter(None, number)
    output = _open_fifo(Path(folder) / f"rank-{number}.out")
    if output is not None:
        os.set_blocking(output, True)  # a full pipe delays a print, but must not lose or break it
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        sys.stdout = _open_text(1)
        sys.stderr = _open_text(2)
    return EventWriter(_open_fifo(Path(folder) / f"rank-{number}.events"), number)


def _open_text(descriptor: int) -> TextIO:
    """Open a line-buffered text stream over `descriptor`.

    The existing stream may be configured for a file. The encoding is UTF-8 whatever the locale: the
    supervisor reads UTF-8, and an emoji must not end a rank.
    """
    return open(
        descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


def _open_fifo(fifo: Path) -> int | None:
    """Open a FIFO for non-blocking writes; return None if it is missing or has no reader."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None
