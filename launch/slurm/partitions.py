"""The partitions of a cluster, as sinfo and scontrol report them, and the accounts of this user."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from launch.execution.record.lock import this_process
from launch.slurm.durations import parse_duration
from launch.slurm.slurm_cli import try_command

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
    nodes: tuple[NodeGroup, ...]
    default_limit: float | None = None  # seconds of a job that sets no time limit; None: `limit`
    max_nodes: int | None = None  # of one job
    accounts: tuple[str, ...] = ()  # that may use it; empty: all but the denied ones
    denied_accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()  # that may use it; empty: all

    def admits_account(self, account: str) -> bool:
        """Whether jobs of an account may run here."""
        return account in self.accounts if self.accounts else account not in self.denied_accounts


def list_partitions() -> list[Partition] | None:
    """List the partitions that this user can see; None if sinfo is not installed or does not respond."""
    output = try_command(["sinfo", "--all", "--noheader", "--exact", "--format=%P|%a|%l|%D|%c|%G"])
    if output is None:
        return None
    return add_limits(parse_partitions(output), try_command(["scontrol", "--oneliner", "show", "partition"]) or "")


def add_limits(partitions: Sequence[Partition], output: str) -> list[Partition]:
    """Add what only `scontrol --oneliner show partition` prints: who may use a partition, and a job's limits."""
    lines = [dict(_SETTING.findall(line)) for line in output.splitlines()]
    settings = {line["PartitionName"]: line for line in lines if "PartitionName" in line}
    return [_with_limits(partition, settings.get(partition.name, {})) for partition in partitions]


def _with_limits(partition: Partition, settings: dict[str, str]) -> Partition:
    def names(key: str) -> tuple[str, ...]:
        value = settings.get(key, "ALL")
        return () if value in ("ALL", "(null)") else tuple(value.split(","))

    most = settings.get("MaxNodes", "")
    return replace(
        partition,
        default_limit=parse_duration(settings.get("DefaultTime", "NONE")),
        max_nodes=int(most) if most.isdigit() else None,
        accounts=names("AllowAccounts"),
        denied_accounts=names("DenyAccounts"),
        qos=names("AllowQos"),
    )


def parse_partitions(output: str) -> list[Partition]:
    """Parse sinfo's lines: name with a star for the default, state, limit, nodes, CPUs and gres."""
    by_name: dict[str, Partition] = {}
    for line in output.splitlines():
        parts = line.split("|")
        if len(parts) != 6:
            continue
        starred, state, limit, count, cpus, gres = (part.strip() for part in parts)
        name = starred.removesuffix("*")
        gpus = tuple((kind, int(number)) for kind, number in _GPU.findall(gres))
        group = NodeGroup(_number(count), _number(cpus), gpus)
        seconds = parse_duration(limit)
        groups = by_name[name].nodes if name in by_name else ()
        by_name[name] = Partition(
            name, starred.endswith("*"), state, math.inf if seconds is None else seconds, (*groups, group)
        )
    return list(by_name.values())


def list_accounts() -> list[tuple[str, list[str]]]:
    """List this user's accounts with the QOS of each; empty if accounting is off or the query is not allowed."""
    user = this_process().user
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "assoc", "where", f"user={user}"]
    output = try_command([*argv, "format=Account,QOS"])
    rows = [line.partition("|") for line in (output or "").splitlines() if "|" in line]
    return [(account, [qos for qos in names.split(",") if qos]) for account, _, names in rows]


def _number(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0
