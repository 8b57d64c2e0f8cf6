"""What a job asks for that its cluster has not, said before sbatch is called.

sbatch takes a job for a partition that is down, with a time limit that no partition allows, or for an account that does
not exist on some clusters, and lets it wait for ever; others it refuses with a sentence that names nothing that exists.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence

from launch.config.schema import Device
from launch.errors import Problem, did_you_mean
from launch.planning.plan import Plan
from launch.slurm.durations import seconds_of
from launch.slurm.partitions import Partition, associations, partitions


def mismatches(plans: Sequence[Plan]) -> list[Problem]:
    """What the plans' jobs ask for that this cluster has not, one problem each; none where Slurm can't be asked."""
    there = partitions()
    if there is None:
        return []
    accounts = functools.cache(associations)  # asked once, and only when a plan names one
    found = [problem for plan in plans for problem in (*ask_partitions(plan, there), *_ask_accounts(plan, accounts))]
    allowed = {id for plan in plans for id in plan.config.allow}
    return [problem for problem in dict.fromkeys(found) if problem.id not in allowed]


def ask_partitions(plan: Plan, there: Sequence[Partition]) -> Iterator[Problem]:
    """What is wrong with the partition of a plan's job: that it exists, is up, allows the time, has the nodes."""
    cluster = plan.config.cluster
    if "SBATCH_PARTITION" in os.environ or any(one.startswith(("--partition", "-p")) for one in cluster.options):
        return  # sbatch takes that one, whatever is said here
    if cluster.partition is None:
        chosen = [one for one in there if one.default]
        if not chosen:
            cure = f"say cluster.partition=NAME; there are {_names(there)}"
            yield Problem("unknown_partition", "this cluster has no default partition", "cluster.partition", cure)
    else:
        by_name = {one.name: one for one in there}
        asked = cluster.partition.split(",")
        for name in asked:
            if name not in by_name:
                yield unknown_partition(name, there, "cluster.partition")
        chosen = [by_name[name] for name in asked if name in by_name]
    if chosen:  # of several partitions one is enough
        problems = [list(_ask_partition(plan, one)) for one in chosen]
        if all(problems):
            yield from problems[0]


def _ask_partition(plan: Plan, partition: Partition) -> Iterator[Problem]:
    cluster, name = plan.config.cluster, partition.name
    if partition.state != "up":
        message = f"partition {name} is {partition.state}: its jobs do not start"
        yield Problem("partition_down", message, "cluster.partition", "wait until it is up, or say another one")
    limit = seconds_of(cluster.time) if cluster.time else None
    if limit is not None and limit > partition.limit:
        message = f"{cluster.time} is more than partition {name} allows, {_hours(partition.limit)}"
        yield Problem("time_beyond_partition", message, "cluster.time", "say less, or another partition")
    yield from _ask_nodes(plan, partition)


def _ask_nodes(plan: Plan, partition: Partition) -> Iterator[Problem]:
    """GPUs and CPUs of a node, and how many nodes have them."""
    cluster, width = plan.config.cluster, plan.parallel.width
    gpus = width.local if width.device == Device.cuda else 0
    cpus = (cluster.cpus_per_rank or 0) * width.local
    kind = cluster.gpu_type
    kinds = sorted({name for alike in partition.nodes for name, _ in alike.gpus if name})
    if gpus and kind and kind not in kinds:
        near = did_you_mean(kind, kinds)
        has = f"it has {', '.join(kinds)}" if kinds else "leave cluster.gpu_type out: its GPUs have no type"
        message = f"partition {partition.name} has no GPUs of type '{kind}'"
        yield Problem("unknown_gpu_type", message, "cluster.gpu_type", f"{near + ' ' if near else ''}{has}")
        return
    with_gpus = [alike for alike in partition.nodes if alike.gpus_of(kind if gpus else None) >= gpus]
    if not with_gpus:
        most = max((alike.gpus_of(kind) for alike in partition.nodes), default=0)
        message = f"no node of partition {partition.name} has {gpus} GPUs, at most {most}"
        yield Problem("too_many_gpus", message, "gpus", f"say gpus={most}" if most else "say another partition")
        return
    fit = [alike for alike in with_gpus if alike.cpus >= cpus]
    if not fit:
        most, ranks = max(alike.cpus for alike in with_gpus), f"{width.local} rank{'s' * (width.local > 1)}"
        message = f"no node of partition {partition.name} has {cpus} CPUs for {ranks}, at most {most}"
        cure = f"say cluster.cpus_per_rank={max(1, most // width.local)}"
        yield Problem("too_many_cpus", message, "cluster.cpus_per_rank", cure)
        return
    count = sum(alike.count for alike in fit)
    if count < width.nodes:
        like = f" with {gpus} GPUs" if gpus else ""
        message = f"partition {partition.name} has {count} nodes{like}, and {width.nodes} are asked for"
        yield Problem("too_many_nodes", message, "nodes", f"say nodes={count} or less, or another partition")


def _ask_accounts(plan: Plan, accounts: Callable[[], list[tuple[str, list[str]]]]) -> Iterator[Problem]:
    """The account and the QOS, where the cluster keeps accounts and says what this user has."""
    cluster = plan.config.cluster
    if cluster.account is None and cluster.qos is None:
        return
    rows = accounts()
    if not rows:
        return
    mine = sorted({account for account, _ in rows})
    if cluster.account is not None and cluster.account not in mine:
        near = did_you_mean(cluster.account, mine)
        cure = f"{near + ' ' if near else ''}you have {', '.join(mine)}"
        message = f"you have no account '{cluster.account}' on this cluster"
        yield Problem("unknown_account", message, "cluster.account", cure)
        return
    several = sorted({qos for account, of_it in rows if cluster.account in (None, account) for qos in of_it})
    if cluster.qos is not None and several and cluster.qos not in several:
        near = did_you_mean(cluster.qos, several)
        cure = f"{near + ' ' if near else ''}there are {', '.join(several)}"
        yield Problem("unknown_qos", f"your account has no QOS '{cluster.qos}'", "cluster.qos", cure)


def unknown_partition(name: str, there: Sequence[Partition], where: str) -> Problem:
    near = did_you_mean(name, [one.name for one in there])
    cure = f"{near + ' ' if near else ''}there are {_names(there)}"
    return Problem("unknown_partition", f"this cluster has no partition '{name}'", where, cure)


def _names(there: Sequence[Partition]) -> str:
    return ", ".join(sorted(one.name for one in there)) or "none"


def _hours(seconds: float) -> str:
    """As Slurm writes it."""
    days, rest = divmod(round(seconds), 86400)
    return f"{days}-{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
