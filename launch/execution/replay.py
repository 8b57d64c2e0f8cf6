"""Print a run's display again from its events, or a growing log file, for `launch logs`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TextIO

from launch.execution.display import PlainDisplay
from launch.execution.record.follow import EventFollower
from launch.files import open_file
from launch.redact import process_redactor
from launch.redact_stream import StreamRedactor
from launch.terminal import printable_bytes

_POLL_INTERVAL = 0.3  # seconds
# The polls before each check whether the run is still active, which creates a file in its folder.
_POLLS_PER_CHECK = 6


class Replay:
    """Prints the lines of one run's display on `stream`, the same as on the run's own terminal."""

    def __init__(self, folder: Path, stream: TextIO) -> None:
        self._events = EventFollower(folder)
        self._now = 0.0
        self._display = PlainDisplay(stream, clock=lambda: self._now)
        self._display.start(None)

    def show(self) -> None:
        """Print the lines of new events."""
        for event in self._events.read():
            self._now = event.time
            self._display.show(event)

    def close(self) -> None:
        """Print the last step, which may be held back."""
        self._display.close()


class Tail:
    """Copies one growing file to `stream`, without secrets and without a terminal's control codes.

    The carriage returns of a progress bar stay.
    """

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path = path
        self._stream = stream
        self._position = 0
        self._redactor = StreamRedactor(process_redactor())

    def show(self) -> None:
        """Print what is new in the file."""
        try:
            with open_file(self._path) as file:
                file.seek(self._position)
                while data := file.read(1 << 20):
                    self._position += len(data)
                    self._stream.write(printable_bytes(self._redactor.feed(data)))
        except FileNotFoundError:
            return
        self._stream.flush()

    def close(self) -> None:
        """Print the last line, which lacks a line break."""
        self._stream.write(printable_bytes(self._redactor.close()))
        self._stream.flush()


def follow(
    view: Replay | Tail, is_active: Callable[[], bool], sleep: Callable[[float], None] = time.sleep
) -> None:
    """Show new output until the run has ended, then the rest."""
    while is_active():
        for _ in range(_POLLS_PER_CHECK):
            view.show()
            sleep(_POLL_INTERVAL)
    view.show()
    view.close()
