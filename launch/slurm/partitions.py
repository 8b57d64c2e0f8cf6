"""Whether the cluster's partitions and this user's accounts allow what a job requests.

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

from launch.config.cluster import ClusterConfig
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
    max_nodes: int | None = None  # most nodes of one job
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
    and a job's limits.
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

    max_nodes = settings.get("MaxNodes", "")
    return {
        "default_limit": parse_duration(settings.get("DefaultTime", "NONE")),
        "max_nodes": int(max_nodes) if max_nodes.isdigit() else None,
        "accounts": names("AllowAccounts"),
        "denied_accounts": names("DenyAccounts"),
        "qos": names("AllowQos"),
    }


def list_accounts() -> list[tuple[str, list[str]]]:
    """List this user's accounts with the QOS of each.

    The list is empty if accounting is off, or if the query is not allowed.
    """
    user = this_process().user
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "assoc", "where", f"user={user}"]
    output = try_command([*argv, "format=Account,QOS"]) or ""
    accounts = []
    for line in output.splitlines():
        account, separator, names = line.partition("|")
        if separator:
            accounts.append((account, [qos for qos in names.split(",") if qos]))
    return accounts


def _leading_number(text: str) -> int:
    """Return the number that a text begins with, such as `64+`; 0 if there is none."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


# Returns the user's accounts, with the QOS of each.
Accounts = Callable[[], list[tuple[str, list[str]]]]


def limit_problems(jobs: Sequence[PlannedJob]) -> list[Finding]:
    """Find what the jobs request and this cluster lacks; nothing if Slurm does not respond."""
    partitions = list_partitions()
    if partitions is None:
        return []
    accounts = functools.cache(list_accounts)  # queried once, and only if a job sets one
    problems: list[Finding] = []
    allowed: set[str] = set()
    for job in jobs:
        problems.extend(partition_problems(job.script, partitions, accounts))
        problems.extend(_account_problems(job.script, accounts))
        allowed.update(job.plan.config.allow)
    return [problem for problem in dict.fromkeys(problems) if problem.id not in allowed]


def partition_problems(
    script: BatchScript, partitions: Sequence[Partition], accounts: Accounts = list
) -> Iterator[Finding]:
    """Check that a job's partition exists, is up, admits the user and allows what it requests."""
    cluster = script.cluster
    # For sbatch the variable and the option take precedence over cluster.partition.
    if "SBATCH_PARTITION" in os.environ or _has_option(cluster, "--partition", "-p"):
        return
    chosen: list[Partition] = []
    if cluster.partition is None:
        chosen = [partition for partition in partitions if partition.is_default]
        if not chosen:
            message = "this cluster has no default partition"
            cure = f"set cluster.partition to one of {_names(partitions)}"
            yield Finding.error("unknown_partition", message, "cluster.partition", cure)
    else:
        by_name = {partition.name: partition for partition in partitions}
        for name in cluster.partition.split(","):
            if name in by_name:
                chosen.append(by_name[name])
            else:
                yield unknown_partition(name, partitions, "cluster.partition")
    # Slurm starts the job in any of the partitions: it is enough that one of them fits.
    problems = [_one_partition_problems(script, partition, accounts) for partition in chosen]
    if problems and all(problems):
        yield from problems[0]


def _has_option(cluster: ClusterConfig, *prefixes: str) -> bool:
    """Return whether cluster.options has an option of sbatch that begins with one of `prefixes`."""
    return any(option.startswith(prefixes) for option in cluster.options)


def _one_partition_problems(
    script: BatchScript, partition: Partition, accounts: Accounts
) -> list[Finding]:
    return [
        *_state_problems(script.cluster, partition),
        *_admission_problems(script, partition, accounts),
        *_node_problems(script, partition),
    ]


def _state_problems(cluster: ClusterConfig, partition: Partition) -> Iterator[Finding]:
    """Check that a partition starts jobs, and allows the job's time limit."""
    name = partition.name
    if partition.state != "up":
        message = f"partition {name} is {partition.state}: its jobs do not start"
        cure = "wait until it is up, or set another one"
        yield Finding.error("partition_down", message, "cluster.partition", cure)
    limit = parse_duration(cluster.time) if cluster.time else None
    if limit is not None and limit > partition.limit:
        allowed = format_duration(partition.limit)
        message = f"{cluster.time} is more than partition {name} allows, {allowed}"
        cure = "set a shorter time, or another partition"
        yield Finding.error("time_beyond_partition", message, "cluster.time", cure)


def _admission_problems(
    script: BatchScript, partition: Partition, accounts: Accounts
) -> Iterator[Finding]:
    """Check that the job's account and QOS may use a partition.

    sbatch accepts a job whose account may not, and the job waits for ever.
    """
    cluster = script.cluster
    name = partition.name
    # sbatch takes the account and the QOS from here first.
    if os.environ.keys() & {"SBATCH_ACCOUNT", "SBATCH_QOS"}:
        return
    if _has_option(cluster, "--account", "-A", "--qos", "-q"):
        return
    if partition.accounts or partition.denied_accounts:
        job_accounts = _job_accounts(cluster, accounts)
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


