"""From the start of a node's task to its end: plan, run the ranks, record the outcome, requeue the
job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from launch.check.machine.parser import parser_accepts
from launch.check.machine.rules import inspect, stopping_problems
from launch.config.compose import Composed
from launch.config.schema import Device
from launch.errors import EXIT_INTERRUPTED, EXIT_REFUSED, UserError, refusal
from launch.execution.display import display_for
from launch.execution.engine import build_cache
from launch.execution.record.attempts import add_earlier_steps
from launch.execution.record.folder import RunFolder
from launch.execution.record.lock import find_holder, lock_path
from launch.execution.record.outcome import Outcome, folder_status, read_outcome
from launch.planning.machine import this_machine
from launch.planning.model_folder import find_model_faults
from launch.planning.plan import Plan, build_plan
from launch.slurm.allocation import Allocation
from launch.slurm.jobs import JobFolder, write_job_identity
from launch.slurm.node.gpu_check import check_gpus
from launch.slurm.node.ranks import is_listening, read_start_record, run_first_node, run_other_node
from launch.slurm.node.recovery import choose_end_delay, recover
from launch.slurm.node.task import (
    NodeContext,
    NodeTask,
    await_job_outcome,
    describe_lost,
    report_failure,
    stage_task,
)
from launch.slurm.peers import LostNode, NodeFailure, Peers
from launch.slurm.requeue_policy import RestartMark, last_checkpoint
from launch.slurm.signals import SIGINT_CAUSE, NodeSignals
from launch.terminal import notify

_SIGNAL_SPREAD = 5.0  # seconds within which Slurm's signal reaches every node of a job


def run_stage(composed: Composed, allocation: Allocation, signals: NodeSignals) -> int:
    """Run this node's part of the composed stage and return its exit code. Raises UserError."""
    config = composed.config
    if config.cache_only:
        signals.ready()
        plan = build_plan(composed, this_machine(composed))
        _check_start(plan, allocation, nodes=1)
        return build_cache(plan, display_for(sys.stdout))
    folder = JobFolder.of(
        Path.cwd() / Path(config.runs).expanduser(), composed.stage, config.name or ""
    )
    if config.name and folder.path.is_dir():  # the batch script's mailbox is in it
        # it is known before the plan: the nodes wait for node 0's digests, and one that cannot plan
        # reports that
        heartbeat = config.cluster.heartbeat
        return _run(
            lambda peers: stage_task(composed, allocation, peers),
            folder,
            heartbeat,
            allocation,
            signals,
        )
    return run_task(stage_task(composed, allocation), allocation, signals)


def run_task(task: NodeTask, allocation: Allocation, signals: NodeSignals) -> int:
    """Run this node's part of a task and return its exit code. Raises UserError."""
    plan = task.plan
    return _run(
        lambda peers: task,
        JobFolder.of_plan(plan),
        plan.config.cluster.heartbeat,
        allocation,
        signals,
    )


