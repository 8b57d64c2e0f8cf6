"""Runs the ranks of one node: node 0 leads the run and keeps its record, the others follow its start record."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, Problem, UserError
from launch.execution.display import Display, display_for
from launch.execution.engine import build_execution
from launch.execution.guards import GUARDS
from launch.execution.record.events import Event
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome
from launch.execution.supervise.supervisor import Execution, supervise
from launch.execution.supervise.watch import build_watch_config
from launch.planning.command import NodeRendezvous, fill_placeholders
from launch.planning.plan import Plan
from launch.slurm.node.context import NodeContext
from launch.slurm.node.outcome import job_outcome
from launch.slurm.stack_requests import LOOKS_PER_SECOND, StackRequests
from launch.slurm.start_record import StartRecord, read_start_record, rendezvous_port
from launch.terminal import echo

_POLL = 0.2  # seconds
RECORDED = (EXIT_FAILED, EXIT_STOPPED)  # by the supervisor; of an interruption the job knows more


def run_first_node(node: NodeContext) -> int:
    """Run node 0's part of the task; the other nodes start their ranks when it starts its own. Raises UserError."""
    allocation = node.allocation

    def run_ranks(started: Plan, folder: RunFolder, display: Display) -> Outcome:
        launched = replace(build_execution(started), stop_after=node.task.steps, recorded=RECORDED)
        if len(allocation.hosts) > 1:
            port = rendezvous_port(str(allocation.number))
            start = StartRecord(started.identity, started.command, allocation.host, port)
            hosts = ", ".join(allocation.hosts)
            display.say(f"job {allocation.job_id} on {hosts}; rank 0 listens on {start.host}:{start.port}")
            start.write(node.attempt)
            node.peers.report_progress("started")
            launched = replace(node_execution(node, started, start), on_step=node.peers.note_step)
        with node.signals.while_ranks_run():
            outcome = supervise(launched, folder, display)
        return job_outcome(node, outcome)

    code = node.task.lead(run_ranks, display_for(sys.stdout))
    if read_start_record(node.attempt) is None:
        StartRecord(node.plan.identity).write(node.attempt)  # there was nothing to run
        node.peers.report_progress("started")
    return code


def run_other_node(node: NodeContext) -> int:
    """Wait for node 0's start record and run this node's ranks; their logs are in nodes/N of the run folder.

    Raises UserError: nodes_differ.
    """
    plan, allocation = node.plan, node.allocation
    node.peers.await_progress("started")
    start = read_start_record(node.attempt)
    while start is None:  # a shared file system may show it later
        time.sleep(_POLL)
        start = read_start_record(node.attempt)
    if start.identity != plan.identity:
        message = f"the plan is {plan.identity} on {allocation.host} and {start.identity} on {allocation.hosts[0]}"
        cure = "make checkout, configuration and package versions the same on all nodes"
        raise UserError(Problem("nodes_differ", message, None, cure))
    if not start.command:
        return EXIT_DONE
    folder = RunFolder(node.record)
    folder.create()
    with node.signals.while_ranks_run():
        outcome = supervise(node_execution(node, plan, start), folder, _MessageDisplay(allocation.host))
    outcome = job_outcome(node, outcome)
    folder.finish(outcome)
    return outcome.exit_code


def node_execution(node: NodeContext, plan: Plan, start: StartRecord) -> Execution:
    """Build the execution of this node's ranks.

    Only node 0 sees the trainer's metrics, so it alone runs the guards that read them and counts the steps of a task
    that ends early.
    """
    allocation, steps = node.allocation, node.task.steps
    ranks_per_node = plan.parallel.width.local
    ranks = tuple(range(allocation.node_rank * ranks_per_node, (allocation.node_rank + 1) * ranks_per_node))
    watch_config = build_watch_config(plan)
    watch_config = replace(watch_config, guard_context=replace(watch_config.guard_context, ranks=ranks))
    if allocation.node_rank and plan.config.guards is not None:
        off: dict[str, Any] = {guard.id: None for guard in GUARDS if not guard.on_every_node}
        watch_config = replace(watch_config, guards=replace(plan.config.guards, **off))
    if allocation.node_rank:  # node 0 alone watches the disk and the checkpoints
        watch_config = replace(watch_config, output=None)
    place = NodeRendezvous(allocation.node_rank, start.host, start.port)
    return replace(
        build_execution(plan),
        argv=fill_placeholders(start.command, place),
        watch_config=watch_config,
        peer_stacks=StackRequests(node.attempt, allocation.node_rank, allocation.hosts),
        stop_after=None if allocation.node_rank else steps,
        stop_file=node.steps_reached if steps else None,
        reports_interruption=allocation.node_rank == 0,
        recorded=RECORDED,
        poll_every=len(allocation.hosts) / LOOKS_PER_SECOND,
    )


class _MessageDisplay:
    """The display of a node other than the first: messages only, each line prefixed with the host."""

    def __init__(self, host: str) -> None:
        self._host = host

    def start(self, total: int | None) -> None:
        """Node 0 shows the progress."""

    def show(self, event: Event) -> None:
        """Node 0 shows the progress."""

    def refresh(self) -> None:
        """Nothing is updated in place."""

    def say(self, text: str) -> None:
        echo("\n".join(f"{self._host}: {line}" for line in text.splitlines()), flush=True)

    def close(self) -> None:
        """Nothing is updated in place."""
