"""Limits of this machine: open files, locked memory, shared memory, the port, the clock."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from launch.check.machine.disk import nearest_existing
from launch.check.machine.rule import Host, rule
from launch.config.schema import Device
from launch.planning.plan import Plan
from launch.rules.code import failed, passed, skipped, warned
from launch.worker.finding import Finding
from launch.worker.wording import count_of

# Descriptors that a launcher and one rank take: libraries, shards, sockets, workers.
_BASE_FILES = 512
_FILES_PER_RANK = 128
_MOST_FILES = 65_536  # a run raises its soft limit to this (execution/supervise/reaper.py)
# Bytes; NCCL takes some tens of MiB per pair of ranks, data loaders the rest.
_SHM_PER_RANK = 128 << 20
_CLOCK_TOLERANCE = 5.0  # seconds
_EARLIEST_TIME = 1_767_225_600  # 2026-01-01: a clock before it is not set
_INFINIBAND = Path("/sys/class/infiniband")
_SHM = Path("/dev/shm")


@rule("port_taken", "port")
def port_is_free(plan: Plan, host: Host) -> Finding:
    """Two launchers on one port join each other's ranks, or one of them dies."""
    port = _planned_port(plan)
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            listener.listen(1)
            bound_port = listener.getsockname()[1]
            with socket.create_connection(("127.0.0.1", bound_port), timeout=2.0):
                pass
    except OSError as error:
        if port == 0:
            message = f"ranks cannot connect on 127.0.0.1: {error.strerror or error}"
            return failed(message, "check the firewall")
        return failed(f"port {port} is in use", "set another one, or 0 for any free port")
    return passed("any free port, chosen at the start" if port == 0 else f"{port} is free")


def _planned_port(plan: Plan) -> int:
    """Return the port on which the ranks meet, or 0 for any free one."""
    for option, value in pairwise(plan.command):
        if option in ("--main_process_port", "--master_port"):
            return int(value) if value.isdigit() else 0
    return 0


@rule("open_files_limit", "open files")
def open_file_limit_suffices(plan: Plan, host: Host) -> Finding:
    """Shards, sockets and data loaders add up: `Too many open files` comes hours into a run."""
    limits = _resource_limits("RLIMIT_NOFILE")
    if limits is None:
        return skipped("this system has no such limit")
    soft, hard = limits
    width = plan.parallel.width
    needed = _BASE_FILES + _FILES_PER_RANK * width.local
    # The store on the first node has a connection to every rank and every node's launcher.
    if width.nodes > 1:
        needed += width.world_size + width.nodes
    if soft is None or soft >= _MOST_FILES:
        return passed(f"ulimit -n is {'unlimited' if soft is None else soft}")
    reachable = _MOST_FILES if hard is None else max(soft, min(hard, _MOST_FILES))
    if reachable < needed:
        ranks = count_of(width.world_size, "rank")
        facts = f"ulimit -Hn is {hard}, and {ranks} may need {needed}"
        return warned(facts, "raise nofile in /etc/security/limits.conf, or LimitNOFILE of slurmd")
    if reachable > soft:
        return passed(f"ulimit -n is {soft}; the run raises it to {reachable}")
    return passed(f"ulimit -n is {soft}")


@rule("memlock_limit", "locked memory")
def locked_memory_is_unlimited(plan: Plan, host: Host) -> Finding:
    """InfiniBand registers memory, which a small `ulimit -l` forbids: NCCL then dies at its first
    collective.
    """
    if plan.parallel.width.device != Device.cuda:
        return skipped("device=cpu")
    if not _INFINIBAND.is_dir() or not any(_INFINIBAND.iterdir()):
        return skipped("no InfiniBand here")
    limits = _resource_limits("RLIMIT_MEMLOCK")
    soft = limits[0] if limits is not None else None
    if soft is None:
        return passed("ulimit -l is unlimited")
    cure = "set memlock to unlimited in /etc/security/limits.conf"
    return warned(f"ulimit -l is {soft >> 10} KiB", cure)


@rule("small_shm", "shared memory")
def shared_memory_is_large(plan: Plan, host: Host) -> Finding:
    """Containers start with 64 MiB of /dev/shm: NCCL and data loaders die there with a bus
    error.
    """
    ranks = plan.parallel.width.local
    if ranks == 1:
        return skipped("one rank")
    if not _SHM.is_dir():
        return skipped("there is no /dev/shm")
    free = shutil.disk_usage(_SHM).free
    needed = _SHM_PER_RANK * ranks
    facts = f"{free >> 20} MiB free in /dev/shm"
    if plan.parallel.width.device == Device.cuda and free < needed:
        message = f"{facts}, and {ranks} ranks may need {needed >> 20}"
        return warned(message, "start the container with --shm-size=16g")
    return passed(facts)


@rule("clock_skew", "clock")
def clock_is_right(plan: Plan, host: Host) -> Finding:
    """Certificates, heartbeats and caches depend on the time: a wrong clock breaks each in its own
    way.
    """
    now = time.time()
    if now < _EARLIEST_TIME:
        date = time.strftime("%Y-%m-%d", time.gmtime(now))
        return failed(f"this machine's clock is set to {date}", "set it with ntp or chrony")
    folder = nearest_existing(plan.folder)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock.") as file:
            offset = Path(file.name).stat().st_mtime - time.time()
    except OSError as error:
        reason = "the run folder's file system gives no time to compare with"
        return skipped(f"{reason}: {error.strerror}")
    facts = f"{abs(offset):.1f} s from the clock of the run folder's file system"
    if abs(offset) > _CLOCK_TOLERANCE:
        cure = (
            "set both with ntp or chrony; "
            "heartbeats of other machines appear older or younger than they are"
        )
        return warned(facts, cure)
    return passed(facts)


def _resource_limits(name: str) -> tuple[int | None, int | None] | None:
    """Return the soft and the hard limit, each None for unlimited.

    None is returned where the system has no such limit.
    """
    if sys.platform == "win32" or os.name != "posix":
        return None
    import resource

    soft, hard = resource.getrlimit(getattr(resource, name))
    unlimited = resource.RLIM_INFINITY
    soft_limit = None if soft == unlimited else soft
    hard_limit = None if hard == unlimited else hard
    return soft_limit, hard_limit
