"""Reports the files that a trainer has read, with the state in which it saw each.

The launcher compares them with those that were planned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # planning reads states of files, and sends none
    from .channel import EventWriter

# Device, inode, bytes, and the times of the last change of content and of status in nanoseconds.
# A copy that preserves the first time still sets the second.
FileState = tuple[int, int, int, int, int]


def report_opened(paths: Iterable[Path], events: EventWriter) -> None:
    """Send device, inode, bytes and the times of files that were just read; the first rank does."""
    if events.rank:
        return
    for path in paths:
        with contextlib.suppress(OSError):
            events.emit("opened", path=str(path), state=file_state(path))


def send_states(files: Iterable[tuple[str, FileState]], events: EventWriter) -> None:
    """Send files of the user's whose states another process has seen; the first rank does."""
    for path, state in () if events.rank else files:
        events.emit("opened", path=path, state=state)


def report_folder(source: object, events: EventWriter) -> None:
    """Send the files of the folder that a model was loaded from; nothing for a hub id."""
    folder = Path(str(source))
    if folder.is_dir():
        report_opened((path for path in sorted(folder.iterdir()) if path.is_file()), events)


def file_state(path: Path) -> FileState:
    """Return what changes whenever a file does. Raises OSError."""
    status = path.stat()
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
