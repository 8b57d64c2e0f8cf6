"""Drafts a `cluster/NAME.yaml` from what Slurm reports: the keys that differ from the defaults,
each with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from launch.slurm.partitions import NodeGroup, Partition
from launch.slurm.slurm_cli import format_duration

_WEEK = 7 * 86400


@dataclass(frozen=True)
class ClusterFacts:
    """What a login node reveals about a cluster."""

    settings: dict[str, str]  # of `scontrol show config`
    accounts: Sequence[str] = ()  # of the user
    shared: Sequence[str] = ()  # mount points of network file systems
    containers: Sequence[str] = ()  # pyxis, apptainer
    interfaces: Sequence[str] = ()  # fast network interfaces


def choose_partition(partitions: Sequence[Partition], accounts: Sequence[str] = ()) -> Partition:
    """Choose the most likely partition for training: open to the user's accounts, with GPUs, up,
    the default one, with the most nodes.
    """

    def rank(partition: Partition) -> tuple[bool, bool, bool, bool, int]:
        nodes = sum(group.count for group in partition.nodes)
        is_open = (
            any(map(partition.admits_account, accounts)) if accounts else not partition.accounts
        )
        has_gpus, is_up = bool(_largest_group(partition).gpus), partition.state == "up"
        return (is_open, has_gpus, is_up, partition.is_default, nodes)

    return max(partitions, key=rank)


def draft_config(partition: Partition, partitions: Sequence[Partition], facts: ClusterFacts) -> str:
    """Draft the YAML; every guessed line names the fact that it is based on."""
    group = _largest_group(partition)
    others = sorted(other.name for other in partitions if other.name != partition.name)
    gpus = (
        ", ".join(
            f"{number} GPUs{f' of type {kind}' if kind else ''}" for kind, number in group.gpus
        )
        or "no GPUs"
    )
    size = (
        f"{sum(each.count for each in partition.nodes)} nodes, {group.cpus} CPUs and {gpus} a node"
    )
    also = f" # there are also {', '.join(others)}" if others else ""
    shared, mounted = ", ".join(facts.shared), "mounted here from a network"
    lines = [
        (
            "# Drafted from what Slurm reports; the documentation's page on clusters explains "
            "every "
            "key."
        ),
        f"# {partition.name}: {size}",
        f"partition: {partition.name}{also}",
        *_account_lines(
            [account for account in facts.accounts if partition.admits_account(account)], partition
        ),
        *_time_lines(partition),
        *_size_lines(group, facts.settings),
        *_gpu_lines(group, facts.settings),
        *_comment_line("interface", facts.interfaces, "of this machine"),
        *_comment_line("container", facts.containers, "and set image: too"),
        f"shared: [{shared}] # {mounted}; on the nodes too?"
        if shared
        else f"# shared: [] # nothing is {mounted}",
    ]
    return "\n".join(lines) + "\n"


def _largest_group(partition: Partition) -> NodeGroup:
    """The partition's nodes with the most GPUs, and of those the largest group."""
    return max(
        partition.nodes,
        key=lambda group: (group.count_gpus(), group.count),
        default=NodeGroup(0, 0, ()),
    )


def _account_lines(accounts: Sequence[str], partition: Partition) -> list[str]:
    if not accounts and partition.accounts:
        return [
            (
                f"# account: null # this partition admits {', '.join(partition.accounts)} only, "
                "none "
                "of them yours"
            )
        ]
    if not accounts:
        return ["# account: null # sacctmgr lists none"]
    others = ", ".join(accounts[1:])
    return [f"account: {accounts[0]}{f' # you also have {others}' if others else ''}"]


def _comment_line(key: str, values: Sequence[str], note: str) -> list[str]:
    return [f"# {key}: {values[0]} # {', '.join(values)}, {note}"] if values else []


def _time_lines(partition: Partition) -> list[str]:
    if math.isinf(partition.limit):
        default = partition.default_limit
        if default is not None and not math.isinf(default):
            return [
                (
                    'time: "24:00:00" # no limit here, but without this line a job gets '
                    f"{format_duration(default)}"
                )
            ]
        return [
            (
                '# time: "24:00:00" # this partition has no limit; a job with a time limit is '
                "scheduled sooner"
            )
        ]
    hours = partition.limit / 3600
    at_most = f"at most {hours:g} hours here"
    if partition.limit > _WEEK:
        return [f'time: "7-00:00:00" # {at_most}']
    return [f'time: "{format_duration(partition.limit)}" # {at_most}']


def _size_lines(group: NodeGroup, settings: dict[str, str]) -> list[str]:
    gpus = group.count_gpus()
    lines = (
        [f"cpus_per_rank: {max(1, group.cpus // gpus)} # {group.cpus} CPUs over {gpus} GPUs"]
        if gpus
        else []
    )
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
    kinds = [kind for kind, _ in group.gpus if kind]
    if len(kinds) > 1:
        lines.append(f"gpu_type: {kinds[0]} # these nodes have {', '.join(kinds)}")
    return lines
