"""The partitions of a cluster and the accounts of this user, and whether they allow what a job
requests.

sbatch accepts a job for a partition that is down, with a time limit that no partition allows, or,
on some clusters, for an account that does not exist, and lets it wait for ever. Others it refuses
with a message that lists no alternatives.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.config.schema import Device
from launch.errors import did_you_mean
from launch.execution.record.lock import this_process
from launch.slurm.planned_jobs import PlannedJob
from launch.slurm.script import BatchScript
from launch.slurm.slurm_cli import format_duration, parse_duration, try_command
from launch.worker.finding import Finding, Fix

_SETTING = re.compile(r"(\w+)=(\S*)")
_GPU = re.compile(r"gpu(?::([^:(),]+))?:(\d+)")


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition with the same CPUs and GPUs."""

    count: int
    cpus: int  # of one node
    gpus: tuple[tuple[str, int], ...]  # of one node: type and number; the type may be ""

    def count_gpus(self, gpu_type: str | None = None) -> int:
        """The GPUs of one node, of all types or of `gpu_type`."""
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
    max_nodes: int | None = None  # of one job
    accounts: tuple[str, ...] = ()  # that may use it; empty: all but the denied ones
    denied_accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()  # that may use it; empty: all

    def admits_account(self, account: str) -> bool:
        """Whether jobs of an account may run here."""
        return account in self.accounts if self.accounts else account not in self.denied_accounts


def list_partitions() -> list[Partition] | None:
    """List the partitions that this user can see; None if sinfo is not installed or does not
    respond.
    """
    output = try_command(["sinfo", "--all", "--noheader", "--exact", "--format=%P|%a|%l|%D|%c|%G"])
    if output is None:
        return None
    return parse_partitions(
        output, try_command(["scontrol", "--oneliner", "show", "partition"]) or ""
    )


def parse_partitions(output: str, shown: str = "") -> list[Partition]:
    """Parse sinfo's lines: name with a star for the default, state, limit, nodes, CPUs and gres;
    and what only `scontrol --oneliner show partition` prints: who may use a partition, and a job's
    limits.
    """
    lines = [dict(_SETTING.findall(line)) for line in shown.splitlines()]
    settings = {line.get("PartitionName"): line for line in lines}
    by_name: dict[str, Partition] = {}
    for line in output.splitlines():
        parts = line.split("|")
        if len(parts) != 6:
            continue
        starred, state, limit, count, cpus, gres = (part.strip() for part in parts)
        name, seconds = starred.removesuffix("*"), parse_duration(limit)
        group = NodeGroup(
            _number(count),
            _number(cpus),
            tuple((kind, int(number)) for kind, number in _GPU.findall(gres)),
        )
        known = by_name.get(name) or Partition(
            name,
            is_default=starred.endswith("*"),
            state=state,
            limit=math.inf if seconds is None else seconds,
            **_parse_limits(settings.get(name, {})),
        )
        by_name[name] = replace(known, nodes=(*known.nodes, group))
    return list(by_name.values())


def _parse_limits(settings: Mapping[str, str]) -> dict[str, Any]:
    def names(key: str) -> tuple[str, ...]:
        value = settings.get(key, "ALL")
        return () if value in ("ALL", "(null)") else tuple(value.split(","))

    most = settings.get("MaxNodes", "")
    return {
        "default_limit": parse_duration(settings.get("DefaultTime", "NONE")),
        "max_nodes": int(most) if most.isdigit() else None,
        "accounts": names("AllowAccounts"),
        "denied_accounts": names("DenyAccounts"),
        "qos": names("AllowQos"),
    }


def list_accounts() -> list[tuple[str, list[str]]]:
    """List this user's accounts with the QOS of each; empty if accounting is off or the query is
    not allowed.
    """
    user = this_process().user
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "assoc", "where", f"user={user}"]
    output = try_command([*argv, "format=Account,QOS"])
    rows = [line.partition("|") for line in (output or "").splitlines() if "|" in line]
    return [(account, [qos for qos in names.split(",") if qos]) for account, _, names in rows]


