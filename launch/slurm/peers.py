"""Heartbeats between the per-node supervisors of a job, through a folder that all of them share.

Slurm notices a dead node only after minutes, and a rank whose peer is gone waits in a collective
even longer. Node 0 watches every node and every node watches node 0. A logged step proves that
every rank is alive; without one, a node is lost when its heartbeat, the modification time of its
file, has not changed for a while, and the others then end. The content of the files is all else
that the supervisors tell each other: how far node 0 is, why a node failed, and, when the run
stalls, where the ranks of each node are.

The more nodes, the rarer are the heartbeats: all nodes together cause fewer than 200 file
operations a second on average.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.execution.supervise.stacks import Stacks
from launch.external import wait_until
from launch.files import write_json
from launch.worker.json_codec import decode, versioned

_INTERVAL = 1.0  # seconds between two heartbeats of a job of few nodes
_SHORT_INTERVAL = 0.2  # the same before the ranks start, and once this node's ranks have ended
# Rounds of all nodes together; in each round a node writes its file and reads those it watches.
_ROUNDS_PER_SECOND = 30
_MISSED = 2.5  # intervals between heartbeats after which a silent node counts as lost
# Seconds until a node's first heartbeat: on many nodes loading Python takes a while.
_FIRST_HEARTBEAT = 300.0
# Seconds to wait for a node without any heartbeat once this node was terminated externally.
_ABSENT = 5.0
_MAX_WAIT = 300.0  # seconds that a node whose ranks failed waits for node 0
# The same wait once Slurm has sent SIGTERM: it kills this node half a minute later.
_TERMINATED_WAIT = 20.0
_SHOWN_AFTER = 3.0  # seconds until what another node wrote is visible on a shared file system
# Seconds, beside two intervals, to wait for the stacks of the other nodes; py-spy takes one or two.
_STACKS_WAIT = 15.0
# Seconds for the other nodes to end after this one, or to query Slurm; a tear-down takes up to 15.
_END = 40.0


@dataclass(frozen=True)
class NodeFailure:
    """Why the ranks of a node failed, as it reports it."""

    cause: str
    cause_id: str | None = None
    cure: str | None = None


@dataclass(frozen=True)
class LostNode:
    """A node that reported a failure or fell silent."""

    node_rank: int
    failure: NodeFailure
    is_silent: bool
    met_others: bool = True  # False if this node never saw a heartbeat of another one


@dataclass(frozen=True)
class Heartbeat:
    """The content of a node's file."""

    state: str  # state of the node's ranks: `alive`, `failed` or `done`; or `over`
    # How far node 0 is: `planned`; `started` once its start record is written; `stalled` or, if
    # only some steps were requested, `complete`, just before it ends its ranks.
    progress: str = ""
    failure: NodeFailure | None = None
    stacks: Stacks | None = None  # stacks of the node's ranks, once node 0 is `stalled`


@dataclass
class _Observation:
    """What this node last read of another node's file."""

    heartbeat: Heartbeat | None
    modified_ns: int  # the file's modification time, in the file system's nanoseconds
    changed_at: float  # time at which a change was last seen, by this node's clock


def heartbeat_interval(nodes: int, minimum: float = _INTERVAL) -> float:
    """Return the seconds between two heartbeats of a node."""
    return max(minimum, nodes / _ROUNDS_PER_SECOND)


