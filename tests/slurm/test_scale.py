"""The signs of life of 512 nodes over one folder: file operations a second, and how soon a dead
node is found.

The nodes share a virtual clock; their files are real, and Python's audit events count every access.
"""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.slurm.node.ranks import StartRecord, read_start_record
from launch.slurm.peers import LostNode, Peers

NODES = 512
MOST = 200  # file operations a second, of all nodes on average
ACCESSES = ("open", "os.rename", "os.utime", "os.mkdir", "os.listdir", "os.scandir", "os.remove")


class Nodes:
    """512 nodes in a folder, and the virtual time in which they act."""

    def __init__(self, folder: Path) -> None:
        self.now, self.folder = 0.0, folder
        self.dead: set[int] = set()
        self.lost: dict[int, tuple[float, LostNode]] = {}
        self.started: set[int] = set()
        self.accesses = 0
        hosts = [f"n{rank}" for rank in range(NODES)]
        self.peers = [
            Peers(folder, rank, hosts, 20.0, self._on_lost(rank), clock=self.clock)
            for rank in range(NODES)
        ]
        self._order = itertools.count()
        self._events: list[tuple[float, int, int, Callable[[int], float]]] = []
        for rank in range(NODES):
            starts = random.uniform(0, 5)  # srun starts the tasks within seconds
            self.at(starts, rank, self._round)

    def clock(self) -> float:
        return self.now

    def _on_lost(self, rank: int) -> Callable[[LostNode], None]:
        return lambda lost: self.lost.setdefault(rank, (self.now, lost)) and None

    def at(self, time: float, rank: int, action: Callable[[int], float]) -> None:
        heapq.heappush(self._events, (time, next(self._order), rank, action))

    def _round(self, rank: int) -> float:
        seconds = self.peers[rank].do_round()
        if rank and rank not in self.started and self.peers[rank].progress == "started":
            self.started.add(rank)
            assert read_start_record(self.folder) is not None
        return seconds

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self._events[0][0] < until:
            self.now, _, rank, action = heapq.heappop(self._events)
            if rank not in self.dead:
                self.at(self.now + action(rank), rank, action)
        self.now = until

    def end(self) -> None:
        """End the ranks of every node at once."""
        self._events = []
        for rank, peers in enumerate(self.peers):
            peers.report_end(None)
            self.at(self.now, rank, self._round)

    def rate(self, began: float, before: int) -> float:
        """Return the accesses a second since `began`, when there had been `before`."""
        return (self.accesses - before) / (self.now - began)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    random.seed(512)
    simulated = Nodes(tmp_path)
    prefix = str(tmp_path)

    def count(event: str, arguments: tuple[object, ...]) -> None:
        if event in ACCESSES and str(arguments[0]).startswith(prefix):
            simulated.accesses += 1

    sys.addaudithook(count)
    return simulated


def test_512_nodes_from_start_to_end(nodes: Nodes) -> None:
    nodes.pass_time(20)
    StartRecord("12345678", ("python",), "n0", 10_000).write(nodes.folder)
    nodes.peers[0].report_progress("started")
    nodes.pass_time(40)
    assert len(nodes.started) == NODES - 1  # every node knows within 40 s
    start = nodes.rate(0, 0)
    running, before = nodes.now, nodes.accesses
    nodes.pass_time(60)
    run = nodes.rate(running, before)

    nodes.dead.add(311)
    died = nodes.now
    nodes.pass_time(90)
    found, lost = nodes.lost[0]
    assert found - died < 90
    assert lost.node_rank == 311 and lost.is_silent and lost.met_others
    assert set(nodes.lost) == {0}

    ended, before = nodes.now, nodes.accesses
    nodes.end()
    nodes.pass_time(40)
    end = nodes.rate(ended, before)
    assert nodes.peers[0].absent() == [] and nodes.peers[0]._live == set()
    print(
        f"file operations a second: start {start:.0f}, run {run:.0f}, end {end:.0f}; a dead node found in "
        f"{found - died:.0f} s"
    )
    assert max(start, run, end) < MOST, (start, run, end)
