"""Why Slurm ended a job's tasks: its own record of the job, or the task of a node that ended first.

Every end of a job reaches its tasks as SIGTERM: the time limit, a preemption, a requeue, scancel,
and the end of another node's task, after which srun ends the rest (--kill-on-bad-exit).
"""

from __future__ import annotations

from dataclasses import dataclass

from launch.external import wait_until
from launch.slurm.allocation import Allocation
from launch.slurm.job_log import JobLog, last_message
from launch.slurm.queue import JobRecord, parse_job_record
from launch.slurm.slurm_cli import try_command

_SHOWN_AFTER = 3.0  # seconds within which srun's lines reach the job's log


@dataclass(frozen=True)
class SignalCause:
    """Why Slurm ended a task."""

    text: str
    host: str | None = None  # the node whose task ended by itself


def find_signal_cause(allocation: Allocation, log: JobLog, absent: list[str]) -> SignalCause:
    """Return why Slurm ended this node's task; `absent` has the hosts without any heartbeat."""
    output = try_command(["scontrol", "--oneliner", "show", "job", allocation.job_id])
    record = parse_job_record(output.splitlines()[0]) if output and output.strip() else None
    cause = None
    if record is not None:
        cause = _describe_record(allocation, record)
    if cause is not None:
        return SignalCause(cause)
    if len(allocation.hosts) > 1 and log.path.exists():
        wait_until(lambda: bool(log.find_ended_tasks()), _SHOWN_AFTER)
    for host, end in log.find_ended_tasks()[:1]:  # the others were ended because of it
        if host != allocation.host:
            return SignalCause(_describe_task(host, end, log, absent), host)
    if absent:
        text = f"node {_list_hosts(absent)} ended before it reported: see the job's log"
        return SignalCause(text, absent[0])
    job = f"job {allocation.job_id}"
    if record is None:
        return SignalCause(f"{job} was ended by Slurm, which does not answer here")
    return SignalCause(f"a signal was sent to {job} (scancel --signal)")


def _describe_record(allocation: Allocation, record: JobRecord) -> str | None:
    """Return why Slurm ends this start of the job; None if it does not."""
    job = f"job {allocation.job_id}"
    if record.reason == "TimeLimit" or record.state == "TIMEOUT":
        return f"{job} reached its time limit ({record.time_limit})"
    if record.is_preempted:
        return f"{job} was preempted"
    if record.restarts > allocation.restarts:
        return _describe_requeue(allocation)
    if record.state == "RUNNING":
        return None
    if record.state == "NODE_FAIL":
        return _describe_requeue(allocation)
    return f"{job} was cancelled"


def _describe_requeue(allocation: Allocation) -> str:
    """Return why Slurm requeued the job: a node that is down, or a user who requested it."""
    hosts = ",".join(allocation.hosts)
    output = try_command(["sinfo", "--noheader", "--Node", f"--nodes={hosts}", "--format=%N|%T|%E"])
    for line in (output or "").splitlines():
        host, _, rest = line.strip().partition("|")
        state, _, reason = rest.partition("|")
        if state.startswith("down"):
            return f"Slurm counts node {host} as down ({reason})"
    return f"job {allocation.job_id} was requeued (scontrol requeue)"


def _describe_task(host: str, end: str, log: JobLog, absent: list[str]) -> str:
    """Return what srun, and the task itself, reported of its end."""
    cause = f"the launcher on node {host} ended: {end}"
    message = last_message(log.path, log.begin) if host in absent else None
    return f"{cause}; {message}" if message else cause


def _list_hosts(hosts: list[str]) -> str:
    """Return at most three hosts, and how many more there are."""
    names = ", ".join(hosts[:3])
    return f"{names} and {len(hosts) - 3} more" if len(hosts) > 3 else names
