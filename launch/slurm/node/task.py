"""The task of the nodes of a job: what it is, what a node knows of its job, and the outcome that
other nodes reveal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from launch.config.compose import Composed
from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from launch.execution.display import Display
from launch.execution.engine import RankRunner, carry_out, report_finished
from launch.execution.record.folder import RunFolder
from launch.execution.record.lock import run_lock
from launch.execution.record.outcome import Outcome
from launch.execution.resume import is_finished
from launch.planning.machine import this_machine
from launch.planning.plan import Plan, build_plan
from launch.slurm.allocation import Allocation
from launch.slurm.jobs import JobFolder
from launch.slurm.peers import LostNode, NodeFailure, Peers
from launch.slurm.requeue import read_decision
from launch.slurm.requeue_policy import RestartMark, plan_restart
from launch.slurm.signals import SIGINT_CAUSE, SIGTERM_CAUSE, NodeSignals


@dataclass(frozen=True)
class NodeTask:
    """What the nodes of a job run together: a whole run, or one width of a rollout."""

    plan: Plan
    # node 0's part: starts the ranks of all nodes through its first argument and returns the exit
    # code
    lead: Callable[[RankRunner, Display], int]
    # end the ranks once that many optimizer steps are logged
    steps: int | None = None


def stage_task(composed: Composed, allocation: Allocation, peers: Peers | None = None) -> NodeTask:
    """Plan the composed stage as a task; with `peers`, node 0 alone digests large inputs. Raises
    UserError.
    """
    await_digests = partial(peers.wait_while, "") if peers and allocation.node_rank else None
    plan = build_plan(composed, this_machine(composed, await_digests))
    restart_mark = RestartMark(plan, allocation)

    def lead(ranks: RankRunner, display: Display) -> int:
        for warning in plan.warnings:
            display.say(f"warning: {warning}")
        current = restart_mark.remaining_plan
        if is_finished(current):
            report_finished(plan, display)
            return EXIT_DONE
        if allocation.restarts:
            folder = JobFolder.of_plan(plan)
            ended = folder.attempts(allocation.job_id, allocation.restarts - 1)
            decision = read_decision(ended[-1]) if ended else []
            display.say(
                "; ".join([f"restart {allocation.restarts} of job {allocation.job_id}", *decision])
            )
            current = plan_restart(current, display.say)

        def run_ranks(started: Plan, folder: RunFolder, display: Display) -> Outcome:
            restart_mark.set()  # an older run is archived by now
            return ranks(started, folder, display)

        with run_lock(plan.folder, display.say):
            return carry_out(current, display, run_ranks)

    return NodeTask(plan, lead)


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
        """The folder of this node's logs and outcome: the run folder for node 0, nodes/N in it for
        the others.
        """
        return (
            self.plan.folder
            if self.is_first
            else self.plan.folder / "nodes" / str(self.allocation.node_rank)
        )

    @property
    def mailbox(self) -> Path | None:
        """The file through which to instruct the batch script; None if its node, the first one, was
        lost.
        """
        lost = self.peers.lost
        return None if lost and lost.is_silent and lost.node_rank == 0 else self.allocation.mailbox


def describe_lost(allocation: Allocation, lost: LostNode) -> str:
    """Name the host of a lost or failed node and the cause."""
    return (
        f"node {allocation.hosts[lost.node_rank]} "
        f"{'was lost' if lost.is_silent else 'failed'}: "
        f"{lost.failure.cause}"
    )


def await_job_outcome(node: NodeContext, outcome: Outcome) -> Outcome:
    """Replace the cause of `outcome` with the job's.

    Ranks that were ended because another node failed, or whose connection to a lost node broke, get
    that node's cause.
    """
    if outcome.exit_code == EXIT_DONE:
        return outcome
    if node.task.steps is not None and not node.is_first and node.peers.has_completed():
        return replace(
            outcome, exit_code=EXIT_DONE, cause=None, cause_id=None, cure=None, detail=()
        )
    signals, peers, hosts = node.signals, node.peers, node.allocation.hosts
    if signals.terminated and (outcome.exit_code == EXIT_FAILED or outcome.cause == SIGINT_CAUSE):
        # the signal reached the ranks first
        outcome = _with_cause(outcome, EXIT_INTERRUPTED, SIGTERM_CAUSE)
    peers.settle(report_failure(outcome))
    absent = [hosts[rank] for rank in peers.absent()] if node.is_first else []
    if absent and outcome.cause == SIGTERM_CAUSE and not signals.time_limit_near:
        # Slurm ends the other nodes when the task of one node ends by itself
        names = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
        return replace(
            outcome, cause=f"{SIGTERM_CAUSE} before node {names} started: see the job's log"
        )
    lost = peers.lost
    if lost is not None and (
        lost.is_silent or (outcome.cause == SIGINT_CAUSE and not signals.time_limit_near)
    ):
        return _with_cause(outcome, EXIT_FAILED, describe_lost(node.allocation, lost), lost.failure)
    if signals.time_limit_near and outcome.exit_code in (EXIT_FAILED, EXIT_INTERRUPTED):
        return _with_cause(outcome, EXIT_INTERRUPTED, TIME_LIMIT_NEAR)
    # leave out the nodes that only report this node's failure, or were ended because of it
    secondary = (f"node {node.allocation.host} ", SIGINT_CAUSE)
    causes = {rank: failure.cause for rank, failure in peers.failures().items()}
    detail = (
        f"node {hosts[rank]}: {cause}"
        for rank, cause in causes.items()
        if not cause.startswith(secondary)
    )
    return replace(outcome, detail=(*outcome.detail, *detail))


def report_failure(outcome: Outcome) -> NodeFailure:
    """What the other nodes are to know of this node's failure."""
    return NodeFailure(
        outcome.cause or f"exit code {outcome.exit_code}", outcome.cause_id, outcome.cure
    )


def _with_cause(
    outcome: Outcome, exit_code: int, cause: str, failure: NodeFailure | None = None
) -> Outcome:
    """The outcome with another cause, with the id and the cure of `failure`; its own one becomes a
    detail.
    """
    own = (
        (outcome.cause,)
        if outcome.cause and outcome.cause not in (SIGINT_CAUSE, SIGTERM_CAUSE)
        else ()
    )
    cause_id, cure = (failure.cause_id, failure.cure) if failure else (None, None)
    detail = (*own, *outcome.detail)
    return replace(
        outcome, exit_code=exit_code, cause=cause, cause_id=cause_id, cure=cure, detail=detail
    )