class Peers:
    """Writes this node's heartbeat and watches the others.

    `limit` is in seconds of silence, 0 tolerates any silence; on many nodes it is at least 2.5
    intervals. `on_lost` is called once, from the watching thread. `was_terminated` returns whether
    this node was killed externally; Slurm also does that when the task of another node ends by
    itself. `is_reachable` returns whether a process of node 0 still listens: its supervisor may be
    stopped while its ranks train.
    """

    def __init__(
        self,
        folder: Path,
        node_rank: int,
        hosts: Sequence[str],
        limit: float,
        on_lost: Callable[[LostNode], None],
        *,
        was_terminated: Callable[[], bool] = lambda: False,
        is_reachable: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # The node that failed first, or, as soon as there is one, the silent node: when a machine
        # dies, the ranks of the other nodes fail at once, and its silence shows only later.
        self.lost: LostNode | None = None
        self._folder = folder
        self._rank = node_rank
        self._hosts = hosts
        self._on_lost = on_lost
        self._was_terminated = was_terminated
        self._is_reachable = is_reachable
        self._clock = clock

        self._nodes = len(hosts)
        self._limit = 0.0
        if limit:
            self._limit = max(limit, _MISSED * heartbeat_interval(self._nodes))
        self._watched = list(range(1, self._nodes)) if node_rank == 0 else [0]
        self._live = set(self._watched)
        self._ended: set[int] = set()  # nodes whose launchers ended without a report
        self._observations: dict[int, _Observation] = {}

        self._heartbeat = Heartbeat("alive")  # what this node reports
        self._written = Heartbeat("")  # what its file contains
        self._terminated_at: float | None = None
        self._step_at = -math.inf
        self._rounds = 0
        self._last_round = clock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)

    def start(self) -> None:
        """Start the watching thread, which writes the first heartbeat."""
        if self._rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    @property
    def progress(self) -> str:
        """How far node 0 is; empty until it has planned."""
        heartbeat = self._heartbeat if self._rank == 0 else self._heartbeat_of_node_0
        return heartbeat.progress if heartbeat else ""

    def report_progress(self, progress: str) -> None:
        """Report on node 0 how far the job is; the other nodes wait for it."""
        self._report(progress=progress)

    def _report(self, **changes: Any) -> None:
        self._heartbeat = replace(self._heartbeat, **changes)
        self._wake.set()

    def wait_while(self, *progress: str) -> None:
        """Wait while the progress of node 0 is one of `progress` and may still change."""
        while self.progress in progress:
            if self.lost is not None or self._is_over or self._was_terminated():
                return
            time.sleep(_SHORT_INTERVAL / 2)

    def has_completed(self) -> bool:
        """Return whether node 0 had all requested steps logged before this node's ranks failed."""
        seconds = _SHOWN_AFTER + heartbeat_interval(self._nodes)
        return wait_until(lambda: self.progress == "complete", seconds)

    def publish_stacks(self, stacks: Stacks) -> None:
        """Send node 0 the stacks of this node's ranks."""
        self._report(stacks=stacks)

    def collect_stacks(self) -> Stacks:
        """Wait for the stacks of the other nodes, and join them.

        The summary has a line for each node that sends none in time.
        """
        seconds = _STACKS_WAIT + 2 * heartbeat_interval(self._nodes)
        wait_until(lambda: self._sent_stacks().keys() >= set(self._live), seconds)
        stacks_by_rank = self._sent_stacks()
        files: list[Path] = []
        summary: list[str] = []
        for _, stacks in sorted(stacks_by_rank.items()):
            files.extend(stacks.files)
            summary.extend(stacks.summary)
        silent = [rank for rank in self._watched if rank not in stacks_by_rank]
        summary.extend(f"node {self._hosts[rank]} sent no stacks in time" for rank in silent)
        return Stacks(tuple(files), tuple(summary))

    def _sent_stacks(self) -> dict[int, Stacks]:
        return {
            rank: heartbeat.stacks
            for rank, heartbeat in self._heartbeats.items()
            if heartbeat.stacks
        }

    def note_step(self) -> None:
        """Note that a step was logged, which takes every rank."""
        self._step_at = self._clock()

    def settle(self, failure: NodeFailure | None) -> None:
        """Report that this node's ranks are done (None), or why they failed.

        Returns when the watched nodes have reported too or fell silent: only then is it known which
        one is at fault.
        """
        rounds = self._rounds
        self.report_end(failure)
        waits_for_node_0 = failure is not None and self._rank > 0
        patience = self._limit + (_MAX_WAIT if waits_for_node_0 else _END)

        def is_settled() -> bool:
            if self._rounds >= rounds + 2 and not self._pending():
                return True
            if self._terminated_at is None:
                return False
            return self._clock() - self._terminated_at > _TERMINATED_WAIT

        wait_until(is_settled, patience)

    def report_end(self, failure: NodeFailure | None) -> None:
        """Report that this node's ranks are done (None), or why they failed.

        Only the first report counts.
        """
        if self._heartbeat.state == "alive":
            self._report(state="done" if failure is None else "failed", failure=failure)

    def note_ended(self, rank: int) -> None:
        """Note that a node's launcher has ended, so that nobody waits for its report."""
        self._ended.add(rank)

    def absent(self) -> list[int]:
        """Return the watched nodes whose heartbeat was never seen."""
        return [rank for rank in self._watched if rank not in self._heartbeats]

    def _pending(self) -> set[int]:
        """Return the nodes whose end this node waits for.

        Slurm kills what still runs half a minute after its signal, so that it waits only briefly
        for nodes that never wrote a heartbeat.
        """
        if self._terminated_at is None and self._was_terminated():
            self._terminated_at = self._clock()
        pending = self._live - self._ended
        if self._terminated_at is None or self._clock() - self._terminated_at < _ABSENT:
            return pending
        return pending.difference(self.absent())

    def finish(self) -> None:
        """Write the last heartbeat, after `settle`.

        Node 0 leaves last: srun kills every task as soon as one has failed, and node 0 has a record
        to write and may have to requeue the job.
        """
        if self._rank:
            self._await_node_0()
        elif self._heartbeat.state == "failed":
            self._heartbeat = replace(self._heartbeat, state="over")
        self._stop.set()
        self._wake.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self.write_heartbeat(self._heartbeat)

    def _await_node_0(self) -> None:
        """Wait until node 0 has ended, is lost, or no longer shows that it is alive."""
        began = self._clock()
        limit = max(self._limit, _END)
        while not self._is_over:
            if self.lost is not None and self.lost.is_silent:
                return
            changed_at = began
            if 0 in self._observations:
                changed_at = max(began, self._observations[0].changed_at)
            if self._clock() - changed_at >= limit:
                return
            if self._heartbeat_of_node_0 is None and not self._pending():
                return
            time.sleep(0.1)

    @property
    def _heartbeats(self) -> dict[int, Heartbeat]:
        """The last heartbeat that was read of each watched node, by rank."""
        observations = self._observations.items()
        return {rank: seen.heartbeat for rank, seen in observations if seen.heartbeat}

    @property
    def _heartbeat_of_node_0(self) -> Heartbeat | None:
        return self._heartbeats.get(0)

    @property
    def _is_over(self) -> bool:
        """Whether node 0 has ended."""
        heartbeat = self._heartbeat_of_node_0
        return heartbeat is not None and heartbeat.state in ("done", "over")

    def failures(self) -> dict[int, NodeFailure]:
        """Return the failures that watched nodes reported, by node."""
        return {
            rank: heartbeat.failure
            for rank, heartbeat in sorted(self._heartbeats.items())
            if heartbeat.state == "failed" and heartbeat.failure
        }

    def check(self) -> LostNode | None:
        """Write this node's heartbeat and check the watched nodes.

        Returns a node that failed or fell silent, None if there is none.
        """
        now = self._clock()
        self.write_heartbeat(self._heartbeat)
        failed = None
        silent = None
        for rank in self._watched:
            seen = self._observe(rank, now)
            if seen.heartbeat and seen.heartbeat.state != "alive":
                self._live.discard(rank)
                if seen.heartbeat.failure and failed is None:
                    failed = LostNode(rank, seen.heartbeat.failure, is_silent=False)
            elif self._is_silent(seen, rank, now):
                self._live.discard(rank)
                if silent is None:
                    failure = NodeFailure(f"no heartbeat for {now - seen.changed_at:.0f} s")
                    silent = LostNode(rank, failure, True, met_others=bool(self._heartbeats))
            else:
                self._live.add(rank)
        self._rounds += 1
        return silent or failed

    def _is_silent(self, seen: _Observation, rank: int, now: float) -> bool:
        limit = self._limit
        if not limit:
            limit = math.inf if self._heartbeat.state == "alive" else _END
        if seen.heartbeat is None:
            limit = max(limit, _FIRST_HEARTBEAT)
        if now - max(seen.changed_at, self._step_at) <= limit:
            return False
        return not (rank == 0 and self._is_reachable())

    def _observe(self, rank: int, now: float) -> _Observation:
        """Read the file of a node, unless its last heartbeat was final."""
        seen = self._observations.setdefault(rank, _Observation(None, 0, now))
        final_states = ("done", "over") if rank == 0 else ("done", "failed")
        if seen.heartbeat and seen.heartbeat.state in final_states:
            return seen
        with (
            contextlib.suppress(OSError, ValueError, TypeError),
            self._path(rank).open(encoding="utf-8") as file,
        ):
            modified_ns = os.fstat(file.fileno()).st_mtime_ns
            heartbeat = decode(Heartbeat, file.read())
            if heartbeat != seen.heartbeat or modified_ns != seen.modified_ns:
                seen = _Observation(heartbeat, modified_ns, now)
                self._observations[rank] = seen
        return seen

    def do_round(self) -> float:
        """Write and read once; return the seconds until the next round."""
        now = self._clock()
        if self._limit and now - self._last_round > self._limit / 2:
            # This machine was suspended, or the file system hung for everybody: the silence proves
            # nothing.
            for seen in self._observations.values():
                seen.changed_at = now
        self._last_round = now
        awaits_start = self._rank > 0 and self.progress in ("", "planned")
        is_hurried = self._heartbeat.state != "alive" or awaits_start
        minimum = _SHORT_INTERVAL if is_hurried else _INTERVAL
        with contextlib.suppress(OSError):
            lost = self.check()
            if lost is not None:
                self._note_lost(lost)
        return heartbeat_interval(self._nodes, minimum) * random.uniform(0.75, 1.25)

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._wake.wait(self.do_round()):
                self._wake.clear()

    def _note_lost(self, lost: LostNode) -> None:
        """Keep the first lost node; a silent node replaces one that failed."""
        if self.lost is None:
            self.lost = lost
            self._on_lost(lost)
        elif lost.is_silent and not self.lost.is_silent:
            self.lost = lost

    def _path(self, rank: int) -> Path:
        return self._folder / f"node-{rank}.json"

    def write_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Write the file if its content changes, else only its modification time."""
        path = self._path(self._rank)
        if heartbeat == self._written:
            os.utime(path, ns=(time.time_ns(), time.time_ns()))
            return
        write_json(path, versioned(heartbeat))
        self._written = heartbeat