def _run(
    plan_task: Callable[[Peers], NodeTask],
    folder: JobFolder,
    heartbeat: float,
    allocation: Allocation,
    signals: NodeSignals,
) -> int:
    attempt = folder.attempt(allocation.job_id, allocation.restarts, allocation.started)

    def on_lost(lost: LostNode) -> None:
        # Slurm signals all nodes at once: this one is likely next
        if lost.failure.cause.startswith("interrupted by "):
            signals.end(after=_SIGNAL_SPREAD)
            return
        # hundreds of nodes would bury the line; if node 0 is lost, one of them decides
        if allocation.node_rank == 0:
            notify(describe_lost(allocation, lost))
        signals.end()

    peers = Peers(
        attempt,
        allocation.node_rank,
        allocation.hosts,
        heartbeat,
        on_lost,
        was_terminated=lambda: signals.terminated,
        is_reachable=lambda: is_listening(read_start_record(attempt)),
    )
    node: NodeContext | None = None
    before = None
    failure: NodeFailure | None = NodeFailure("it did not start")
    code = EXIT_REFUSED
    peers.start()
    try:
        if allocation.node_rank == 0:
            write_job_identity(attempt, allocation.job_id)
        task = plan_task(peers)
        peers.report_progress("planned")
        _check_start(task.plan, allocation, task.plan.parallel.width.nodes)
        refusals = (
            stopping_problems(inspect(task.plan, [parser_accepts]))
            if allocation.node_rank == 0
            else []
        )
        # Slurm's signal ends the parser's process too, which is not a refusal
        if refusals and not signals.terminated:
            # before the task has a context, without which nothing requeues the job
            raise UserError(refusals)
        node = NodeContext(task, allocation, attempt, peers, signals)
        if (
            task.plan.parallel.width.device == Device.cuda
            and "gpu_fault" not in task.plan.config.allow
        ):
            check_gpus(os.environ)
        before = last_checkpoint(node.plan) if node.is_first else None
        signals.choose_delay = partial(choose_end_delay, node, before)
        code = _run_ranks(node)
        outcome = read_outcome(node.record)
        failure = report_failure(outcome or Outcome(code, 0.0, 0, None)) if code else None
    except UserError as error:
        failure = NodeFailure(str(error.problems[0]), error.problems[0].id)
        raise
    finally:
        peers.settle(failure)
        if node is not None:
            recover(node, code, failure, before)
        peers.finish()
    return code


def _check_start(plan: Plan, allocation: Allocation, nodes: int) -> None:
    """Check that the job and the files are those of the plan. Raises UserError: other_allocation,
    plan_changed, incomplete_model.
    """
    if len(allocation.hosts) != nodes:
        message = (
            f"job {allocation.job_id} has {len(allocation.hosts)} nodes, the plan needs {nodes}"
        )
        raise refusal(
            "other_allocation", message, "nodes", "set nodes= to the value of #SBATCH --nodes"
        )
    submitted = os.environ.get("LAUNCH_PLAN", plan.identity)
    if submitted != plan.identity:
        changed = "a configuration, an input or upstream's source has changed since"
        message = f"this plan is {plan.identity}, but {submitted} was submitted: {changed}"
        cure = "submit it again; in a script edited by hand remove LAUNCH_PLAN and name="
        raise refusal("plan_changed", message, "LAUNCH_PLAN", cure)
    model = plan.inputs.model
    if model.local and not model.build:
        faults = find_model_faults(model.local)
        if faults:
            raise refusal("incomplete_model", f"{model.local} is not a complete model: {faults[0]}")


def _run_ranks(node: NodeContext) -> int:
    """Run the ranks; a node that is ended before they start also records an outcome. Raises
    UserError.
    """
    try:
        node.signals.ready()
        return run_first_node(node) if node.is_first else run_other_node(node)
    except UserError as error:  # also raised by a step before the ranks whose processes were ended
        was_ended = (
            node.signals.terminated or node.signals.time_limit_near or node.peers.lost is not None
        )
        if not (node.is_first and was_ended):
            raise
        detail = tuple(str(problem) for problem in error.problems)
    except SystemExit:
        detail = ()
    outcome = await_job_outcome(
        node, Outcome(EXIT_INTERRUPTED, 0.0, 0, None, cause=SIGINT_CAUSE, detail=detail)
    )
    if node.is_first:
        notify("; ".join(["ended before its ranks started", str(outcome.cause), *detail]))
        _record_early_end(node, outcome)
    return outcome.exit_code


def _record_early_end(node: NodeContext, outcome: Outcome) -> None:
    """Write FAILED, unless another launcher holds the folder or it contains a run that is done or
    still to be archived.
    """
    plan, run_status = node.plan, folder_status(node.plan.folder)
    has_older_run = run_status == "done" or (
        run_status != "absent" and RestartMark(plan, node.allocation).is_due
    )
    # a width of a rollout that never started gets no outcome, because its gates would judge it
    is_unstarted_width = run_status == "absent" and node.task.steps is not None
    if has_older_run or is_unstarted_width or find_holder(lock_path(plan.folder)):
        return
    folder = RunFolder(plan.folder)
    folder.create()
    folder.finish(add_earlier_steps(outcome, folder.metrics))
