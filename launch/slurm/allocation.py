"""The allocation that a node's task runs in: the job, its nodes and this node's rank among them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launch.config.line import CommandLine
from launch.config.schema import RootConfig
from launch.errors import refusal
from launch.external import wait_until
from launch.worker.finding import Fix

_FILE_DELAY = 3.0  # seconds until a file that another node wrote is visible on a shared file system
_POLL = 0.2  # seconds
# The variable that starts a task which only records the end of those before it: their exit code.
ENDED = "LAUNCH_ENDED"
# The variable with the identity of the training that was submitted, without the width.
TRAINING = "LAUNCH_TRAINING"


@dataclass(frozen=True)
class Allocation:
    """A job's nodes, and this node's rank among them."""

    # 12, or 12_3 for a task of an array. Only this id is passed to Slurm's commands: the `number`
    # of one of the tasks is the number of the array itself, by which Slurm means all of them.
    job_id: str
    number: int
    restarts: int  # how often Slurm requeued the job
    node_rank: int
    hosts: tuple[str, ...]  # in Slurm's order
    # The file in which the batch script finds the order to requeue or cancel the job.
    mailbox: Path | None = None
    # Unix seconds of this start of the job, the same on all nodes; "" if the script sets none.
    started: str = ""
    may_requeue: bool = True  # False: it was submitted with --no-requeue

    @property
    def host(self) -> str:
        return self.hosts[self.node_rank]


def read_allocation(environ: Mapping[str, str]) -> Allocation:
    """Read the variables of srun, and LAUNCH_HOSTS.

    The batch script sets LAUNCH_HOSTS from `scontrol show hostnames`, once a job: a container may
    lack scontrol.

    Raises UserError: no_allocation.
    """
    hosts = tuple(environ.get("LAUNCH_HOSTS", "").split())
    started = environ.get("LAUNCH_STARTED", "")
    try:
        allocation = Allocation(
            job_id=_job_id(environ),
            number=int(environ["SLURM_JOB_ID"]),
            restarts=int(environ.get("SLURM_RESTART_COUNT") or 0),
            node_rank=int(environ["SLURM_NODEID"]),
            hosts=hosts,
            mailbox=_find_mailbox(environ),
            started=started if started.isdecimal() else "",
            may_requeue=environ.get("LAUNCH_REQUEUE") != "0",
        )
    except (KeyError, ValueError) as error:
        message = f"this process is not a task of a Slurm job step ({error})"
        cure = Fix.of("{0} writes the batch script that runs it", "$ launch submit")
        raise refusal("no_allocation", message, None, cure) from error
    if allocation.node_rank >= len(hosts):
        message = f"LAUNCH_HOSTS lists {len(hosts)} hosts, but this is node {allocation.node_rank}"
        hosts_of_job = '$ export LAUNCH_HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST")'
        cure = Fix.of("{0} in the batch script", hosts_of_job)
        raise refusal("no_allocation", message, None, cure)
    return allocation


def fit_line(line: CommandLine, config: RootConfig, allocation: Allocation) -> CommandLine:
    """Return the line of a job with the number of nodes that Slurm has allocated to it.

    `config` is the composed configuration of the line. A run whose script sets LAUNCH_TRAINING, the
    identity of its training, is resumed at another width if that identity is the same there. The
    script of a run that is bound to its width does not set it, and its line is returned as it is.
    Raises UserError.
    """
    nodes = len(allocation.hosts)
    if config.nodes == nodes or config.cache_only or TRAINING not in os.environ:
        return line
    _, rest = line.pop_overrides(("nodes",))
    return replace(rest, argv=(*rest.argv, f"nodes={nodes}"))


def check_shared(allocation: Allocation, seconds: float = _FILE_DELAY) -> None:
    """Check that this node sees the mailbox that the batch script created on the first node.

    Raises UserError: not_shared.
    """
    path = allocation.mailbox
    if path is not None and not wait_until(path.exists, seconds, _POLL):
        first_host = allocation.hosts[0]
        message = f"{path.parent} on {allocation.host} is not the same folder as on {first_host}"
        cure = (
            "set runs to a folder on a file system that all nodes share, "
            "and in a container mount it"
        )
        raise refusal("not_shared", message, "runs", cure)


def _find_mailbox(environ: Mapping[str, str]) -> Path | None:
    """LAUNCH_MAILBOX, unless it was inherited from the job in which this one was submitted."""
    path = Path(environ.get("LAUNCH_MAILBOX", ""))
    return path if path.name.startswith(f"mailbox-{environ['SLURM_JOB_ID']}-") else None


def _job_id(environ: Mapping[str, str]) -> str:
    """Return the id that Slurm's commands use.

    It is from LAUNCH_TASK, or, in an array with a script that launch did not write, from Slurm's
    variables. A job that is submitted from within an array's task inherits that task's variables,
    so LAUNCH_TASK counts only if it names this job's number.
    """
    job_number = environ["SLURM_JOB_ID"]
    number, _, task = environ.get("LAUNCH_TASK", "").partition(" ")
    if task and number == job_number:
        return task
    array = environ.get("SLURM_ARRAY_JOB_ID")
    index = environ.get("SLURM_ARRAY_TASK_ID")
    if not array or not index:
        return job_number
    array_task = f"{array}_{index}"
    return job_number if array_task == task else array_task
