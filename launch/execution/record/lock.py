"""Lock a run folder for one launcher, with a file that names its holder.

The file lies beside the folder, `.<name>.lock`, so that the folder can be renamed while it is
locked. Its holder refreshes it every INTERVAL seconds. A dead holder's lock is taken over: on the
same boot of the same host, when the process is gone; elsewhere, when there is no heartbeat for
STALE seconds.
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
    found = _read(path)
    return found if found is not None and _is_alive(*found) else None


def prove_launcher(path: Path, holder: Holder) -> psutil.Process | None:
    """Return the process that holds the lock file `path` open and is the `holder` that the file
    names; None otherwise.

    Anybody who can write into a folder of runs can name any process in a lock.
    """
    try:
        process = _find_process(holder)
        # by its name and not by its content: a hard link of one run's lock is not another's
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

    Folders that were created for it and hold nothing at the end are removed: a refused run leaves
    nothing.
    Raises UserError with that problem: not_writable, not_a_lock.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    own, stop = this_process(), threading.Event()
    heartbeat = threading.Thread(
        target=_refresh, args=(path, stop), name="lock heartbeat", daemon=True
    )
    try:  # a signal may end this process as soon as the file exists
        while not _acquire(path, own):
            found = _read(path)
            if found is None:
                _refuse_other_file(path)
                continue  # released meanwhile
            holder, age = found
            if _is_alive(holder, age):
                raise UserError(refuse(holder, age))
            say(f"took over the lock of {holder}, which has ended (last heartbeat {age:.0f} s ago)")
            _discard(path, holder)
        heartbeat.start()
        with path.open("rb"):  # what proves to `stop` that this process is the holder
            yield
    finally:
        stop.set()
        if heartbeat.ident is not None:
            heartbeat.join()
        found = _read(path)
        if found is not None and found[0].token == own.token:
            with contextlib.suppress(OSError):
                path.unlink()
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _refuse_other_file(path: Path) -> None:
    """Raise UserError (not_a_lock) if a link, a folder or a FIFO is in the lock's place: nobody
    would release it.
    """
    if not os.path.lexists(path) or (path.is_file() and not path.is_symlink()):
        return
    message = f"{path} is the name of a lock file, but it is a link, a folder or a FIFO"
    raise refusal("not_a_lock", message, None, "remove it, or use another name=")


def locked_problem(folder: Path, holder: Holder, age: float | None) -> Finding:
    heartbeat = "" if age is None else f" (heartbeat {age:.0f} s ago)"
    message = f"another launcher holds {folder}: {holder}{heartbeat}"
    return Finding.error(
        "run_is_locked", message, None, "wait for it, stop it, or use another name="
    )


def _is_alive(holder: Holder, age: float) -> bool:
    if holder.machine and holder.machine == _machine_id():
        try:
            # a zombie is dead, and remains until a container's first process reaps it
            return _find_process(holder).status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, ValueError, OverflowError):  # a process id that none can have
            return False
        except psutil.Error:
            return True
    return age < STALE


def _find_process(holder: Holder) -> psutil.Process:
    """Return the holder's process. Process ids are reused: the time of birth distinguishes two.

    Raises psutil.NoSuchProcess; ValueError or OverflowError for an id that no process can have.
    """
    process = psutil.Process(holder.pid)
    # nor is it where a forged time is NaN
    if not abs(process.create_time() - holder.born) < _SAME_BIRTH:
        raise psutil.NoSuchProcess(holder.pid)
    return process


def _acquire(path: Path, holder: Holder) -> bool:
    """Create the lock file; False when it exists. Raises UserError: not_writable."""
    try:
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            # another launcher has removed the folder that it left empty
            with contextlib.suppress(FileNotFoundError):
                return _create(path, holder)
    except OSError as error:
        message = f"{path.parent} is not writable: {error.strerror}"
        raise refusal(
            "not_writable", message, None, "set runs= and cache= to writable folders"
        ) from error


def _create(path: Path, holder: Holder) -> bool:
    """Create the file with its content atomically, by a link; without links, empty at first. False:
    it exists.
    """
    text = encode({**to_json(holder), "started": time.time(), "interval": INTERVAL}) + "\n"
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
    aside = path.with_name(f"{path.name}.{holder.token}")
    with contextlib.suppress(OSError):
        path.rename(aside)
    found = _read(aside)
    # a new holder came first: restore its file
    if found is not None and found[0].token != holder.token:
        with contextlib.suppress(OSError):
            os.link(aside, path)
    aside.unlink(missing_ok=True)


def _refresh(path: Path, stop: threading.Event) -> None:
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
        text, heartbeat = read_file(path), path.stat().st_mtime
    except OSError:
        return None
    age = max(0.0, _file_system_time(path.parent) - heartbeat)
    try:
        holder = decode(Holder, text)
    except (ValueError, OverflowError):
        holder = Holder("unknown", "unknown", 0, 0.0, "", "unreadable")
    return holder, age


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
