"""The task that the nodes of a job run together, a node's context, and the job's outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from launch.config.compose import Composed
from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from launch.execution.announcements import report_finished
from launch.execution.display import Display
from launch.execution.engine import RankRunner, carry_out
from launch.execution.record.folder import RunFolder
from launch.execution.record.lock import run_lock
from launch.execution.record.outcome import Outcome
from launch.execution.resume import is_finished
from launch.planning.build import plan_on_this_machine
from launch.planning.plan import Plan
from launch.planning.read_files import LoadedFiles
from launch.slurm.allocation import Allocation
from launch.slurm.job_log import JobLog
from launch.slurm.jobs import JobFolder
from launch.slurm.node.signal_cause import find_signal_cause
from launch.slurm.peers import LostNode, NodeFailure, Peers
from launch.slurm.requeue import read_decision
from launch.slurm.requeue_policy import RestartMark, plan_restart
from launch.slurm.signals import SIGTERM_CAUSE, NodeSignals, is_interruption


@dataclass(frozen=True)
class NodeTask:
    """What the nodes of a job run together: a whole run, or one width of a rollout."""

    plan: Plan
    # Node 0's part: it starts the ranks of all nodes through its first argument and returns the
    # exit code.
    lead: Callable[[RankRunner, Display], int]
    # Number of logged optimizer steps after which the ranks are ended.
    steps: int | None = None


def stage_task(composed: Composed, allocation: Allocation, peers: Peers | None = None) -> NodeTask:
    """Plan the composed stage as a task; with `peers`, node 0 alone digests large inputs.

    Raises UserError.
    """
    await_digests = partial(peers.wait_while, "") if peers and allocation.node_rank else None
    plan = plan_on_this_machine(composed, await_digests=await_digests)
    restart_mark = RestartMark(plan, allocation)

    def lead(ranks: RankRunner, display: Display) -> int:
        for warning in plan.warnings:
            display.say(f"warning: {warning}")
        current = restart_mark.remaining_plan
        if is_finished(current):
            report_finished(plan, display)
            return EXIT_DONE
        if allocation.restarts:
            messages = [f"restart {allocation.restarts} of job {allocation.job_id}"]
            folder = JobFolder.of_plan(plan)
            previous_attempts = folder.attempts(allocation.job_id, allocation.restarts - 1)
            if previous_attempts:
                messages += read_decision(previous_attempts[-1])
            display.say("; ".join(messages))
            current = plan_restart(current, display.say)

        def run_ranks(
            started: Plan, folder: RunFolder, display: Display, inputs: LoadedFiles
        ) -> Outcome:
            restart_mark.set()  # an older run is archived by now
            return ranks(started, folder, display, inputs)

        with run_lock(plan.folder, display.say):
            return carry_out(current, display, run_ranks)

    return NodeTask(plan, lead)


_KILLED = ("killed by SIGTERM", "killed by SIGUSR1")
TIME_LIMIT_NEAR = "the time limit is near"  # the cause of an outcome, and the line in the job's log


@dataclass(frozen=True)
class NodeContext:
    """A node's task, its place in the job, the other nodes and Slurm's signals."""

    task: NodeTask
    allocation: Allocation
    attempt: Path  # the folder of this start of the job, which all nodes share
    peers: Peers
    signals: NodeSignals
    log: JobLog

    @property
    def plan(self) -> Plan:
        return self.task.plan

    @property
    def is_first(self) -> bool:
        return self.allocation.node_rank == 0

    @property
    def record(self) -> Path:
        """The folder of this node's logs and outcome.

        It is the run folder for node 0, and nodes/N in it for the others.
        """
        if self.is_first:
            return self.plan.folder
        return self.plan.folder / "nodes" / str(self.allocation.node_rank)

    @property
    def mailbox(self) -> Path | None:
        """The file through which to instruct the batch script; None if its node was lost."""
        lost = self.peers.lost
        if lost is not None and lost.is_silent and lost.node_rank == 0:
            return None
        return self.allocation.mailbox


def describe_lost(allocation: Allocation, lost: LostNode) -> str:
    """Name the host of a lost or failed node and the cause."""
    host = allocation.hosts[lost.node_rank]
    event = "was lost" if lost.is_silent else "failed"
    return f"node {host} {event}: {lost.failure.cause}"


def await_job_outcome(node: NodeContext, outcome: Outcome) -> Outcome:
    """Replace the cause of `outcome` with the job's.

    Ranks that were ended because another node failed, or whose connection to a lost node broke, get
    that node's cause.
    """
    if outcome.exit_code == EXIT_DONE:
        return outcome
    if node.task.steps is not None and not node.is_first and node.peers.has_completed():
        done = replace(outcome, exit_code=EXIT_DONE, detail=())
        return replace(done, cause=None, cause_id=None, cure=None)
    signals = node.signals
    has_failed = outcome.exit_code == EXIT_FAILED
    was_signalled = signals.terminated and (has_failed or is_interruption(outcome.cause))
    if was_signalled:
        if (outcome.cause or "").endswith(_KILLED):  # the signal reached the ranks first
            outcome = replace(outcome, cause=None)
        outcome = _with_cause(outcome, EXIT_INTERRUPTED, SIGTERM_CAUSE)
        if node.is_first and not signals.time_limit_near:
            outcome = _explain_signal(node, outcome)
    node.peers.settle(report_failure(outcome))
    if was_signalled and not node.is_first:
        outcome = _take_cause_of_first_node(node, outcome)
    lost = node.peers.lost
    if lost is not None:
        was_ended = is_interruption(outcome.cause) and not signals.time_limit_near
        if lost.is_silent or was_ended:
            cause = describe_lost(node.allocation, lost)
            return _with_cause(outcome, EXIT_FAILED, cause, lost.failure)
    if signals.time_limit_near and outcome.exit_code in (EXIT_FAILED, EXIT_INTERRUPTED):
        return _with_cause(outcome, EXIT_INTERRUPTED, TIME_LIMIT_NEAR)
    return replace(outcome, detail=(*outcome.detail, *_describe_other_failures(node)))


def _explain_signal(node: NodeContext, outcome: Outcome) -> Outcome:
    """Replace a signal as the cause by what Slurm, or the job's log, reports of it."""
    reported = node.peers.lost
    if reported is not None and not is_interruption(reported.failure.cause):
        return outcome  # a node that failed, or fell silent, is the cause
    hosts = node.allocation.hosts
    absent = [hosts[rank] for rank in node.peers.absent()]
    cause = find_signal_cause(node.allocation, node.log, absent)
    if cause.host is None:
        return replace(outcome, cause=cause.text)
    if cause.host in hosts:
        node.peers.note_ended(hosts.index(cause.host))
    return replace(outcome, exit_code=EXIT_FAILED, cause=cause.text)


