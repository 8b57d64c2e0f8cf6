"""Lock a run folder for one launcher, with a file that names its holder.

The file is beside the folder, `.<name>.lock`, so that the folder can be renamed while it is locked.
Its holder refreshes it every INTERVAL seconds. A dead holder's lock is taken over: on the same boot
of the same host, when the process is gone; elsewhere, when there is no heartbeat for STALE seconds.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from launch.errors import UserError, refusal
from launch.files import read_file
from launch.worker.finding import Finding
from launch.worker.json_codec import decode, encode, to_json

INTERVAL = 10.0  # seconds between heartbeats
STALE = 6 * INTERVAL
_SAME_BIRTH = 2.0  # seconds by which two readings of one process's start differ at most


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock."""

    host: str
    user: str
    pid: int
    born: float  # unix seconds; with `pid` it identifies one process of `machine`
    machine: str  # the boot and the process namespace
    token: str  # unique to this lock

    def __str__(self) -> str:
        return f"{self.user}@{self.host}, process {self.pid}"


def this_process() -> Holder:
    """Return this process as the holder of a new lock."""
    born = psutil.Process().create_time()
    return Holder(
        socket.gethostname(), _user_name(), os.getpid(), born, _machine_id(), secrets.token_hex(8)
    )


def lock_path(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def find_holder(path: Path) -> tuple[Holder, float] | None:
    """Return the living holder of the lock file `path` and the seconds since its heartbeat; None
    without one.
    """
    lock = _read(path)
    if lock is None:
        return None
    holder, age = lock
    return lock if _is_alive(holder, age) else None


def prove_launcher(path: Path, holder: Holder) -> psutil.Process | None:
    """Return the process that holds the lock file `path` open and is the `holder` that the file
    names; None otherwise.

    Anybody who can write into a folder of runs can name any process in a lock.
    """
    try:
        process = _find_process(holder)
        # Paths are compared, not inodes: a hard link to the lock of another run proves nothing.
        is_open = os.path.realpath(path) in (file.path for file in process.open_files())
        return process if is_open else None
    except (psutil.Error, ValueError, OverflowError):
        return None


def run_lock(folder: Path, say: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of a run folder; a dead holder's lock is taken over.

    Raises UserError: run_is_locked, when another launcher holds it; not_writable.
    """
    return file_lock(
        lock_path(folder), lambda holder, age: locked_problem(folder, holder, age), say
    )


@contextlib.contextmanager
def file_lock(
    path: Path, refuse: Callable[[Holder, float], Finding], say: Callable[[str], None]
) -> Iterator[None]:
    """Hold the lock file `path`; `refuse` returns the problem when a living process holds it.

    Folders that were created for the lock and are empty at the end are removed, so that nothing
    remains of a refused run.

    Raises UserError: the problem of `refuse`, not_writable, not_a_lock.
    """
    created_folders = [folder for folder in path.parents if not folder.exists()]
    this_holder = this_process()
    stop = threading.Event()
    heartbeat = threading.Thread(
        target=_refresh, args=(path, stop), name="lock heartbeat", daemon=True
    )
    try:  # a signal may end this process as soon as the file exists
        _take_over(path, this_holder, refuse, say)
        heartbeat.start()
        with path.open("rb"):  # the open file proves to `launch stop` that this is the holder
            yield
    finally:
        stop.set()
        if heartbeat.ident is not None:
            heartbeat.join()
        lock = _read(path)
        if lock is not None and lock[0].token == this_holder.token:
            with contextlib.suppress(OSError):
                path.unlink()
        for folder in created_folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _take_over(
    path: Path,
    this_holder: Holder,
    refuse: Callable[[Holder, float], Finding],
    say: Callable[[str], None],
) -> None:
    """Create the lock file, after removing the file of a dead holder.

    Raises UserError: the problem of `refuse` when a living process holds it.
    """
    while not _acquire(path, this_holder):
        lock = _read(path)
        if lock is None:
            _refuse_other_file(path)
            continue  # the holder has released it meanwhile
        holder, age = lock
        if _is_alive(holder, age):
            raise UserError(refuse(holder, age))
        say(f"took over the lock of {holder}, which has ended (last heartbeat {age:.0f} s ago)")
        _discard(path, holder)


def _refuse_other_file(path: Path) -> None:
    """Raise UserError (not_a_lock) if the path is a link, a folder or a FIFO, none of which launch
    would remove.
    """
    if not os.path.lexists(path) or (path.is_file() and not path.is_symlink()):
        return
    message = f"{path} is the name of a lock file, but it is a link, a folder or a FIFO"
    raise refusal("not_a_lock", message, None, "remove it, or use another name=")


def locked_problem(folder: Path, holder: Holder, age: float | None) -> Finding:
    """Return the problem that a living holder locks the run; `age` is that of its heartbeat, in
    seconds.
    """
    heartbeat = "" if age is None else f" (heartbeat {age:.0f} s ago)"
    message = f"another launcher holds {folder}: {holder}{heartbeat}"
    return Finding.error(
        "run_is_locked", message, None, "wait for it, stop it, or use another name="
    )


def _is_alive(holder: Holder, age: float) -> bool:
    if holder.machine and holder.machine == _machine_id():
        try:
            # A zombie is dead, and remains until a container's first process reaps it.
            return _find_process(holder).status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, ValueError, OverflowError):  # a process id that none can have
            return False
        except psutil.Error:
            return True
    return age < STALE


def _find_process(holder: Holder) -> psutil.Process:
    """Return the holder's process. The system reuses process ids, so the start times must agree.

    Raises psutil.NoSuchProcess; ValueError or OverflowError for an id that no process can have.
    """
    process = psutil.Process(holder.pid)
    difference = abs(process.create_time() - holder.born)
    if not difference < _SAME_BIRTH:  # a forged start time may be NaN, which is never smaller
        raise psutil.NoSuchProcess(holder.pid)
    return process


def _acquire(path: Path, holder: Holder) -> bool:
    """Create the lock file; False when it exists. Raises UserError: not_writable."""
    try:
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Another launcher may remove the folder while it is empty.
            with contextlib.suppress(FileNotFoundError):
                return _create(path, holder)
    except OSError as error:
        message = f"{path.parent} is not writable: {error.strerror}"
        raise refusal(
            "not_writable", message, None, "set runs= and cache= to writable folders"
        ) from error


def _create(path: Path, holder: Holder) -> bool:
    """Create the file with its content atomically, by a hard link; return False if it exists.

    On a file system without hard links the file is empty at first.
    """
    content = {**to_json(holder), "started": time.time(), "interval": INTERVAL}
    text = encode(content) + "\n"
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        temporary.chmod(0o644)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except (OSError, AttributeError):
            try:
                with path.open("x", encoding="utf-8") as stream:
                    stream.write(text)
            except FileExistsError:
                return False
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _discard(path: Path, holder: Holder) -> None:
    """Remove a dead holder's file if it is still that holder's; of several launchers one
    succeeds.
    """
    discarded = path.with_name(f"{path.name}.{holder.token}")
    with contextlib.suppress(OSError):
        path.rename(discarded)
    lock = _read(discarded)
    if lock is not None and lock[0].token != holder.token:
        # Another launcher had taken the lock over by then, so its file is restored.
        with contextlib.suppress(OSError):
            os.link(discarded, path)
    discarded.unlink(missing_ok=True)


def _refresh(path: Path, stop: threading.Event) -> None:
    """Update the file's time, the heartbeat, until `stop` is set."""
    while not stop.wait(INTERVAL):
        with contextlib.suppress(OSError):
            os.utime(path)


def _read(path: Path) -> tuple[Holder, float] | None:
    """Return the holder and the age of its heartbeat in seconds, by the file system's clock; None
    without a file.

    A file with other content has an unknown holder. A link, a folder or a FIFO is not a lock.
    """
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        text = read_file(path)
        heartbeat = path.stat().st_mtime
    except OSError:
        return None
    age = max(0.0, _file_system_time(path.parent) - heartbeat)
    try:
        holder = decode(Holder, text)
    except (ValueError, OverflowError):
        holder = Holder("unknown", "unknown", 0, 0.0, "", "unreadable")
    return holder, age


def age_of(path: Path) -> float | None:
    """Return the seconds since a file was written, by its file system's clock; None without it."""
    try:
        written = path.stat().st_mtime
    except OSError:
        return None
    return max(0.0, _file_system_time(path.parent) - written)


def _file_system_time(folder: Path) -> float:
    """Return the unix time of the folder's file system, whose clock need not agree with this
    host's.
    """
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=".clock.")
        os.close(handle)
        now = Path(name).stat().st_mtime
        Path(name).unlink(missing_ok=True)
    except OSError:
        now = time.time()
    return now


def _machine_id() -> str:
    """Identify this boot of this host and the namespace of its process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except (OSError, NotImplementedError):
        return f"{socket.gethostname()}/{psutil.boot_time():.0f}"


def _user_name() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user id without a name
        return "unknown"
