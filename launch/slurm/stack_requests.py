"""Stack dumps of every rank of a job: node 0 requests them and the other nodes respond, through a shared folder."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launch.execution.supervise.stacks import Stacks
from launch.files import read_file, write_json
from launch.worker.json_codec import decode, versioned

RESPONSE_TIMEOUT = 15.0  # seconds; py-spy takes one or two, and a shared folder may show files late
LOOKS_PER_SECOND = 20  # at a file for which all nodes wait, by all of them together
_POLL = 0.1  # seconds


class StackRequests:
    """The stack requests of one start of a job, seen from the node `node_rank` of `hosts`; a `PeerStacks`."""

    def __init__(
        self, folder: Path, node_rank: int, hosts: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._node_rank, self._hosts, self._clock = folder, node_rank, hosts, clock
        self._deadline = 0.0
        self._interval = len(hosts) / LOOKS_PER_SECOND
        self._next_look = clock() + random.uniform(0, self._interval)  # the nodes must not look all at once

    def request(self) -> None:
        """Request the stacks of the other nodes' ranks."""
        (self._folder / "look").touch()
        self._deadline = time.monotonic() + RESPONSE_TIMEOUT + self._interval

    def is_requested(self) -> bool:
        """Whether node 0 has requested this node's stacks."""
        if self._node_rank == 0 or self._clock() < self._next_look:
            return False
        self._next_look = self._clock() + self._interval
        return (self._folder / "look").exists()

    def publish(self, stacks: Stacks) -> None:
        """Publish this node's stacks."""
        write_json(self._path(self._node_rank), versioned(stacks))

    def collect(self) -> Stacks:
        """Collect the stacks of the other nodes, with a summary line for each node that did not respond in time."""
        files: list[Path] = []
        summary: list[str] = []
        for node_rank, host in enumerate(self._hosts):
            if node_rank == self._node_rank:
                continue
            stacks = self._await(node_rank)
            if stacks is None:
                summary.append(f"node {host} sent no stacks in time")
            else:
                files += stacks.files
                summary += stacks.summary
        return Stacks(tuple(files), tuple(summary))

    def _await(self, node_rank: int) -> Stacks | None:
        while True:
            try:
                return decode(Stacks, read_file(self._path(node_rank)))
            except (OSError, ValueError):
                if time.monotonic() > self._deadline:
                    return None
                time.sleep(_POLL)

    def _path(self, node_rank: int) -> Path:
        return self._folder / f"looked-{node_rank}.json"
