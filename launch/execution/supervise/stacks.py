"""Dumps the stack of every rank with py-spy before a stalled run is ended, and summarises them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from launch.execution.supervise.processes import is_stopped
from launch.files import open_unlinked
from launch.terminal import format_ranks

_TIMEOUT = 20.0  # seconds, for all ranks together
_THREAD = re.compile(r"^Thread .*\((?P<state>[^)]*)\)(?:: \"(?P<name>.*)\")?")
_FRAME = re.compile(r"^    (?P<function>\S.*) \((?P<place>[^()]+:\d+)\)$")
# The files whose frames surround every collective.
_WRAPPER_FILES = ("distributed_c10d.py", "c10d_logger.py", "operations.py", "_contextlib.py")
_KERNEL_STATES = {
    psutil.STATUS_DISK_SLEEP: "in uninterruptible sleep (disk or driver)",
    psutil.STATUS_STOPPED: "stopped",
}


@dataclass(frozen=True)
class Stacks:
    """The stack dumps of several ranks."""

    files: tuple[Path, ...]  # one per dumped rank
    summary: tuple[str, ...]  # a line per group of ranks at the same place, or why there is no dump


class PeerNodes(Protocol):
    """The other nodes of a run. Node 0 leads: it reports its progress, and collects what the others
    publish.
    """

    @property
    def progress(self) -> str:
        """`stalled` when node 0 requests stacks, `complete` when it has logged the steps that were
        requested.
        """

    def report_progress(self, progress: str) -> None: ...

    def note_step(self) -> None: ...

    def publish_stacks(self, stacks: Stacks) -> None: ...

    def collect_stacks(self) -> Stacks: ...


def dump_stacks(
    processes: Mapping[int, psutil.Process], ranks: Sequence[int], folder: Path
) -> Stacks:
    """Write `folder`/rank-N.txt for each of `ranks` that has a process; all dumps run at the same
    time.
    """
    spy = find_py_spy()
    if spy is None:
        reason = "no stacks: py-spy is not installed beside the launcher's Python or on PATH"
        return Stacks((), (reason,))
    folder.mkdir(parents=True, exist_ok=True)
    paths = {rank: folder / f"rank-{rank}.txt" for rank in processes}
    dumps = {rank: _start_dump(spy, processes[rank], path) for rank, path in paths.items()}
    ranks_by_place: dict[str, list[int]] = {}
    files: list[Path] = []
    for rank in ranks:
        place = ": process unknown"
        if rank in dumps:
            files.append(paths[rank])
            place = " " + _finish_dump(dumps[rank], paths[rank], processes[rank])
        ranks_by_place.setdefault(place, []).append(rank)
    summary = [f"{format_ranks(group)}{place}" for place, group in ranks_by_place.items()]
    return Stacks(tuple(files), tuple(summary))


def find_py_spy() -> str | None:
    """Find py-spy beside the launcher's interpreter, else on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def _start_dump(spy: str, process: psutil.Process, path: Path) -> subprocess.Popen[bytes]:
    # py-spy can't pause a process that is stopped already.
    pausing = ["--nonblocking"] if is_stopped(process.pid) else []
    with open(path, "wb", opener=open_unlinked) as file:
        command = [spy, "dump", "--subprocesses", *pausing, "--pid", str(process.pid)]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )


def _finish_dump(dump: subprocess.Popen[bytes], path: Path, process: psutil.Process) -> str:
    try:
        status = dump.wait(_TIMEOUT)
    except subprocess.TimeoutExpired:
        dump.kill()
        dump.wait()
        return f"could not be inspected within {_TIMEOUT:.0f} s{_kernel_state(process)}"
    text = path.read_text(encoding="utf-8", errors="replace")
    if status != 0:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"py-spy exited with status {status}"
        return f"could not be inspected: {reason}{_kernel_state(process)}"
    return describe_place(text) + _kernel_state(process)


def describe_place(dump: str) -> str:
    """Describe where the main thread of a py-spy dump is, as a predicate without its subject.

    >>> describe_place('Thread 7 (idle): "MainThread"\\n    read (loader.py:3)\\n    <module>
    (train.py:9)\\n') 'is in read (loader.py:3), from <module> (train.py:9)'
    """
    frames = _main_frames(dump)
    if not frames:
        return "runs no Python code"
    collectives = [frame for frame in frames[:4] if "distributed_c10d.py" in frame]
    if collectives:
        outermost_collective = collectives[-1]
        callers = [frame for frame in frames if not _is_wrapper(frame)]
        from_caller = f", from {callers[0]}" if callers else ""
        return f"waits in {outermost_collective}{from_caller}"
    from_caller = f", from {frames[1]}" if len(frames) > 1 else ""
    return f"is in {frames[0]}{from_caller}"


def _is_wrapper(frame: str) -> bool:
    return any(name in frame for name in _WRAPPER_FILES)


def _main_frames(dump: str) -> list[str]:
    """Return the frames of the first process's MainThread, else of its first thread; innermost
    first.
    """
    first = dump.partition("\nProcess ")[0]
    threads: list[tuple[str, list[str]]] = []
    for line in first.splitlines():
        thread = _THREAD.match(line)
        if thread is not None:
            threads.append((thread["name"] or "", []))
            continue
        frame = _FRAME.match(line)
        if frame is not None and threads:
            _, frames = threads[-1]
            frames.append(f"{frame['function']} ({frame['place']})")
    for name, frames in threads:
        if name == "MainThread":
            return frames
    return threads[0][1] if threads else []


def _kernel_state(process: psutil.Process) -> str:
    try:
        state = _KERNEL_STATES.get(process.status())
    except psutil.Error:
        return " (exited)"
    return f" ({state})" if state else ""
