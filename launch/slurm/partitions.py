"""The cluster's partitions, and what they forbid a job although `sbatch --test-only` accepts it.

Slurm lets a job wait for ever whose partition is down, or does not admit its account, its QOS or
its time limit. It refuses any other impossible job itself.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.config.cluster import ClusterConfig
from launch.errors import did_you_mean
from launch.execution.record.lock import this_process
from launch.slurm.planned_jobs import PlannedJob
from launch.slurm.slurm_cli import format_time_limit, parse_duration, try_command
from launch.worker.finding import Finding

_SETTING = re.compile(r"(\w+)=(\S*)")
_GPU = re.compile(r"gpu(?::([^:(),]+))?:(\d+)")


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition with the same CPUs and GPUs."""

    count: int
    cpus: int  # CPUs of one node
    gpus: tuple[tuple[str, int], ...]  # GPUs of one node: type and number; the type may be ""

    def count_gpus(self, gpu_type: str | None = None) -> int:
        """Return the GPUs of one node, of all types or of `gpu_type`."""
        return sum(number for name, number in self.gpus if gpu_type is None or name == gpu_type)


@dataclass(frozen=True)
class Partition:
    """A partition that the user can see."""

    name: str
    is_default: bool
    state: str  # up, down, drain or inactive
    limit: float  # seconds that a job may run
    nodes: tuple[NodeGroup, ...] = ()
    default_limit: float | None = None  # seconds of a job that sets no time limit; None: `limit`
    accounts: tuple[str, ...] = ()  # accounts that may use it; empty: all but the denied ones
    denied_accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()  # QOS that may use it; empty: all

    def admits_account(self, account: str) -> bool:
        """Return whether jobs of an account may run here."""
        if self.accounts:
            return account in self.accounts
        return account not in self.denied_accounts


def list_partitions() -> list[Partition] | None:
    """List the partitions that this user can see; None if sinfo is missing or does not respond."""
    output = try_command(["sinfo", "--all", "--noheader", "--exact", "--format=%P|%a|%l|%D|%c|%G"])
    if output is None:
        return None
    settings = try_command(["scontrol", "--oneliner", "show", "partition"])
    return parse_partitions(output, settings or "")


def parse_partitions(sinfo_output: str, scontrol_output: str = "") -> list[Partition]:
    """Parse what sinfo and `scontrol --oneliner show partition` print.

    A line of sinfo has a partition's name, with a star for the default, its state and time limit,
    and the nodes, CPUs and gres of a group of nodes. Only scontrol prints who may use a partition,
    and a job's default time limit.
    """
    settings: dict[str, dict[str, str]] = {}
    for line in scontrol_output.splitlines():
        fields = dict(_SETTING.findall(line))
        settings[fields.get("PartitionName", "")] = fields
    by_name: dict[str, Partition] = {}
    for line in sinfo_output.splitlines():
        columns = [column.strip() for column in line.split("|")]
        if len(columns) != 6:
            continue
        starred_name, state, limit, count, cpus, gres = columns
        name = starred_name.removesuffix("*")
        if name not in by_name:
            seconds = parse_duration(limit)
            by_name[name] = Partition(
                name,
                is_default=starred_name.endswith("*"),
                state=state,
                limit=math.inf if seconds is None else seconds,
                **_parse_limits(settings.get(name, {})),
            )
        gpus = tuple((gpu_type, int(number)) for gpu_type, number in _GPU.findall(gres))
        group = NodeGroup(_leading_number(count), _leading_number(cpus), gpus)
        by_name[name] = replace(by_name[name], nodes=(*by_name[name].nodes, group))
    return list(by_name.values())


