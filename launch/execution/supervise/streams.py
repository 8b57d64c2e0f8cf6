"""Reads the output of a run's processes: redacted into log files, and on as lines and events.

One thread reads everything. Each rank has two FIFOs, and a server beside the ranks has one, in a
private folder, created before the run starts and held open for reading and writing, so a late
worker never blocks in open() and no early end of file occurs. Memory is bounded: lines have a
maximum length, and a writer that is faster than this thread waits in its pipe.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from launch.execution.record.events import Event, parse_event
from launch.files import open_unlinked
from launch.redact import process_redactor
from launch.redact_stream import StreamRedactor

LINE_LIMIT = 1 << 16  # bytes; the rest of a longer line is dropped here, but kept in the log
CHUNK = 1 << 18  # bytes per read; bounds how long the other streams wait
_LINE_END = re.compile(rb"[\r\n]")
_PIPE_SIZE = 1 << 20  # bytes, on Linux: a burst of this size does not block the trainer
_F_SETPIPE_SZ = 1031  # linux/fcntl.h
# Seconds between two rounds while little arrives; waking up for every line would cost more.
_IDLE = 0.02
# The source numbers of the launcher's own output and of the server's; ranks are 0, 1, ...
LAUNCHER = -1
SERVER = -2
SERVER_LOG = "vllm-server.log"


@dataclass(frozen=True)
class Channel:
    """The folder with the FIFOs `rank-N.out` and `rank-N.events`; workers find it through
    LAUNCH_CHANNEL.
    """

    folder: Path
    ranks: tuple[int, ...]
    has_server: bool = False

    @staticmethod
    def create(folder: Path, ranks: Sequence[int], *, has_server: bool = False) -> Channel:
        """Create the FIFOs in `folder`, an existing private folder."""
        channel = Channel(folder, tuple(ranks), has_server)
        if has_server:
            os.mkfifo(channel.server, 0o600)
        for rank in ranks:
            os.mkfifo(channel.out(rank), 0o600)
            os.mkfifo(channel.events(rank), 0o600)
        return channel

    @property
    def server(self) -> Path:
        return self.folder / "server.out"

    def out(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.out"

    def events(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.events"


class _LogFile:
    """One log file. On a full disk it counts the lost bytes and never stops the run."""

    def __init__(self, path: Path) -> None:
        self.lost_bytes = 0
        descriptor = open_unlinked(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._file = os.fdopen(descriptor, "ab", buffering=0)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._file.write(view) :]
            except OSError:
                self.lost_bytes += len(view)
                return

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class LineCutter:
    """Cuts one stream into decoded lines without line ends, skipping empty lines.

    CR ends a line too, so each state of a progress bar is one line. Invalid UTF-8 becomes U+FFFD.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        *lines, rest = _LINE_END.split(self._rest + data)
        self._rest = rest[:LINE_LIMIT]
        return [line[:LINE_LIMIT].decode("utf-8", "replace") for line in lines if line]


class StreamSink(Protocol):
    """Takes the lines and events of a run from the pump."""

    def lines(self, source: int, lines: Sequence[str], now: float) -> None:
        """Take lines of the output of rank `source`, of the LAUNCHER or of the SERVER."""

    def event(self, event: Event) -> None:
        """Take an event that a worker sent."""


class _OutputReader:
    """Handles the output of one process: redacted into its log, line by line to the sink."""

    def __init__(self, source: int, log: _LogFile, sink: StreamSink) -> None:
        self.source = source
        self.log = log
        self._sink = sink
        self._redactor = StreamRedactor(process_redactor())
        self._cutter = LineCutter()

    def feed(self, data: bytes, now: float) -> None:
        self._write(self._redactor.feed(data), now)

    def close(self, now: float) -> None:
        self._write(self._redactor.close(), now)
        self._pass_on(b"\n", now)  # ends the last line
        self.log.close()

    def _write(self, redacted: bytes, now: float) -> None:
        if redacted:
            self.log.write(redacted)
            self._pass_on(redacted, now)

    def _pass_on(self, redacted: bytes, now: float) -> None:
        """Pass on the lines that are complete with this data."""
        lines = self._cutter.feed(redacted)
        if lines:
            self._sink.lines(self.source, lines, now)


