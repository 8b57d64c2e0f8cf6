"""Runs the ranks of one node; node 0 leads the run and keeps its record.

The other nodes follow node 0's start record, which has the command and the rendezvous.
"""

from __future__ import annotations

import contextlib
import random
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, refusal
from launch.execution.completion import verify_inputs
from launch.execution.display import Display, PlainDisplay, display_for
from launch.execution.engine import build_execution
from launch.execution.guards import GUARDS
from launch.execution.record.events import Event
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome
from launch.execution.record.written import record_last
from launch.execution.supervise.supervisor import Execution, supervise
from launch.files import read_file, write_exact
from launch.planning.command import NodeRendezvous, fill_placeholders
from launch.planning.plan import Plan
from launch.planning.read_files import LoadedFiles, ReadFile, ReadFiles, find_here
from launch.slurm.node.task import NodeContext, await_job_outcome
from launch.worker.json_codec import decode, encode

_FILE = "start.json"
_CONNECT_TIMEOUT = 5.0  # seconds
_JOB_PORTS = range(10_000, 20_000)  # below the ephemeral ports (32768 and up)
_FALLBACK_PORTS = range(20_000, 30_000)
_TRIES = 50


@dataclass(frozen=True)
class StartRecord:
    """How the ranks of all nodes are started."""

    identity: str  # identity of node 0's plan
    # It has placeholders that each node fills in; it is empty if there is nothing to run.
    command: tuple[str, ...] = ()
    host: str = ""  # where rank 0 listens
    port: int = 0
    # the files that the ranks load, as node 0 found them: the other nodes have to load the same
    files: Mapping[str, ReadFile] = field(default_factory=dict)
    folders: tuple[str, ...] = ()

    @property
    def inputs(self) -> ReadFiles:
        files = {Path(name): file for name, file in self.files.items()}
        return ReadFiles(files, tuple(map(Path, self.folders)))

    def write(self, folder: Path) -> None:
        """Write the record into the folder of this start of the job."""
        write_exact(folder / _FILE, encode(self, indent=2))


def is_listening(record: StartRecord | None) -> bool:
    """Return whether a process accepts connections where the record has rank 0 listen."""
    if record is None or not record.port:
        return False
    try:
        with socket.create_connection((record.host, record.port), timeout=_CONNECT_TIMEOUT):
            return True
    except OSError:
        return False


def read_start_record(folder: Path) -> StartRecord | None:
    """Return the record; None until node 0 has written it and this node can read all of it."""
    with contextlib.suppress(OSError, ValueError):
        return decode(StartRecord, read_file(folder / _FILE))
    return None


def rendezvous_port(job: int) -> int:
    """Derive the port from the job's number, so that no other live job has it.

    If that port is in use, a free one is picked. Call it on the node that will listen.

    Raises OSError if no port is free.
    """
    port = _JOB_PORTS[job % len(_JOB_PORTS)]
    for _ in range(_TRIES):
        if _is_free(port):
            return port
        port = random.choice(_FALLBACK_PORTS)
    raise OSError(
        f"none of {_TRIES} ports tried is free, the last ones of {_FALLBACK_PORTS.start} to "
        f"{_FALLBACK_PORTS.stop}"
    )


def _is_free(port: int) -> bool:
    try:
        with socket.socket() as listening:
            listening.bind(("", port))
            listening.listen(1)
    except OSError:
        return False
    return True


_RECORD_POLL = 0.2  # seconds


