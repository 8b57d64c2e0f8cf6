"""Starts the worker as a supervisor would: FIFOs for every rank, read while it runs, and what came
through them.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.paths import ROOT

ENTRY = ROOT / "launch" / "worker" / "entry.py"
# What a shell that is itself a rank, or an unusual machine, could leave behind.
_NOT_INHERITED = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LAUNCH_CHANNEL",
    "PYTHONSAFEPATH",
    "PYTHONPATH",
)


@dataclass(frozen=True)
class Finished:
    """A worker that ended: its exit code, what the launcher printed, and per rank the output and
    the events.
    """

    code: int
    printed: str
    output: tuple[str, ...]
    events: tuple[tuple[dict[str, Any], ...], ...]

    def of_kind(self, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        return [event for event in self.events[rank] if event["kind"] == kind]

    def describe(self) -> str:
        """Everything, for the message of a failed assertion."""
        return "\n".join((f"exit code {self.code}", self.printed, *self.output))


def run(
    arguments: Sequence[str | Path],
    folder: Path,
    *,
    before_entry: Sequence[str] = (),
    ranks: int = 1,
    environment: Mapping[str, str] | None = None,
    timeout: float = 300,
    python: str = sys.executable,
) -> Finished:
    """Runs `PYTHON BEFORE_ENTRY entry.py ARGUMENTS` with a channel of `ranks` ranks below `folder`.

    Everything it started is killed when it takes longer than `timeout` seconds
    (subprocess.TimeoutExpired).
    """
    channel = folder / "channel"
    channel.mkdir()
    pipes: dict[int, bytearray] = {}
    for rank in range(ranks):
        for name in ("out", "events"):
            fifo = channel / f"rank-{rank}.{name}"
            os.mkfifo(fifo)
            pipes[os.open(fifo, os.O_RDWR | os.O_NONBLOCK)] = bytearray()
    inherited = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    command = [python, *before_entry, str(ENTRY), *map(str, arguments)]
    with (folder / "launcher.log").open("w+b") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**inherited, "LAUNCH_CHANNEL": str(channel), **(environment or {})},
            start_new_session=True,
        )
        try:
            _read_until_end(process, pipes, timeout)
        finally:
            if process.poll() is None:
                # the ranks follow: their parent's death kills them
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for descriptor in pipes:
                os.close(descriptor)
        log.seek(0)
        printed = log.read().decode()
    texts = [bytes(content).decode() for content in pipes.values()]
    events = (tuple(json.loads(line) for line in text.splitlines()) for text in texts[1::2])
    return Finished(process.returncode, printed, tuple(texts[::2]), tuple(events))


def _read_until_end(
    process: subprocess.Popen[bytes], pipes: dict[int, bytearray], timeout: float
) -> None:
    waited = 0.0
    ended = False
    while True:
        ready, _, _ = select.select(list(pipes), [], [], 0.05)
        for descriptor in ready:
            pipes[descriptor] += os.read(descriptor, 1 << 16)
        if ended and not ready:
            return
        ended = process.poll() is not None
        waited += 0 if ready else 0.05
        if waited > timeout:
            raise subprocess.TimeoutExpired(process.args, timeout)
