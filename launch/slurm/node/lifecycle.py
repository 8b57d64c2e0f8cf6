"""Runs a node's task from its start to its end: plan, ranks, outcome, requeue."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from launch.check.machine.parser import parser_accepts
from launch.check.machine.rules import inspect, stopping_problems
from launch.config.compose import Composed
from launch.config.schema import Device, RootConfig
from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED, UserError, refusal
from launch.execution.display import display_for
from launch.execution.engine import build_cache
from launch.execution.record.attempts import add_earlier_steps
from launch.execution.record.checkpoints import Checkpoint
from launch.execution.record.folder import RunFolder
from launch.execution.record.lock import find_holder, lock_path
from launch.execution.record.outcome import Outcome, folder_status, read_outcome
from launch.planning.build import plan_on_this_machine
from launch.planning.folders import runs_folder
from launch.planning.model_folder import find_model_faults
from launch.planning.plan import Plan
from launch.slurm.allocation import TRAINING, Allocation
from launch.slurm.job_log import JobLog
from launch.slurm.jobs import JobFolder, note_jobs
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
from launch.slurm.requeue import end_batch_script
from launch.slurm.requeue_policy import RestartMark, last_checkpoint
from launch.slurm.signals import SIGINT_CAUSE, NodeSignals, is_interruption
from launch.terminal import notify

# Seconds for the other nodes to end once the first one has: longer than they need to find a node
# silent, and to record that.
_PATIENCE = 60
_SIGNAL_SPREAD = 5.0  # seconds within which Slurm's signal reaches every node of a job


def run_stage(composed: Composed, allocation: Allocation, signals: NodeSignals) -> int:
    """Run this node's part of the composed stage and return its exit code. Raises UserError."""
    config = composed.config
    if config.cache_only:
        signals.ready()
        plan = plan_on_this_machine(composed)
        _check_start(plan, allocation, nodes=1)
        return build_cache(plan, display_for(sys.stdout))
    runs = runs_folder(config, Path.cwd())
    folder = JobFolder.of(runs, composed.stage, config.name or "")
    if config.name and folder.path.is_dir():  # the batch script's mailbox is in it
        # The folder is known before the plan. The nodes can wait for node 0's digests, and a node
        # that cannot plan reports that.
        return _run(
            lambda peers: stage_task(composed, allocation, peers),
            folder,
            config.cluster.heartbeat,
            allocation,
            signals,
        )
    return run_task(stage_task(composed, allocation), allocation, signals)


def run_task(task: NodeTask, allocation: Allocation, signals: NodeSignals) -> int:
    """Run this node's part of a task and return its exit code. Raises UserError."""
    folder = JobFolder.of_plan(task.plan)
    heartbeat = task.plan.config.cluster.heartbeat
    return _run(lambda peers: task, folder, heartbeat, allocation, signals)


def record_killed(config: RootConfig, stage: str, allocation: Allocation, code: int) -> int:
    """Record how a run ended whose launchers a signal ended; `code` is the exit code of their step.

    Slurm kills them without a warning after a signal to the batch script's srun (`scancel --full`),
    the system does when memory runs out, and a library may crash. Returns `code`, or 0 if the run
    was done by then.
    """
    runs = runs_folder(config, Path.cwd())
    name = config.name or ""
    folder = RunFolder(runs / stage / name)
    run_status = folder_status(folder.path) if name else "absent"
    if run_status == "done" and not config.restart:
        return EXIT_DONE
    if run_status != "unfinished" or find_holder(lock_path(folder.path)):
        return code
    log = JobLog(JobFolder.of(runs, stage, name).log(allocation.job_id), 0)
    tasks = log.find_ended_tasks()
    # Slurm kills the others when one has ended by itself.
    crashed = [(host, end) for host, end in tasks if not end.startswith(("Killed", "Terminated"))]
    cause = "the launchers of the job were killed"
    for host, end in (crashed or tasks)[-1:]:  # earlier ones may be of an earlier start
        cause = f"the launcher on node {host} ended: {end}"
    outcome = Outcome(EXIT_FAILED, 0.0, 0, None, cause=cause)
    folder.finish(add_earlier_steps(outcome, folder.metrics))
    notify(cause)
    return code


def _run(
    plan_task: Callable[[Peers], NodeTask],
    folder: JobFolder,
    heartbeat: float,
    allocation: Allocation,
    signals: NodeSignals,
) -> int:
    """Plan the task, run this node's ranks, and return the exit code. Raises UserError.

    `heartbeat` is the number of seconds of silence after which another node counts as lost.
    """
    attempt = folder.attempt(allocation.job_id, allocation.restarts, allocation.started)
    log = JobLog.from_now(folder.log(allocation.job_id))
    peers = _watch_peers(attempt, heartbeat, allocation, signals)
    node: NodeContext | None = None
    before: Checkpoint | None = None
    failure: NodeFailure | None = NodeFailure("it did not start")
    code = EXIT_REFUSED
    peers.start()
    try:
        if allocation.node_rank == 0:
            note_jobs({allocation.job_id: folder})
        task = plan_task(peers)
        peers.report_progress("planned")
        _check_task(task.plan, allocation, signals)
        node = NodeContext(task, allocation, attempt, peers, signals, log)
        _check_gpus(node.plan)
        before = last_checkpoint(node.plan) if node.is_first else None
        signals.choose_delay = partial(choose_end_delay, node, before)
        code = _run_ranks(node)
        if code == EXIT_DONE:  # no other node can change this outcome
            _end_job(allocation, code, _PATIENCE)
        failure = _failure_of(node, code)
    except UserError as error:
        failure = NodeFailure(str(error.problems[0]), error.problems[0].id)
        raise
    finally:
        peers.settle(failure)
        goes_on = node is not None and recover(node, code, failure, before)
        peers.finish()
        if code != EXIT_DONE and not goes_on:
            _end_job(allocation, code, _PATIENCE)
    return code


