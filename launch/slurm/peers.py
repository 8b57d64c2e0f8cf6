"""The supervisors of a job's nodes tell each other that they live, through a folder that all of them see.

Slurm notices a dead node after minutes, and a rank whose peer is gone waits in a collective for longer. Node 0 watches
every node and every node watches node 0: one is lost when its file has not changed for a while, and the others end.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INTERVAL = 1.0  # seconds between two signs of life
_FIRST = 300.0  # seconds until a node's first sign: on many nodes Python itself takes a while to be read
_END = 40.0  # seconds in which the other nodes may end after this one; a tear-down takes 15 at most


@dataclass(frozen=True)
class Lost:
    """A node that failed (`cause`: its own words) or fell silent."""

    node_rank: int
    cause: str
    silent: bool


class Peers:
    """This node's sign of life, and its watch over the others. `limit`: seconds of silence, 0: silence is let pass;
    `on_lost` is called once, from the watching thread."""

    def __init__(
        self,
        folder: Path,
        node_rank: int,
        nodes: int,
        limit: float,
        on_lost: Callable[[Lost], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lost: Lost | None = None
        self._folder, self._rank, self._limit, self._on_lost, self._clock = folder, node_rank, limit, on_lost, clock
        self._watched = [rank for rank in range(nodes) if rank != node_rank] if node_rank == 0 else [0]
        self._seen: dict[int, tuple[Any, float]] = {}
        self._began = clock()
        self._count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.sign("alive")
        self._thread.start()

    def finish(self, cause: str | None) -> None:
        """The last sign: that this node is through, or why it failed. Returns when the watched nodes have ended too:
        srun kills every task as soon as one has failed, and node 0 has a record to write."""
        self._stop.set()
        self._thread.join()
        self.sign("done" if cause is None else "failed", cause or "")
        patience = None if cause is None and self._rank else _END
        ended = self._clock()
        seen: dict[int, tuple[Any, float]] = {}
        waiting = {
            rank for rank in self._watched if not (self.lost and self.lost.silent and self.lost.node_rank == rank)
        }
        while waiting and (patience is None or self._clock() - ended < patience):
            for rank in list(waiting):
                told = self._read(rank)
                if seen.get(rank, (None, 0.0))[0] != told or rank not in seen:
                    seen[rank] = (told, self._clock())
                silent = self._clock() - seen[rank][1] > max(self._limit, _END)
                if silent or (told is not None and told["state"] != "alive"):
                    waiting.remove(rank)
            if waiting:
                time.sleep(0.1)

    def failures(self) -> dict[int, str]:
        """What the watched nodes said of their own failures, by node."""
        told = {rank: self._read(rank) for rank in self._watched}
        return {rank: one["cause"] for rank, one in told.items() if one and one["state"] == "failed"}

    def look(self) -> Lost | None:
        """One round: say that this node lives and see who does not. None: all do."""
        began = self._clock()
        self.sign("alive")
        found = None
        for rank in self._watched:
            told = self._read(rank)
            before = self._seen.get(rank)
            if told and told["state"] == "failed":
                return Lost(rank, told["cause"], silent=False)
            if before is None or before[0] != told:
                if told is not None or before is None:
                    self._seen[rank] = (told, began)
                continue
            limit = max(self._limit, _FIRST) if told is None else self._limit
            if self._limit and (told is None or told["state"] == "alive") and began - before[1] > limit:
                found = found or Lost(rank, f"no sign of life for {began - before[1]:.0f} s", silent=True)
        return found

    def _run(self) -> None:
        last = self._clock()
        while not self._stop.wait(INTERVAL):
            now = self._clock()
            if self._limit and now - last > self._limit / 2:
                # this machine was suspended, or the file system hung for everybody: nobody is to blame for silence
                self._seen = {rank: (told, now) for rank, (told, _) in self._seen.items()}
            last = now
            with contextlib.suppress(OSError):
                found = self.look()
                if found is not None:
                    self.lost = found
                    self._on_lost(found)
                    self._beat_on()
                    return

    def _beat_on(self) -> None:
        """The tear-down takes seconds, in which the others must not blame this node."""
        while not self._stop.wait(INTERVAL):
            with contextlib.suppress(OSError):
                self.sign("alive")

    def _path(self, rank: int) -> Path:
        return self._folder / f"node-{rank}.json"

    def sign(self, state: str, cause: str = "") -> None:
        """Write this node's sign: it is `alive`, `done` or `failed`."""
        self._count += 1
        told = {"schema_version": 1, "state": state, "count": self._count, "cause": cause, "pid": os.getpid()}
        temporary = self._path(self._rank).with_suffix(".new")
        temporary.write_text(json.dumps(told), encoding="utf-8")
        temporary.replace(self._path(self._rank))

    def _read(self, rank: int) -> dict[str, Any] | None:
        try:
            told: dict[str, Any] = json.loads(self._path(rank).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return told


def nodes_said(failures: dict[int, str], hosts: Sequence[str]) -> tuple[str, ...]:
    """The failures of other nodes, a line each."""
    return tuple(f"node {hosts[rank]}: {cause}" for rank, cause in sorted(failures.items()))