def _job_accounts(cluster: ClusterConfig, accounts: Accounts) -> list[str]:
    """Return the account that the job sets, else all accounts of the user."""
    if cluster.account:
        return [cluster.account]
    return [account for account, _ in accounts()]


def _node_problems(script: BatchScript, partition: Partition) -> list[Finding]:
    """Check the GPUs and CPUs of a node, and how many nodes have them; at most one problem."""
    cluster = script.cluster
    width = script.width
    gpus = script.gpus if width.device == Device.cuda else 0
    problem = _gpu_type_problem(partition, cluster.gpu_type) if gpus else None
    if problem is not None:
        return [problem]
    gpu_type = cluster.gpu_type if gpus else None
    with_gpus = [group for group in partition.nodes if group.count_gpus(gpu_type) >= gpus]
    if not with_gpus:
        return [_too_many_gpus(partition, gpus, cluster.gpu_type)]
    cpus = (cluster.cpus_per_rank or 0) * width.local
    fitting = [group for group in with_gpus if group.cpus >= cpus]
    if not fitting:
        available = max(group.cpus for group in with_gpus)
        return [_too_many_cpus(partition, cpus, available, ranks=width.local)]
    problem = _node_count_problem(partition, fitting, gpus, nodes=width.nodes)
    return [] if problem is None else [problem]


def _gpu_type_problem(partition: Partition, gpu_type: str | None) -> Finding | None:
    """Check that a partition has GPUs of the type that the job requests."""
    known = {name for group in partition.nodes for name, _ in group.gpus if name}
    if not gpu_type or gpu_type in known:
        return None
    gpu_types = sorted(known)
    message = f"partition {partition.name} has no GPUs of type '{gpu_type}'"
    alternatives = "remove cluster.gpu_type: its GPUs have no type"
    if gpu_types:
        alternatives = f"it has {', '.join(gpu_types)}"
    cure = _suggest(gpu_type, gpu_types, alternatives)
    return Finding.error("unknown_gpu_type", message, "cluster.gpu_type", cure)


def _too_many_gpus(partition: Partition, gpus: int, gpu_type: str | None) -> Finding:
    available = max((group.count_gpus(gpu_type) for group in partition.nodes), default=0)
    message = f"no node of partition {partition.name} has {gpus} GPUs, at most {available}"
    cure: Fix | str = "set another partition"
    if available:
        cure = Fix.of("set {0}", f"gpus={available}")
    return Finding.error("too_many_gpus", message, "gpus", cure)


def _too_many_cpus(partition: Partition, cpus: int, available: int, ranks: int) -> Finding:
    plural = "s" if ranks > 1 else ""
    message = (
        f"no node of partition {partition.name} has {cpus} CPUs for {ranks} rank{plural}, "
        f"at most {available}"
    )
    cure = Fix.of("set {0}", f"cluster.cpus_per_rank={max(1, available // ranks)}")
    return Finding.error("too_many_cpus", message, "cluster.cpus_per_rank", cure)


def _node_count_problem(
    partition: Partition, fitting: Sequence[NodeGroup], gpus: int, nodes: int
) -> Finding | None:
    """Check that a partition allows a job of so many nodes, and has them."""
    if partition.max_nodes is not None and partition.max_nodes < nodes:
        message = (
            f"partition {partition.name} allows {partition.max_nodes} nodes a job, "
            f"and this one needs {nodes}"
        )
        cure = Fix.of("set {0} or less", f"nodes={partition.max_nodes}")
        return Finding.error("too_many_nodes", message, "nodes", cure)
    count = sum(group.count for group in fitting)
    if count >= nodes:
        return None
    with_gpus = f" with {gpus} GPUs" if gpus else ""
    message = f"partition {partition.name} has {count} nodes{with_gpus}, but the job needs {nodes}"
    cure = Fix.of("set {0} or less, or another partition", f"nodes={count}")
    return Finding.error("too_many_nodes", message, "nodes", cure)


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
    known_qos: set[str] = set()
    for account, account_qos in rows:
        if cluster.account in (None, account):
            known_qos.update(account_qos)
    if cluster.qos is not None and known_qos and cluster.qos not in known_qos:
        qos_names = sorted(known_qos)
        message = f"your account has no QOS '{cluster.qos}'"
        cure = _suggest(cluster.qos, qos_names, f"it has {', '.join(qos_names)}")
        yield Finding.error("unknown_qos", message, "cluster.qos", cure)


def unknown_partition(name: str, partitions: Sequence[Partition], where: str) -> Finding:
    """Return the problem of a partition that this cluster does not have."""
    names = [partition.name for partition in partitions]
    cure = _suggest(name, names, f"it has {_names(partitions)}")
    message = f"this cluster has no partition '{name}'"
    return Finding.error("unknown_partition", message, where, cure)


def _suggest(name: str, names: Sequence[str], alternatives: str) -> str:
    """Return the name of `names` that is close to `name`, if there is one, and the alternatives."""
    nearest = did_you_mean(name, names)
    return f"{nearest} {alternatives}" if nearest else alternatives


def _names(partitions: Sequence[Partition]) -> str:
    return ", ".join(sorted(partition.name for partition in partitions)) or "none"
