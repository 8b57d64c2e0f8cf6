"""What the code of one node knows about its job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launch.planning.plan import Plan
from launch.slurm.allocation import Allocation
from launch.slurm.node.task import NodeTask
from launch.slurm.peers import LostNode, Peers
from launch.slurm.signals import NodeSignals

TIME_LIMIT_NEAR = "the time limit is near"  # the cause of an outcome, and the line in the job's log


@dataclass(frozen=True)
class NodeContext:
    """A node's task, its place in the job, the other nodes and Slurm's signals."""

    task: NodeTask
    allocation: Allocation
    attempt: Path  # the folder of this start of the job, which all nodes share
    peers: Peers
    signals: NodeSignals

    @property
    def plan(self) -> Plan:
        return self.task.plan

    @property
    def is_first(self) -> bool:
        return self.allocation.node_rank == 0

    @property
    def record(self) -> Path:
        """The folder of this node's logs and outcome: the run folder for node 0, nodes/N in it for the others."""
        return self.plan.folder if self.is_first else self.plan.folder / "nodes" / str(self.allocation.node_rank)

    @property
    def mailbox(self) -> Path | None:
        """The file through which to instruct the batch script; None if its node, the first one, was lost."""
        lost = self.peers.lost
        return None if lost and lost.is_silent and lost.node_rank == 0 else self.allocation.mailbox

    @property
    def steps_reached(self) -> Path:
        """The file that node 0 creates once `task.steps` steps are logged."""
        return self.attempt / "enough"


def describe_lost(allocation: Allocation, lost: LostNode) -> str:
    """Name the host of a lost or failed node and the cause."""
    return f"node {allocation.hosts[lost.node_rank]} {'was lost' if lost.is_silent else 'failed'}: {lost.failure.cause}"
