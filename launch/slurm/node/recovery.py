"""Requeues the job at the end of a node's task, where another start helps.

That is after its time limit, the loss of a node or a fault of the hardware.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal

from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, UserError
from launch.execution.record.attempts import add_earlier_steps
from launch.execution.record.checkpoints import Checkpoint
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import folder_status, read_outcome
from launch.execution.record.run import Run
from launch.slurm.jobs import JobFolder
from launch.slurm.node.task import TIME_LIMIT_NEAR, NodeContext, describe_lost
from launch.slurm.peers import LostNode, NodeFailure
from launch.slurm.requeue import (
    cancel_job,
    claim_decision,
    count_requeues,
    end_batch_script,
    instruct_batch_script,
    requeue,
    write_decision,
)
from launch.slurm.requeue_policy import (
    find_hardware_fault,
    last_checkpoint,
    requeue_obstacle,
    retry_obstacle,
)
from launch.terminal import notify

# Seconds before the time limit that ending the ranks and requesting a requeue may take.
_TEAR_DOWN = 30.0


@dataclass(frozen=True)
class _Reason:
    """Why a job might start again."""

    text: str
    lost: LostNode | None = None  # the node that fell silent
    is_retry: bool = False  # whether it is a fault of the hardware
    avoided_host: str | None = None


def choose_end_delay(node: NodeContext, before: Checkpoint | None) -> float | None:
    """Return the seconds from Slurm's time limit warning until this node ends its ranks.

    A run that finishes in time, or that would not be requeued because there is nothing to resume
    from, continues until just before the limit; a checkpoint may still be written until then.

    None is returned on other nodes than the first, which decides.
    """
    if not node.is_first:
        return None
    plan = node.plan
    until_limit = max(0.0, plan.config.cluster.warn_before - _TEAR_DOWN)
    left = Run(plan.folder).status.seconds_left
    if left is not None and left <= until_limit / 2:
        notify(f"the run continues: about {left:.0f} s remain")
        return until_limit
    requeues = count_requeues(JobFolder(node.attempt.parent), node.allocation)
    now = last_checkpoint(plan)
    may_requeue = node.allocation.may_requeue
    obstacle = requeue_obstacle(
        plan, requeues, lost=None, before=before, now=now, may_requeue=may_requeue
    )
    if obstacle:
        notify(
            f"the run continues until {_TEAR_DOWN:.0f} s before the limit; "
            f"it would not be requeued: {obstacle}"
        )
        return until_limit
    return 0.0


def recover(
    node: NodeContext, code: int, failure: NodeFailure | None, before: Checkpoint | None
) -> bool:
    """Requeue the job where another start helps; return whether the batch script was instructed.

    `failure` is why this node's part ended, `before` the last checkpoint when this attempt began.
    A job that lost a node is ended in any case: srun would wait for that node's task as long as
    Slurm does. A run that is done is not started again, whatever the other nodes do.
    """
    if folder_status(node.plan.folder) == "done" and (code == EXIT_DONE or not node.is_first):
        if code == EXIT_DONE and node.peers.lost and node.mailbox and node.is_first:
            end_batch_script(node.mailbox, code, 0)  # a lost node is not waited for
        return False
    reason = _find_reason(node, code, failure)
    if reason is None or not claim_decision(node.attempt):
        return False
    is_requeued = code != EXIT_DONE and _decide(node, reason, before)
    if reason.lost and reason.lost.node_rank == 0:
        _record_for_first_node(node)
    if reason.lost and not is_requeued:
        if node.mailbox:
            end_batch_script(node.mailbox, code or EXIT_FAILED, 0)
            return True
        with contextlib.suppress(UserError):  # a container may lack Slurm's commands
            cancel_job(node.allocation)
    return is_requeued


def _find_reason(node: NodeContext, code: int, failure: NodeFailure | None) -> _Reason | None:
    """Return why the job might start again.

    None is returned if this node does not decide it, or if there is no reason to.
    """
    hosts = node.allocation.hosts
    lost = node.peers.lost
    if lost and lost.is_silent:
        cause = describe_lost(node.allocation, lost)
        return _Reason(cause, lost, avoided_host=hosts[lost.node_rank])
    if not node.is_first or code == EXIT_DONE:
        return None
    if node.signals.time_limit_near and code == EXIT_INTERRUPTED:
        return _Reason(TIME_LIMIT_NEAR)
    failures = dict(node.peers.failures())
    if failure is not None:
        repeats_other_node = bool(failures) and failure.cause.startswith("node ")
        if not repeats_other_node:
            failures[0] = failure
    rank = find_hardware_fault(failures)
    if rank is None:
        return None
    if rank < 0:
        return _Reason("the network between the nodes failed", is_retry=True)
    return _Reason(f"a GPU of {hosts[rank]} failed", is_retry=True, avoided_host=hosts[rank])


def _decide(node: NodeContext, reason: _Reason, before: Checkpoint | None) -> bool:
    """Requeue the job unless something forbids it, and record the decision.

    Returns whether the job is requeued.
    """
    allocation = node.allocation
    folder = JobFolder(node.attempt.parent)
    now = last_checkpoint(node.plan)
    count = count_requeues(folder, allocation, retries=reason.is_retry)
    if reason.is_retry:
        limit = node.plan.config.cluster.retries
        obstacle = retry_obstacle(node.plan, count, may_requeue=allocation.may_requeue)
    else:
        limit = node.plan.config.cluster.requeues
        obstacle = requeue_obstacle(
            node.plan,
            count,
            lost=reason.lost,
            before=before,
            now=now,
            may_requeue=allocation.may_requeue,
        )
    is_requeued = False
    messages: list[str] = []
    if obstacle is not None:
        messages = [f"job {allocation.job_id} is not requeued: {obstacle}"]
    elif node.mailbox:
        is_requeued = True  # the batch script does it, below
    else:
        is_requeued, messages = requeue(allocation, folder.script, reason.avoided_host)
    if is_requeued:
        number = f"{count + 1} of {limit} times"
        messages = [f"job {allocation.job_id} is requeued ({number})", *messages]
    else:
        resumes = f"resumes from {now.path.name}" if now else "has no checkpoint to resume from"
        messages.append(f"submitted again, this run {resumes}")
    decision = [reason.text, *messages]
    write_decision(node.attempt, decision, requeued=is_requeued, is_retry=reason.is_retry)
    notify("; ".join(decision))
    if is_requeued and node.mailbox:
        action: Literal["retry", "requeue"] = "retry" if reason.is_retry else "requeue"
        instruct_batch_script(node.mailbox, action, reason.avoided_host)
    return is_requeued


def _record_for_first_node(node: NodeContext) -> None:
    """Write the outcome of a run whose first node, which keeps its record, was lost."""
    outcome = read_outcome(node.record)
    folder = RunFolder(node.plan.folder)
    if outcome is not None and folder_status(folder.path) == "unfinished":
        folder.finish(add_earlier_steps(outcome, folder.metrics))