def _number(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


Accounts = Callable[[], list[tuple[str, list[str]]]]  # the user's accounts, with the QOS of each


def limit_problems(jobs: Sequence[PlannedJob]) -> list[Finding]:
    """Find what the jobs request and this cluster lacks; nothing if Slurm does not respond."""
    partitions = list_partitions()
    if partitions is None:
        return []
    accounts = functools.cache(list_accounts)  # queried once, and only if a job sets one
    problems = [
        problem
        for job in jobs
        for problem in (
            *partition_problems(job.script, partitions, accounts),
            *_account_problems(job.script, accounts),
        )
    ]
    allowed = {id for job in jobs for id in job.plan.config.allow}
    return [problem for problem in dict.fromkeys(problems) if problem.id not in allowed]


def partition_problems(
    script: BatchScript, partitions: Sequence[Partition], accounts: Accounts = list
) -> Iterator[Finding]:
    """Check that the partition of a job exists, is up, admits the user, allows the time limit and
    has the nodes.
    """
    cluster = script.cluster
    if "SBATCH_PARTITION" in os.environ or any(
        option.startswith(("--partition", "-p")) for option in cluster.options
    ):
        return  # for sbatch these take precedence over cluster.partition
    if cluster.partition is None:
        chosen = [partition for partition in partitions if partition.is_default]
        if not chosen:
            cure = f"set cluster.partition to one of {_names(partitions)}"
            yield Finding.error(
                "unknown_partition",
                "this cluster has no default partition",
                "cluster.partition",
                cure,
            )
    else:
        by_name = {partition.name: partition for partition in partitions}
        names = cluster.partition.split(",")
        for name in names:
            if name not in by_name:
                yield unknown_partition(name, partitions, "cluster.partition")
        chosen = [by_name[name] for name in names if name in by_name]
    if chosen:  # of several partitions one has to fit
        problems = [
            list(_one_partition_problems(script, partition, accounts)) for partition in chosen
        ]
        if all(problems):
            yield from problems[0]


def _one_partition_problems(
    script: BatchScript, partition: Partition, accounts: Accounts
) -> Iterator[Finding]:
    cluster, name = script.cluster, partition.name
    if partition.state != "up":
        message = f"partition {name} is {partition.state}: its jobs do not start"
        yield Finding.error(
            "partition_down",
            message,
            "cluster.partition",
            "wait until it is up, or set another one",
        )
    limit = parse_duration(cluster.time) if cluster.time else None
    if limit is not None and limit > partition.limit:
        message = (
            f"{cluster.time} is more than partition {name} allows, "
            f"{format_duration(partition.limit)}"
        )
        yield Finding.error(
            "time_beyond_partition",
            message,
            "cluster.time",
            "set a shorter time, or another partition",
        )
    yield from _admission_problems(script, partition, accounts)
    yield from _node_problems(script, partition)


def _admission_problems(
    script: BatchScript, partition: Partition, accounts: Accounts
) -> Iterator[Finding]:
    """Check that the job's account and QOS may use a partition; sbatch accepts a job that may not,
    and it waits.
    """
    cluster, name = script.cluster, partition.name
    set_elsewhere = ("--account", "-A", "--qos", "-q")
    if os.environ.keys() & {"SBATCH_ACCOUNT", "SBATCH_QOS"} or any(
        option.startswith(set_elsewhere) for option in cluster.options
    ):
        return
    if partition.accounts or partition.denied_accounts:
        own = [cluster.account] if cluster.account else [account for account, _ in accounts()]
        if not any(partition.admits_account(account) for account in own) and (
            own or partition.accounts
        ):
            yours = f"not {', '.join(own)}" if own else "and this job has none"
            admitted = (
                ", ".join(partition.accounts) or f"all but {', '.join(partition.denied_accounts)}"
            )
            message = f"partition {name} admits the accounts {admitted}, {yours}"
            yield Finding.error(
                "account_not_admitted",
                message,
                "cluster.account",
                "set another account or partition",
            )
    if cluster.qos and partition.qos and cluster.qos not in partition.qos:
        message = f"partition {name} admits the QOS {', '.join(partition.qos)}, not {cluster.qos}"
        yield Finding.error(
            "qos_not_admitted", message, "cluster.qos", "set another QOS or partition"
        )


def _node_problems(script: BatchScript, partition: Partition) -> Iterator[Finding]:
    """Check the GPUs and CPUs of a node, and how many nodes have them."""
    cluster, width, name = script.cluster, script.width, partition.name
    gpus = width.local if width.device == Device.cuda else 0
    cpus = (cluster.cpus_per_rank or 0) * width.local
    gpu_type = cluster.gpu_type
    gpu_types = sorted({known for group in partition.nodes for known, _ in group.gpus if known})
    if gpus and gpu_type and gpu_type not in gpu_types:
        message = f"partition {name} has no GPUs of type '{gpu_type}'"
        has = (
            f"it has {', '.join(gpu_types)}"
            if gpu_types
            else "remove cluster.gpu_type: its GPUs have no type"
        )
        yield Finding.error(
            "unknown_gpu_type", message, "cluster.gpu_type", _suggest(gpu_type, gpu_types, has)
        )
        return
    with_gpus = [
        group for group in partition.nodes if group.count_gpus(gpu_type if gpus else None) >= gpus
    ]
    if not with_gpus:
        most = max((group.count_gpus(gpu_type) for group in partition.nodes), default=0)
        message = f"no node of partition {name} has {gpus} GPUs, at most {most}"
        yield Finding.error(
            "too_many_gpus",
            message,
            "gpus",
            Fix.of("set {0}", f"gpus={most}") if most else "set another partition",
        )
        return
    fitting = [group for group in with_gpus if group.cpus >= cpus]
    if not fitting:
        most, ranks = (
            max(group.cpus for group in with_gpus),
            f"{width.local} rank{'s' * (width.local > 1)}",
        )
        message = f"no node of partition {name} has {cpus} CPUs for {ranks}, at most {most}"
        cure = Fix.of("set {0}", f"cluster.cpus_per_rank={max(1, most // width.local)}")
        yield Finding.error("too_many_cpus", message, "cluster.cpus_per_rank", cure)
        return
    if partition.max_nodes is not None and partition.max_nodes < width.nodes:
        message = (
            f"partition {name} allows {partition.max_nodes} nodes a job, and this one needs "
            f"{width.nodes}"
        )
        yield Finding.error(
            "too_many_nodes",
            message,
            "nodes",
            Fix.of("set {0} or less", f"nodes={partition.max_nodes}"),
        )
        return
    count = sum(group.count for group in fitting)
    if count < width.nodes:
        with_gpus_text = f" with {gpus} GPUs" if gpus else ""
        message = (
            f"partition {name} has {count} nodes{with_gpus_text}, but the job needs {width.nodes}"
        )
        yield Finding.error(
            "too_many_nodes",
            message,
            "nodes",
            Fix.of("set {0} or less, or another partition", f"nodes={count}"),
        )


def _account_problems(script: BatchScript, accounts: Accounts) -> Iterator[Finding]:
    """Check the account and the QOS, where the cluster keeps accounts and lists this user's."""
    cluster = script.cluster
    if cluster.account is None and cluster.qos is None:
        return
    rows = accounts()
    if not rows:
        return
    names = sorted({account for account, _ in rows})
    if cluster.account is not None and cluster.account not in names:
        message = f"you have no account '{cluster.account}' on this cluster"
        cure = _suggest(cluster.account, names, f"you have {', '.join(names)}")
        yield Finding.error("unknown_account", message, "cluster.account", cure)
        return
    qos_names = sorted(
        {
            qos
            for account, of_account in rows
            if cluster.account in (None, account)
            for qos in of_account
        }
    )
    if cluster.qos is not None and qos_names and cluster.qos not in qos_names:
        cure = _suggest(cluster.qos, qos_names, f"it has {', '.join(qos_names)}")
        yield Finding.error(
            "unknown_qos", f"your account has no QOS '{cluster.qos}'", "cluster.qos", cure
        )


def unknown_partition(name: str, partitions: Sequence[Partition], where: str) -> Finding:
    cure = _suggest(
        name, [partition.name for partition in partitions], f"it has {_names(partitions)}"
    )
    return Finding.error(
        "unknown_partition", f"this cluster has no partition '{name}'", where, cure
    )


def _suggest(name: str, names: Sequence[str], alternatives: str) -> str:
    """The nearest of `names`, if one is near, and the alternatives."""
    nearest = did_you_mean(name, names)
    return f"{nearest} {alternatives}" if nearest else alternatives


def _names(partitions: Sequence[Partition]) -> str:
    return ", ".join(sorted(partition.name for partition in partitions)) or "none"