def _end_job(allocation: Allocation, code: int, patience: int) -> None:
    """Have the batch script exit with the code of the first node's outcome, once srun has ended.

    The exit code of srun is the highest of all tasks, and it waits for the task of a dead node.
    """
    if allocation.node_rank == 0 and allocation.mailbox is not None:
        with contextlib.suppress(OSError):
            end_batch_script(allocation.mailbox, code, patience)


def _watch_peers(
    attempt: Path, heartbeat: float, allocation: Allocation, signals: NodeSignals
) -> Peers:
    """Build the heartbeats of this attempt's nodes; a lost node ends this node's ranks."""

    def on_lost(lost: LostNode) -> None:
        # Slurm signals all nodes at once: this one is likely next.
        if is_interruption(lost.failure.cause):
            signals.end(after=_SIGNAL_SPREAD)
            return
        # Hundreds of nodes would bury the line; if node 0 is lost, one of them decides.
        if allocation.node_rank == 0:
            notify(describe_lost(allocation, lost))
        signals.end()

    return Peers(
        attempt,
        allocation.node_rank,
        allocation.hosts,
        heartbeat,
        on_lost,
        was_terminated=lambda: signals.terminated,
        is_reachable=lambda: is_listening(read_start_record(attempt)),
    )


def _check_task(plan: Plan, allocation: Allocation, signals: NodeSignals) -> None:
    """Check the job, the files and the trainer's command line. Raises UserError.

    A refusal must come before the task has a context, without which nothing requeues the job.
    """
    _check_start(plan, allocation, plan.parallel.width.nodes)
    if allocation.node_rank == 0:
        refusals = stopping_problems(inspect(plan, [parser_accepts]))
        # Slurm's signal ends the parser's process too, which is not a refusal.
        if refusals and not signals.terminated:
            raise UserError(refusals)


def _check_gpus(plan: Plan) -> None:
    """Check this node's GPUs, if the plan uses them. Raises UserError: gpu_fault."""
    on_gpus = plan.parallel.width.device == Device.cuda
    if on_gpus and "gpu_fault" not in plan.config.allow:
        check_gpus(os.environ)


def _failure_of(node: NodeContext, code: int) -> NodeFailure | None:
    """Return why this node's ranks failed, from their recorded outcome; None if they are done."""
    if not code:
        return None
    outcome = read_outcome(node.record)
    return report_failure(outcome or Outcome(code, 0.0, 0, None))


def _check_start(plan: Plan, allocation: Allocation, nodes: int) -> None:
    """Check that the job and the files are those of the plan.

    Raises UserError: other_allocation, plan_changed, incomplete_model.
    """
    if len(allocation.hosts) != nodes:
        message = (
            f"job {allocation.job_id} has {len(allocation.hosts)} nodes, the plan needs {nodes}"
        )
        if plan.width_obstacle is not None:
            message += f", and its run can't go on at another width: {plan.width_obstacle}"
        cure = "set nodes= to the value of #SBATCH --nodes"
        raise refusal("other_allocation", message, "nodes", cure)
    submitted = os.environ.get("LAUNCH_PLAN", plan.identity)
    training = os.environ.get(TRAINING, "")
    if submitted != plan.identity and training != plan.training_identity:
        changed = "a configuration, an input, the parallel mode or upstream's source has changed"
        message = f"this plan is {plan.identity}, but {submitted} was submitted: {changed} since"
        cure = "submit it again; in a script edited by hand remove LAUNCH_PLAN and name="
        raise refusal("plan_changed", message, "LAUNCH_PLAN", cure)
    model = plan.inputs.model
    if model.local and not model.build:
        faults = find_model_faults(model.local)
        if faults:
            raise refusal("incomplete_model", f"{model.local} is not a complete model: {faults[0]}")


def _run_ranks(node: NodeContext) -> int:
    """Run the ranks and return the exit code. Raises UserError.

    A node that is ended before its ranks start also records an outcome.
    """
    signals = node.signals
    try:
        signals.ready()
        return run_first_node(node) if node.is_first else run_other_node(node)
    except UserError as error:  # also raised by a step before the ranks whose processes were ended
        has_lost_node = node.peers.lost is not None
        was_ended = signals.terminated or signals.time_limit_near or has_lost_node
        if not (node.is_first and was_ended):
            raise
        detail = tuple(str(problem) for problem in error.problems)
    except SystemExit:
        detail = ()
    interrupted = Outcome(EXIT_INTERRUPTED, 0.0, 0, None, cause=SIGINT_CAUSE, detail=detail)
    outcome = await_job_outcome(node, interrupted)
    if node.is_first:
        notify("; ".join(["ended before its ranks started", str(outcome.cause), *detail]))
        _record_early_end(node, outcome)
    return outcome.exit_code


def _record_early_end(node: NodeContext, outcome: Outcome) -> None:
    """Write FAILED into the run folder, unless what is in it is not this attempt's to end."""
    plan = node.plan
    run_status = folder_status(plan.folder)
    if run_status == "done":
        return
    # An older run that is still to be archived has its own end.
    if run_status != "absent" and RestartMark(plan, node.allocation).is_due:
        return
    # A width of a rollout that never started gets no outcome, because its gates would judge it.
    if run_status == "absent" and node.task.steps is not None:
        return
    if find_holder(lock_path(plan.folder)):
        return
    folder = RunFolder(plan.folder)
    folder.create()
    folder.finish(add_earlier_steps(outcome, folder.metrics))