def _take_cause_of_first_node(node: NodeContext, outcome: Outcome) -> Outcome:
    """Replace a signal as the cause by that of the first node, which alone queries Slurm."""
    first = node.peers.failures().get(0)
    if first is None or is_interruption(first.cause):
        return outcome
    return replace(outcome, cause=first.cause)


def _describe_other_failures(node: NodeContext) -> list[str]:
    """Describe the failures of other nodes that are not a consequence of this node's failure."""
    secondary_causes = (f"node {node.allocation.host} ", "interrupted by ")
    texts = []
    for rank, failure in node.peers.failures().items():
        if not failure.cause.startswith(secondary_causes):
            texts.append(f"node {node.allocation.hosts[rank]}: {failure.cause}")
    return texts


def report_failure(outcome: Outcome) -> NodeFailure:
    """Return what this node reports of its failure to the other nodes."""
    cause = outcome.cause or f"exit code {outcome.exit_code}"
    return NodeFailure(cause, outcome.cause_id, outcome.cure)


def _with_cause(
    outcome: Outcome, exit_code: int, cause: str, failure: NodeFailure | None = None
) -> Outcome:
    """Return the outcome with another cause, which has the id and the cure of `failure`.

    The previous cause becomes a detail, unless it is only a signal.
    """
    detail = outcome.detail
    if outcome.cause and not is_interruption(outcome.cause):
        detail = (outcome.cause, *detail)
    return replace(
        outcome,
        exit_code=exit_code,
        cause=cause,
        cause_id=failure.cause_id if failure else None,
        cure=failure.cure if failure else None,
        detail=detail,
    )
