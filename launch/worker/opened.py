"""Reports the files that a trainer has read, with the state in which it saw each.

The launcher compares them with those that were planned.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # planning reads states of files, and sends none
    from .channel import EventWriter

# Device, inode, bytes, and the times of the last change of content and of status in nanoseconds.
# A copy that preserves the first time still sets the second.
FileState = tuple[int, int, int, int, int]
# How a process uses a file: the trainer loads it; a verifier imports it as a module, reads it, or
# writes one that it has read.
FileUse = Literal["load", "import", "read", "write"]
# The folder with a model's additional chat templates (transformers/utils/hub.py,
# CHAT_TEMPLATE_DIR).
_TEMPLATES = "additional_chat_templates"


@dataclass(frozen=True)
class UsedFile:
    """A file that a process has used, with the state in which it was."""

    path: str
    state: FileState
    use: FileUse = "load"


def report_opened(paths: Iterable[Path], events: EventWriter) -> None:
    """Send device, inode, size and times of files that were just read.

    Only the first process of each machine sends them.
    """
    used = []
    for path in paths:
        with contextlib.suppress(OSError):
            used.append(UsedFile(str(path), file_state(path)))
    send_used(used, events)


def send_used(files: Iterable[UsedFile], events: EventWriter) -> None:
    """Send files with the states that a process has seen, on the first process of each machine."""
    for file in files if events.is_first_of_machine else ():
        use = {} if file.use == "load" else {"use": file.use}
        events.emit("opened", path=file.path, state=file.state, **use)


def report_folder(source: object, events: EventWriter) -> None:
    """Send the files of the folder that a model was loaded from; nothing for a hub id."""
    folder = Path(str(source))
    if not folder.is_dir():
        return
    templates = folder / _TEMPLATES
    paths = [*folder.iterdir(), *(templates.iterdir() if templates.is_dir() else ())]
    report_opened((path for path in sorted(paths) if path.is_file()), events)


def file_state(path: Path) -> FileState:
    """Return the state of a file, which changes whenever the file does. Raises OSError."""
    return _state_of(path.stat())


def opened_state(path: Path) -> FileState:
    """Return the state of a file that another machine may have written just now. Raises OSError.

    A client of a network file system answers from a cache until the file is opened.
    """
    with path.open("rb") as stream:
        return _state_of(os.fstat(stream.fileno()))


def _state_of(status: os.stat_result) -> FileState:
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def is_same_file(state: Sequence[object], other: Sequence[object]) -> bool:
    """Return whether two states, which different machines may have seen, are of the same content.

    Each machine has its own numbers for the devices of network file systems. No other file has the same
    inode and the same times to the nanosecond, the second of which nobody can set.
    """
    return state[1:] == other[1:]
