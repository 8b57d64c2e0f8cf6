"""Drafts a `cluster/NAME.yaml` from what Slurm reports: the changed keys, each with a reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from launch.slurm.partitions import NodeGroup, Partition
from launch.slurm.slurm_cli import format_time_limit

_WEEK = 7 * 86400


@dataclass(frozen=True)
class ClusterFacts:
    """What a login node reveals about a cluster."""

    settings: dict[str, str]  # settings of the cluster, from `scontrol show config`
    accounts: Sequence[str] = ()  # accounts of the user
    shared: Sequence[str] = ()  # mount points of network file systems
    containers: Sequence[str] = ()  # pyxis, apptainer
    interfaces: Sequence[str] = ()  # fast network interfaces


def choose_partition(partitions: Sequence[Partition], accounts: Sequence[str] = ()) -> Partition:
    """Choose the most likely partition for training.

    In the order of their weight: it is open to the user's accounts, has GPUs, is up, is the default
    and has the most nodes.
    """

    def rank(partition: Partition) -> tuple[bool, bool, bool, bool, int]:
        is_open = not partition.accounts
        if accounts:
            is_open = any(partition.admits_account(account) for account in accounts)
        has_gpus = bool(_largest_group(partition).gpus)
        is_up = partition.state == "up"
        return (is_open, has_gpus, is_up, partition.is_default, _count_nodes(partition))

    return max(partitions, key=rank)


def draft_config(partition: Partition, partitions: Sequence[Partition], facts: ClusterFacts) -> str:
    """Draft the YAML; every guessed line names the fact that it is based on."""
    group = _largest_group(partition)
    size = f"{_count_nodes(partition)} nodes, {group.cpus} CPUs and {_describe_gpus(group)} a node"
    others = sorted(other.name for other in partitions if other.name != partition.name)
    comment = f" # there are also {', '.join(others)}" if others else ""
    accounts = [account for account in facts.accounts if partition.admits_account(account)]
    source = "# Drafted from what Slurm reports"
    lines = [
        f"{source}; the documentation's page on clusters explains every key.",
        f"# {partition.name}: {size}",
        f"partition: {partition.name}{comment}",
        *_account_lines(accounts, partition),
        *_time_lines(partition),
        *_size_lines(group, facts.settings),
        *_gpu_lines(group, facts.settings),
        *_comment_line("interface", facts.interfaces, "of this machine"),
        *_comment_line("container", facts.containers, "and set image: too"),
        _shared_line(facts.shared),
    ]
    return "\n".join(lines) + "\n"


def _count_nodes(partition: Partition) -> int:
    return sum(group.count for group in partition.nodes)


def _describe_gpus(group: NodeGroup) -> str:
    """Describe the GPUs of one node."""
    texts = []
    for gpu_type, number in group.gpus:
        of_type = f" of type {gpu_type}" if gpu_type else ""
        texts.append(f"{number} GPUs{of_type}")
    return ", ".join(texts) or "no GPUs"


def _shared_line(folders: Sequence[str]) -> str:
    if not folders:
        return "# shared: [] # nothing is mounted here from a network"
    return f"shared: [{', '.join(folders)}] # mounted here from a network; on the nodes too?"


def _largest_group(partition: Partition) -> NodeGroup:
    """Return the partition's nodes with the most GPUs, and of those the largest group."""
    return max(
        partition.nodes,
        key=lambda group: (group.count_gpus(), group.count),
        default=NodeGroup(0, 0, ()),
    )


def _account_lines(accounts: Sequence[str], partition: Partition) -> list[str]:
    if not accounts and partition.accounts:
        admitted = ", ".join(partition.accounts)
        return [f"# account: null # this partition admits {admitted} only, none of them yours"]
    if not accounts:
        return ["# account: null # sacctmgr lists none"]
    others = ", ".join(accounts[1:])
    comment = f" # you also have {others}" if others else ""
    return [f"account: {accounts[0]}{comment}"]


def _comment_line(key: str, values: Sequence[str], note: str) -> list[str]:
    """Return a commented-out key with the first of its possible values; no line without any."""
    if not values:
        return []
    return [f"# {key}: {values[0]} # {', '.join(values)}, {note}"]


def _time_lines(partition: Partition) -> list[str]:
    if math.isinf(partition.limit):
        default = partition.default_limit
        if default is not None and not math.isinf(default):
            reason = f"no limit here, but without this line a job gets {format_time_limit(default)}"
            return [f'time: "24:00:00" # {reason}']
        reason = "this partition has no limit; a job with a time limit is scheduled sooner"
        return [f'# time: "24:00:00" # {reason}']
    at_most = f"at most {format_time_limit(partition.limit)} here"
    if partition.limit > _WEEK:
        return [f'time: "7-00:00:00" # {at_most}']
    return [f'time: "{format_time_limit(partition.limit)}" # {at_most}']


def _size_lines(group: NodeGroup, settings: dict[str, str]) -> list[str]:
    gpus = group.count_gpus()
    lines = []
    if gpus:
        cpus_per_rank = max(1, group.cpus // gpus)
        lines.append(f"cpus_per_rank: {cpus_per_rank} # {group.cpus} CPUs over {gpus} GPUs")
    for name in ("DefMemPerNode", "DefMemPerCPU"):
        value = settings.get(name, "UNLIMITED")
        if value.isdigit() and int(value):
            lines.append(f'# memory: "0" # all of a node; otherwise {name}={value} MiB applies')
    return lines


def _gpu_lines(group: NodeGroup, settings: dict[str, str]) -> list[str]:
    if not group.gpus:
        return []
    select_type = settings.get("SelectType", "select/cons_tres")
    spelling = "gpus_per_node" if select_type == "select/cons_tres" else "gres"
    lines = [f"gpus: {spelling} # {select_type}"]
    gpu_types = [gpu_type for gpu_type, _ in group.gpus if gpu_type]
    if len(gpu_types) > 1:
        lines.append(f"gpu_type: {gpu_types[0]} # these nodes have {', '.join(gpu_types)}")
    return lines