def run_first_node(node: NodeContext) -> int:
    """Run node 0's part of the task; the other nodes start their ranks when node 0 does.

    Raises UserError.
    """
    allocation = node.allocation

    def run_ranks(
        started: Plan, folder: RunFolder, display: Display, inputs: LoadedFiles
    ) -> Outcome:
        port = rendezvous_port(allocation.number)
        start = StartRecord(
            started.identity,
            started.command,
            allocation.host,
            port,
            {str(path): file for path, file in inputs.planned.files.items()},
            tuple(map(str, inputs.planned.folders)),
        )
        if len(allocation.hosts) > 1:
            hosts = ", ".join(allocation.hosts)
            address = f"{start.host}:{start.port}"
            display.say(f"job {allocation.job_id} on {hosts}; rank 0 listens on {address}")
        start.write(node.attempt)
        node.peers.report_progress("started")
        with node.signals.while_ranks_run():
            execution = node_execution(node, started, start, inputs)
            outcome = supervise(execution, folder, display)
        outcome = await_job_outcome(node, outcome)
        record_last(started.folder, started.model_dir)
        return outcome

    code = node.task.lead(run_ranks, display_for(sys.stdout))
    if read_start_record(node.attempt) is None:
        StartRecord(node.plan.identity).write(node.attempt)  # there was nothing to run
        node.peers.report_progress("started")
    return code


def run_other_node(node: NodeContext) -> int:
    """Wait for node 0's start record and run this node's ranks.

    Their logs are in nodes/N of the run folder.

    Raises UserError: nodes_differ, input_changed.
    """
    plan = node.plan
    allocation = node.allocation
    node.peers.wait_while("", "planned")
    start = read_start_record(node.attempt)
    while start is None:  # a shared file system may show it later
        time.sleep(_RECORD_POLL)
        start = read_start_record(node.attempt)
    if start.identity != plan.identity:
        message = (
            f"the plan is {plan.identity} on {allocation.host} "
            f"and {start.identity} on {allocation.hosts[0]}"
        )
        cure = "make checkout, configuration and package versions the same on all nodes"
        raise refusal("nodes_differ", message, None, cure)
    if not start.command:
        return EXIT_DONE
    digests = plan.machine.digests
    found = find_here(start.inputs, digests.of, plan.config.allow)
    inputs = LoadedFiles(found, digests.of)
    folder = RunFolder(node.record)
    folder.create()
    display = _MessageDisplay(allocation.host)
    with node.signals.while_ranks_run():
        execution = node_execution(node, plan, start, inputs)
        outcome = supervise(execution, folder, display)
    outcome = verify_inputs(outcome, inputs, plan.config.allow)
    outcome = await_job_outcome(node, outcome)
    folder.finish(outcome)
    return outcome.exit_code


def node_execution(
    node: NodeContext, plan: Plan, start: StartRecord, inputs: LoadedFiles
) -> Execution:
    """Build the execution of this node's ranks.

    Only node 0 sees the trainer's metrics, so it alone runs the guards that read them and counts
    the steps of a task that ends early; it alone watches the disk and the checkpoints, too.
    """
    allocation = node.allocation
    ranks_per_node = plan.parallel.width.local
    first_rank = allocation.node_rank * ranks_per_node
    ranks = tuple(range(first_rank, first_rank + ranks_per_node))
    execution = build_execution(plan, inputs)
    watch_config = execution.watch_config
    guard_context = replace(watch_config.guard_context, ranks=ranks)
    watch_config = replace(watch_config, guard_context=guard_context)
    if not node.is_first:
        guards = plan.config.guards
        if guards:
            off: dict[str, Any] = {
                guard.id: None for guard in GUARDS if not guard.judge.on_every_node
            }
            guards = replace(guards, **off)
        watch_config = replace(watch_config, output=None, guards=guards)
    rendezvous = NodeRendezvous(allocation.node_rank, start.host, start.port)
    return replace(
        execution,
        argv=fill_placeholders(start.command, rendezvous),
        watch_config=watch_config,
        peers=node.peers,
        stop_after=node.task.steps if node.is_first else None,
        leads=node.is_first,
        recorded=(EXIT_FAILED, EXIT_STOPPED),  # the job knows more about an interruption
    )


class _MessageDisplay(PlainDisplay):
    """The display of the other nodes: messages only, each line prefixed with the host."""

    def __init__(self, host: str) -> None:
        super().__init__(sys.stdout)
        self._host = host

    def show(self, event: Event) -> None:
        """Node 0 shows the progress."""

    def say(self, text: str) -> None:
        super().say("\n".join(f"{self._host}: {line}" for line in text.splitlines()))