class _EventReader:
    """Parses the events of one rank, JSON lines; invalid ones are dropped."""

    def __init__(self, rank: int, sink: StreamSink) -> None:
        self._rank = rank
        self._sink = sink
        self._cutter = LineCutter()

    def feed(self, data: bytes, now: float) -> None:
        for line in self._cutter.feed(data):
            event = parse_event(line, self._rank)
            if event is not None:
                redacted = process_redactor().redact_object(event.data)
                self._sink.event(replace(event, data=redacted))

    def close(self, now: float) -> None:
        self.feed(b"\n", now)


class Pump:
    """The thread that reads every FIFO of a channel and the launcher's pipe, until `finish`.

    `logs`: the folder for `rank-N.log`, `launcher.log` and `vllm-server.log`. `launcher`: the read end of the
    launcher's output pipe. An exception in the sink does not stop the reading; the first one is
    kept in `fault`.
    """

    def __init__(self, channel: Channel, launcher: int, logs: Path, sink: StreamSink) -> None:
        self.fault: Exception | None = None
        self._sink = sink
        self._selector = selectors.DefaultSelector()
        # The readers by file descriptor.
        self._readers: dict[int, _OutputReader | _EventReader] = {}
        self._closing = threading.Event()
        self._wake, self._waker = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        for rank in channel.ranks:
            output = os.open(channel.out(rank), os.O_RDWR | os.O_NONBLOCK)
            self._readers[output] = _OutputReader(rank, _LogFile(logs / f"rank-{rank}.log"), sink)
            events = os.open(channel.events(rank), os.O_RDWR | os.O_NONBLOCK)
            self._readers[events] = _EventReader(rank, sink)
        if channel.has_server:
            output = os.open(channel.server, os.O_RDWR | os.O_NONBLOCK)
            self._readers[output] = _OutputReader(SERVER, _LogFile(logs / SERVER_LOG), sink)
        os.set_blocking(launcher, False)
        self._readers[launcher] = _OutputReader(LAUNCHER, _LogFile(logs / "launcher.log"), sink)
        for fd, reader in self._readers.items():
            _enlarge_pipe(fd)
            self._selector.register(fd, selectors.EVENT_READ, reader)
        self._thread = threading.Thread(target=self._read_all, name="launch-pump", daemon=True)

    @property
    def lost_bytes(self) -> int:
        """Number of log bytes that could not be written."""
        readers = [item for item in self._readers.values() if isinstance(item, _OutputReader)]
        return sum(reader.log.lost_bytes for reader in readers)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Read what is left in the pipes and close everything; call it when no writer is left."""
        self._closing.set()
        os.write(self._waker, b"x")
        self._thread.join()
        for fd in (*self._readers, self._wake, self._waker):
            os.close(fd)
        self._selector.close()

    def _read_all(self) -> None:
        while not self._closing.is_set():
            ready = self._selector.select()
            now = time.time()
            bytes_read = 0
            for key, _ in ready:
                if key.data is not None:  # the pipe that only wakes this thread up has no data
                    bytes_read += self._read(key.fd, key.data, now)
            if bytes_read < _PIPE_SIZE // 8:
                self._closing.wait(_IDLE)
        now = time.time()
        for fd, reader in self._readers.items():
            while self._read(fd, reader, now):
                pass
            self._call_safely(reader.close, now)

    def _read(self, fd: int, reader: _OutputReader | _EventReader, now: float) -> int:
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            with contextlib.suppress(KeyError):
                self._selector.unregister(fd)
            return 0
        self._call_safely(reader.feed, data, now)
        return len(data)

    def _call_safely(self, function: object, *arguments: object) -> None:
        try:
            function(*arguments)  # type: ignore[operator]
        except Exception as error:  # the trainer must never block on a full pipe
            self.fault = self.fault or error


def _enlarge_pipe(fd: int) -> None:
    if sys.platform.startswith("linux"):
        import fcntl

        with contextlib.suppress(OSError):  # the total pipe size per user is limited
            fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_SIZE)
