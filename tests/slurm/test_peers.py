"""Heartbeats between nodes: which node counts as lost; the port; the place in the allocation; the
start record.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.execution.supervise.stacks import Stacks
from launch.slurm.allocation import read_allocation
from launch.slurm.node.ranks import StartRecord, read_start_record, rendezvous_port
from launch.slurm.peers import Heartbeat, LostNode, NodeFailure, Peers

HOSTS = ("n1", "n2", "n3")
OOM = NodeFailure("out of memory", "cuda_out_of_memory", "a smaller batch")
CLOSED, ENDED = NodeFailure("connection closed by peer"), NodeFailure("interrupted by SIGTERM")


class FakeNodes:
    """Three nodes in one folder, and a clock."""

    def __init__(self, folder: Path, limit: float = 20.0) -> None:
        self.now = 0.0
        self.lost: list[LostNode] = []
        self.each = [
            Peers(folder, rank, HOSTS, limit, self.lost.append, clock=lambda: self.now)
            for rank in range(3)
        ]

    def pass_time(self, seconds: int, *live: int) -> dict[int, LostNode | None]:
        """Let the `live` nodes check once a second; what each one found last."""
        found: dict[int, LostNode | None] = {}
        for _ in range(seconds):
            self.now += 1
            found = {rank: self.each[rank].check() for rank in live}
        return found


def test_all_live(tmp_path: Path) -> None:
    assert FakeNodes(tmp_path).pass_time(600, 0, 1, 2) == {0: None, 1: None, 2: None}


def test_node_0_finds_a_silent_node(tmp_path: Path) -> None:
    nodes = FakeNodes(tmp_path)
    nodes.pass_time(5, 0, 1, 2)
    assert nodes.pass_time(20, 0, 1) == {0: None, 1: None}
    lost = nodes.pass_time(2, 0, 1)[0]
    assert lost == LostNode(2, NodeFailure("no heartbeat for 21 s"), is_silent=True)


def test_every_node_finds_a_silent_node_0(tmp_path: Path) -> None:
    nodes = FakeNodes(tmp_path)
    nodes.pass_time(5, 0, 1, 2)
    found = nodes.pass_time(22, 1, 2)
    assert [lost.node_rank for lost in found.values() if lost] == [0, 0]


def test_a_step_is_a_sign_of_life_of_every_node(tmp_path: Path) -> None:
    nodes = FakeNodes(tmp_path)
    nodes.pass_time(5, 0, 1, 2)
    for _ in range(10):  # the supervisors of both others are stopped, and the ranks train
        assert nodes.pass_time(10, 0) == {0: None}
        nodes.each[0].note_step()
    assert nodes.pass_time(20, 0) == {0: None}
    lost = nodes.pass_time(2, 0)[0]
    assert lost is not None and lost.is_silent and lost.met_others


def test_node_0_is_not_lost_while_its_ranks_listen(tmp_path: Path) -> None:
    now, listens = 0.0, True
    first, second = (
        Peers(
            tmp_path,
            rank,
            HOSTS[:2],
            20.0,
            lambda _: None,
            clock=lambda: now,
            is_reachable=lambda: listens,
        )
        for rank in range(2)
    )
    first.check(), second.check()
    now = 100.0
    assert second.check() is None
    listens = False
    assert second.check() == LostNode(0, NodeFailure("no heartbeat for 100 s"), is_silent=True)


def test_it_is_known_whether_a_node_met_another_one(tmp_path: Path) -> None:
    alone = FakeNodes(tmp_path)
    lost = alone.pass_time(310, 1)[1]
    assert lost is not None and not lost.met_others


def test_a_failure_is_found_at_once_in_its_own_words(tmp_path: Path) -> None:
    nodes = FakeNodes(tmp_path)
    nodes.pass_time(1, 0, 1, 2)
    nodes.each[1].write_heartbeat(Heartbeat("failed", "", OOM))
    assert nodes.pass_time(1, 0)[0] == LostNode(1, OOM, is_silent=False)
    assert nodes.each[0].failures() == {1: OOM}


def test_a_node_that_is_done_may_be_silent(tmp_path: Path) -> None:
    nodes = FakeNodes(tmp_path)
    nodes.pass_time(1, 0, 1, 2)
    nodes.each[1].write_heartbeat(Heartbeat("done"))
    assert nodes.pass_time(100, 0, 2) == {0: None, 2: None}


def test_a_node_that_failed_waits_for_the_end_of_the_others(tmp_path: Path) -> None:
    """srun kills the tasks of every node as soon as one of them has failed."""
    lost = threading.Event()
    first, second = (
        Peers(tmp_path, rank, HOSTS[:2], 20.0, lambda _: lost.set()) for rank in range(2)
    )
    first.start()
    second.start()

    def end() -> None:
        second.settle(OOM)
        second.finish()

    ending = threading.Thread(target=end)
    ending.start()
    assert lost.wait(30)
    first.settle(NodeFailure("node n2 failed"))
    assert first.failures() == {1: OOM}
    ending.join(1.0)
    assert ending.is_alive()  # node 0 has said that it failed, and not yet that all is over
    first.finish()
    ending.join(30)
    assert not ending.is_alive()


def test_the_silent_node_is_to_blame_and_not_those_that_fell_over_it(tmp_path: Path) -> None:
    nodes = FakeNodes(tmp_path)
    nodes.pass_time(1, 0, 1, 2)
    nodes.each[1].write_heartbeat(Heartbeat("failed", "", CLOSED))
    assert nodes.pass_time(10, 0)[0] == LostNode(1, CLOSED, is_silent=False)
    assert nodes.pass_time(12, 0)[0] == LostNode(
        2, NodeFailure("no heartbeat for 21 s"), is_silent=True
    )


def test_settling_waits_until_it_is_known_who_is_silent(tmp_path: Path) -> None:
    reported: list[LostNode] = []
    first, second = (Peers(tmp_path, rank, HOSTS[:2], 2.0, reported.append) for rank in range(2))
    second.write_heartbeat(Heartbeat("alive"))
    first.start()
    first.settle(CLOSED)
    assert first.lost is not None and (first.lost.node_rank, first.lost.is_silent) == (1, True)
    assert reported == [first.lost]
    first.finish()
    assert json.loads((tmp_path / "node-0.json").read_text())["state"] == "over"


def test_a_node_that_never_began_is_not_waited_for_once_slurm_ends_the_job(tmp_path: Path) -> None:
    """Slurm ends the others when the task of one has ended by itself, and kills them half a minute
    later.
    """
    first = Peers(tmp_path, 0, HOSTS, 20.0, lambda _: None, was_terminated=lambda: True)
    second = Peers(tmp_path, 1, HOSTS, 20.0, lambda _: None, was_terminated=lambda: True)
    first.start()
    second.write_heartbeat(Heartbeat("failed", "", ENDED))
    began = time.monotonic()
    first.settle(ENDED)
    assert time.monotonic() - began < 10 and first.absent() == [2]
    first.finish()


def test_a_slow_start_is_not_silence(tmp_path: Path) -> None:
    nodes = FakeNodes(tmp_path)
    assert nodes.pass_time(290, 0, 1)[0] is None
    lost = nodes.pass_time(20, 0, 1)[0]
    assert lost is not None and lost.node_rank == 2


def test_node_0_collects_the_stacks_of_the_nodes_that_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.slurm.peers._STACKS_WAIT", 0.1)
    nodes = FakeNodes(tmp_path)
    nodes.pass_time(1, 0, 1, 2)
    first, second, _ = nodes.each
    first.report_progress("stalled")
    nodes.pass_time(1, 0, 1)
    assert second.progress == "stalled"
    stacks = Stacks((tmp_path / "rank-1.txt",), ("rank 1 is in read (loader.py:3)",))
    second.publish_stacks(stacks)
    nodes.pass_time(1, 1, 0)
    assert first.collect_stacks() == Stacks(
        stacks.files, (*stacks.summary, "node n3 sent no stacks in time")
    )


def test_a_node_whose_ranks_ended_with_those_of_node_0_has_completed(tmp_path: Path) -> None:
    nodes = FakeNodes(tmp_path)
    nodes.each[0].report_progress("complete")
    nodes.each[0].report_end(None)
    nodes.pass_time(1, 0, 1)
    assert nodes.each[1].has_completed()


def test_silence_can_be_let_pass(tmp_path: Path) -> None:
    nodes = FakeNodes(tmp_path, limit=0)
    nodes.pass_time(1, 0, 1, 2)
    assert nodes.pass_time(1000, 0, 1) == {0: None, 1: None}


def test_two_jobs_have_two_ports_and_none_that_is_taken() -> None:
    ports = {rendezvous_port(job) for job in range(700, 720)}
    assert len(ports) == 20
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen(1)
        port = rendezvous_port(4711)
        with socket.socket() as first:
            first.bind(("", port))
            first.listen(1)
            assert rendezvous_port(4711) != port


def test_the_place_in_an_allocation() -> None:
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_NODEID": "1",
        "LAUNCH_HOSTS": "n1\nn2",
        "SLURM_RESTART_COUNT": "2",
    }
    allocation = read_allocation(environ)
    assert (allocation.job_id, allocation.restarts, allocation.node_rank, allocation.host) == (
        "7",
        2,
        1,
        "n2",
    )
    for missing in ("SLURM_JOB_ID", "SLURM_NODEID", "LAUNCH_HOSTS"):
        with pytest.raises(UserError, match="no_allocation"):
            read_allocation({name: value for name, value in environ.items() if name != missing})
    # a task of an array whose script is not launch's own
    task = read_allocation({**environ, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"})
    assert (task.job_id, task.number) == ("7_3", 7)
    # submitted from within the job of an array, whose variables it inherits
    of_another = {"LAUNCH_TASK": "5 4_1", "SLURM_ARRAY_JOB_ID": "4", "SLURM_ARRAY_TASK_ID": "1"}
    assert read_allocation({**environ, **of_another}).job_id == "7"


def test_the_start_record_is_read_as_written(tmp_path: Path) -> None:
    assert read_start_record(tmp_path) is None
    written = StartRecord("12345678", ("python", "$LAUNCH_NODE_RANK", "é"), "n1", 10007)
    written.write(tmp_path)
    assert read_start_record(tmp_path) == written
