"""The outcome of a node's ranks, corrected by what Slurm's signals and the other nodes reveal."""

from __future__ import annotations

from dataclasses import replace

from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from launch.execution.record.outcome import Outcome
from launch.slurm.allocation import file_appears
from launch.slurm.node.context import TIME_LIMIT_NEAR, NodeContext, describe_lost
from launch.slurm.peers import NodeFailure
from launch.slurm.signals import SIGINT_CAUSE, SIGTERM_CAUSE


def job_outcome(node: NodeContext, outcome: Outcome) -> Outcome:
    """Replace the cause of `outcome` with the job's.

    Ranks that were ended because another node failed, or whose connection to a lost node broke, get that node's cause.
    """
    if outcome.exit_code == EXIT_DONE:
        return outcome
    if node.task.steps is not None and not node.is_first and file_appears(node.steps_reached):
        return replace(outcome, exit_code=EXIT_DONE, cause=None, cause_id=None, cure=None, detail=())
    signals, peers, hosts = node.signals, node.peers, node.allocation.hosts
    if signals.terminated and (outcome.exit_code == EXIT_FAILED or outcome.cause == SIGINT_CAUSE):
        outcome = _with_cause(outcome, EXIT_INTERRUPTED, SIGTERM_CAUSE)  # the signal reached the ranks first
    peers.settle(report_failure(outcome))
    absent = [hosts[rank] for rank in peers.absent()] if node.is_first else []
    if absent and outcome.cause == SIGTERM_CAUSE and not signals.time_limit_near:
        # Slurm ends the other nodes when the task of one node ends by itself
        names = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
        return replace(outcome, cause=f"{SIGTERM_CAUSE} before node {names} started: see the job's log")
    lost = peers.lost
    if lost is not None and (lost.is_silent or (outcome.cause == SIGINT_CAUSE and not signals.time_limit_near)):
        return _with_cause(outcome, EXIT_FAILED, describe_lost(node.allocation, lost), lost.failure)
    if signals.time_limit_near and outcome.exit_code in (EXIT_FAILED, EXIT_INTERRUPTED):
        return _with_cause(outcome, EXIT_INTERRUPTED, TIME_LIMIT_NEAR)
    # leave out the nodes that only report this node's failure, or were ended because of it
    secondary = (f"node {node.allocation.host} ", SIGINT_CAUSE)
    causes = {rank: failure.cause for rank, failure in peers.failures().items()}
    detail = (f"node {hosts[rank]}: {cause}" for rank, cause in causes.items() if not cause.startswith(secondary))
    return replace(outcome, detail=(*outcome.detail, *detail))


def report_failure(outcome: Outcome) -> NodeFailure:
    """What the other nodes are to know of this node's failure."""
    return NodeFailure(outcome.cause or f"exit code {outcome.exit_code}", outcome.cause_id, outcome.cure)


def _with_cause(outcome: Outcome, exit_code: int, cause: str, failure: NodeFailure | None = None) -> Outcome:
    """The outcome with another cause, with the id and the cure of `failure`; its own one becomes a detail."""
    own = (outcome.cause,) if outcome.cause and outcome.cause not in (SIGINT_CAUSE, SIGTERM_CAUSE) else ()
    cause_id, cure = (failure.cause_id, failure.cure) if failure else (None, None)
    detail = (*own, *outcome.detail)
    return replace(outcome, exit_code=exit_code, cause=cause, cause_id=cause_id, cure=cure, detail=detail)