def _parse_limits(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a Partition that scontrol prints."""

    def names(key: str) -> tuple[str, ...]:
        value = settings.get(key, "ALL")
        return () if value in ("ALL", "(null)") else tuple(value.split(","))

    return {
        "default_limit": parse_duration(settings.get("DefaultTime", "NONE")),
        "accounts": names("AllowAccounts"),
        "denied_accounts": names("DenyAccounts"),
        "qos": names("AllowQos"),
    }


def list_accounts() -> list[str]:
    """List this user's accounts.

    The list is empty if accounting is off, or if the query is not allowed.
    """
    user = this_process().user
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "assoc", "where", f"user={user}"]
    output = try_command([*argv, "format=Account"]) or ""
    return list(dict.fromkeys(output.split()))


def _leading_number(text: str) -> int:
    """Return the number that a text begins with, such as `64+`; 0 if there is none."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


Accounts = Callable[[], list[str]]  # returns the user's accounts


def limit_problems(jobs: Sequence[PlannedJob]) -> list[Finding]:
    """Find why the jobs would wait for ever; nothing if Slurm does not respond."""
    partitions = list_partitions()
    if partitions is None:
        return []
    accounts = functools.cache(list_accounts)  # queried once, and only if a partition needs it
    problems: list[Finding] = []
    allowed: set[str] = set()
    for job in jobs:
        problems.extend(partition_problems(job.script.cluster, partitions, accounts))
        allowed.update(job.plan.config.allow)
    return [problem for problem in dict.fromkeys(problems) if problem.id not in allowed]


def partition_problems(
    cluster: ClusterConfig, partitions: Sequence[Partition], accounts: Accounts = list
) -> list[Finding]:
    """Check that one of a job's partitions is up, and admits the job.

    A partition that does not exist is left to sbatch.
    """
    # For sbatch the variable and the option take precedence over cluster.partition.
    if "SBATCH_PARTITION" in os.environ or _has_option(cluster, "--partition", "-p"):
        return []
    if cluster.partition is None:
        chosen = [partition for partition in partitions if partition.is_default]
    else:
        by_name = {partition.name: partition for partition in partitions}
        chosen = [by_name[name] for name in cluster.partition.split(",") if name in by_name]
    # Slurm starts the job in any of the partitions: it is enough that one of them fits.
    problems = []
    for partition in chosen:
        of_partition = [
            *_state_problems(cluster, partition),
            *_admission_problems(cluster, partition, accounts),
        ]
        if not of_partition:
            return []
        problems.append(of_partition)
    return problems[0] if problems else []


def _has_option(cluster: ClusterConfig, *prefixes: str) -> bool:
    """Return whether cluster.options has an option of sbatch that begins with one of `prefixes`."""
    return any(option.startswith(prefixes) for option in cluster.options)


def _state_problems(cluster: ClusterConfig, partition: Partition) -> Iterator[Finding]:
    """Check that a partition starts jobs, and allows the job's time limit."""
    name = partition.name
    if partition.state != "up":
        message = f"partition {name} is {partition.state}: its jobs do not start"
        cure = "wait until it is up, or set another one"
        yield Finding.error("partition_down", message, "cluster.partition", cure)
    limit = parse_duration(cluster.time) if cluster.time else None
    if limit is not None and limit > partition.limit:
        allowed = format_time_limit(partition.limit)
        message = f"{cluster.time} is more than partition {name} allows, {allowed}"
        cure = "set a shorter time, or another partition"
        yield Finding.error("time_beyond_partition", message, "cluster.time", cure)


def _admission_problems(
    cluster: ClusterConfig, partition: Partition, accounts: Accounts
) -> Iterator[Finding]:
    """Check that the job's account and QOS may use a partition.

    sbatch accepts a job whose account may not, and the job waits for ever.
    """
    name = partition.name
    # These variables take precedence over the cluster's settings.
    if os.environ.keys() & {"SBATCH_ACCOUNT", "SBATCH_QOS"}:
        return
    if _has_option(cluster, "--account", "-A", "--qos", "-q"):
        return
    if partition.accounts or partition.denied_accounts:
        job_accounts = [cluster.account] if cluster.account else accounts()
        is_admitted = any(partition.admits_account(account) for account in job_accounts)
        # Without accounts of the user's, only a list of admitted ones shows that none of them fits.
        if not is_admitted and (job_accounts or partition.accounts):
            admitted = ", ".join(partition.accounts)
            if not admitted:
                admitted = f"all but {', '.join(partition.denied_accounts)}"
            yours = f"not {', '.join(job_accounts)}" if job_accounts else "and this job has none"
            message = f"partition {name} admits the accounts {admitted}, {yours}"
            cure = "set another account or partition"
            yield Finding.error("account_not_admitted", message, "cluster.account", cure)
    if cluster.qos and partition.qos and cluster.qos not in partition.qos:
        message = f"partition {name} admits the QOS {', '.join(partition.qos)}, not {cluster.qos}"
        cure = "set another QOS or partition"
        yield Finding.error("qos_not_admitted", message, "cluster.qos", cure)


def unknown_partition(name: str, partitions: Sequence[Partition], where: str) -> Finding:
    """Return the problem of a partition that this cluster does not have."""
    names = sorted(partition.name for partition in partitions)
    alternatives = f"it has {', '.join(names) or 'none'}"
    nearest = did_you_mean(name, names)
    cure = f"{nearest} {alternatives}" if nearest else alternatives
    message = f"this cluster has no partition '{name}'"
    return Finding.error("unknown_partition", message, where, cure)
