"""`launch cluster NAME`: draft the configuration of the Slurm cluster that this machine belongs to."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from typing import Any

import psutil

from launch.commands.tool_parsers import build_cluster_parser
from launch.commands.user_files import locate_option, write_option
from launch.errors import EXIT_DONE, Problem, UserError
from launch.slurm.draft import ClusterFacts, choose_partition, draft_config
from launch.slurm.limits import unknown_partition
from launch.slurm.partitions import list_accounts, list_partitions
from launch.slurm.slurm_cli import query_slurm, try_command
from launch.terminal import echo

_NETWORK_FILE_SYSTEM = re.compile(
    r"nfs4?|lustre|gpfs|beegfs|ceph|wekafs|panfs|pvfs2|glusterfs|cifs|fuse\.(ceph|juicefs|glusterfs)\b.*"
)
_FAST_INTERFACE = re.compile(r"(ib|hsn|roce)\w*\d")  # InfiniBand, Slingshot, RoCE


def cluster(argv: list[str]) -> int:
    """Draft `cluster/NAME.yaml` from Slurm's output and write it to the user's configuration folder, or print it.

    Raises UserError: those of VerbParser.parse; no_slurm, slurm_unresponsive, unknown_partition, cluster_exists,
    not_writable.
    """
    parser = build_cluster_parser()
    options = parser.parse(argv)
    path = locate_option("cluster", options.name, parser.usage)
    if path.exists() and not options.print:
        cure = "choose another name, or use --print"
        raise UserError(Problem("cluster_exists", f"{path} already exists", None, cure))
    sinfo = query_slurm(["sinfo", "--noheader"])  # raises if Slurm is missing or does not answer
    available = list_partitions() or []
    if not available:
        message = f"sinfo reports no partitions{f': {sinfo.message}' if sinfo.status else ''}"
        raise UserError(Problem("slurm_unresponsive", message, None, "contact the cluster's admins"))
    facts = _collect_facts()
    named = [partition for partition in available if partition.name == options.partition]
    if options.partition and not named:
        raise UserError(unknown_partition(options.partition, available, "--partition"))
    partition = named[0] if named else choose_partition(available, facts.accounts)
    text = draft_config(partition, available, facts)
    if options.print:
        echo(text, end="")
        return EXIT_DONE
    write_option(path, text)
    echo(f"wrote {path}; review it, then try: python -m launch submit stage=demo cluster={path.stem} dry_run=true")
    return EXIT_DONE


def _collect_facts() -> ClusterFacts:
    settings = {}
    for line in (try_command(["scontrol", "show", "config"]) or "").splitlines():
        name, equals, value = line.partition("=")
        if equals:
            settings[name.strip()] = value.strip()
    containers = ["pyxis"] if "--container-image" in (try_command(["srun", "--help"]) or "") else []
    containers += ["apptainer"] if shutil.which("apptainer") else []
    mounts: list[Any] = []
    with contextlib.suppress(OSError):
        mounts = psutil.disk_partitions(all=True)
    return ClusterFacts(
        settings=settings,
        accounts=list(dict.fromkeys(account for account, _ in list_accounts())),
        shared=sorted({mount.mountpoint for mount in mounts if _NETWORK_FILE_SYSTEM.fullmatch(mount.fstype)}),
        containers=containers,
        interfaces=sorted(filter(_FAST_INTERFACE.match, (path.name for path in Path("/sys/class/net").glob("*")))),
    )
