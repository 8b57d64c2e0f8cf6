"""Reads and writes small files: reads never block, writes are atomic and without secrets.

Only `write_exact` writes secrets, into the files that tests/test_exits.py lists.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from launch.redact import process_redactor
from launch.worker.json_codec import to_json

_BLOCK = 1 << 22  # bytes of a JSONL file that are read at a time
_LONGEST_LINE = 1 << 24  # bytes; a longer line is skipped
_CREATE = os.O_WRONLY | os.O_CREAT


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises OSError for anything else: a folder, a dangling link, a FIFO (which is not waited for).
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def open_unlinked(path: str | Path, flags: int) -> int:
    """Open a file for writing, as `opener` of `open`; a link in its place is not followed.

    Raises OSError for a link.
    """
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def find_link(folder: Path, skipped: Collection[str] = ()) -> Path | None:
    """Return a link in a folder or below it, the same one each time; None without one.

    The folder itself may be a link. `skipped` are names of folders that are left out.
    """
    for place, folders, names in os.walk(folder):
        links = [name for name in (*folders, *names) if Path(place, name).is_symlink()]
        if links:
            return Path(place, min(links))
        folders[:] = sorted(name for name in folders if name not in skipped)
    return None


def read_file(path: Path) -> bytes:
    """Return the content of a regular file. Raises OSError as `open_file` does."""
    with open_file(path) as file:
        return file.read()


def read_text_or_empty(path: Path) -> str:
    """Return the text of a regular file; empty for one that cannot be read."""
    try:
        return read_file(path).decode("utf-8", "replace")
    except OSError:
        return ""


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises ValueError for any other text, also for one that nests too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def load_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises OSError as `open_file` does, ValueError as `parse_json` does.
    """
    return parse_json(read_file(path))


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file; {} for a missing or unreadable file, or another value."""
    try:
        value = load_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def parse_json_lines(lines: list[bytes]) -> Iterator[dict[str, Any] | None]:
    """Yield the object of each JSON line that is not blank.

    None stands for a line that is cut off, or is not an object.
    """
    values = []
    try:  # one call for all lines takes half the time
        if all(lines):
            values = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        values = []
    if len(values) != len(lines):
        values = [_parse_line(line) for line in lines if line.strip()]
    for value in values:
        yield value if isinstance(value, dict) else None


def _parse_line(line: bytes) -> Any:
    try:
        return parse_json(line)
    except ValueError:  # a UnicodeDecodeError too
        return None


def iterate_json_lines(path: Path, *, backwards: bool = False) -> Iterator[dict[str, Any] | None]:
    """Yield as `parse_json_lines` does from a JSONL file, with `backwards` the last line first.

    The file is read block by block. A file that cannot be read has no lines.
    """
    try:
        with open_file(path) as file:
            yield from _read_backwards(file) if backwards else _read_forwards(file)
    except OSError:
        return


def _read_forwards(file: BinaryIO) -> Iterator[dict[str, Any] | None]:
    rest = b""  # the start of a line whose end is in the next block
    block = file.read(_BLOCK)
    while block:
        *lines, rest = (rest + block).split(b"\n")
        yield from parse_json_lines(lines)
        rest = _skip_long(rest)
        block = file.read(_BLOCK)
    yield from parse_json_lines([rest])


def _read_backwards(file: BinaryIO) -> Iterator[dict[str, Any] | None]:
    rest = b""  # the end of a line whose start is in the block before
    left = file.seek(0, os.SEEK_END)
    while left:
        size = min(left, _BLOCK)
        left -= size
        file.seek(left)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        yield from reversed([*parse_json_lines(lines)])
        rest = _skip_long(rest)
    yield from parse_json_lines([rest])


def _skip_long(part: bytes) -> bytes:
    """Return a part of a line, or, if that is too long, a text that makes the line no object."""
    return part if len(part) <= _LONGEST_LINE else b"-"


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSONL file; a file that is missing or unreadable has none."""
    return [value for value in iterate_json_lines(path) if value is not None]


def encode_json(value: Any, indent: int | None = None) -> str:
    """Return a value as strict JSON without secrets; on one line, without `indent`."""
    clean = process_redactor().redact_object(to_json(value))
    return json.dumps(clean, indent=indent, ensure_ascii=False, allow_nan=False)


def write_json(
    path: Path,
    value: Any,
    mode: int | None = None,
    *,
    durable: bool = False,
    reserved: Path | None = None,
) -> None:
    """Write a value as JSON without secrets; the arguments are those of `write_exact`."""
    write_exact(path, encode_json(value, indent=2) + "\n", mode, durable=durable, reserved=reserved)


def write_yaml(
    path: Path, value: Mapping[str, Any], mode: int | None = None, *, durable: bool = False
) -> None:
    """Write a mapping as YAML without secrets; the arguments are those of `write_exact`."""
    from omegaconf import OmegaConf

    clean = OmegaConf.create(process_redactor().redact_object(value))
    write_exact(path, OmegaConf.to_yaml(clean), mode, durable=durable)


def write_json_lines(path: Path, values: Iterable[Any]) -> None:
    """Write a file of JSON lines without secrets."""
    write_exact(path, "".join(encode_json(value) + "\n" for value in values))


class JsonLines:
    """A file to which JSON lines without secrets are appended.

    A last line that a crash cut short is ended first, so that it spoils no other.
    """

    def __init__(self, path: Path) -> None:
        is_cut = not _ends_with_newline(path)
        descriptor = open_unlinked(path, _CREATE | os.O_APPEND)
        self._file = os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")
        if is_cut:
            self._file.write("\n")

    def append(self, value: Any) -> None:
        self._file.write(encode_json(value) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _ends_with_newline(path: Path) -> bool:
    """Return whether a file ends with a whole line; an empty, missing or unreadable one does."""
    try:
        with open_file(path) as stream:
            if stream.seek(0, os.SEEK_END) == 0:
                return True
            stream.seek(-1, os.SEEK_END)
            return stream.read(1) == b"\n"
    except OSError:
        return True


def archive_folder(folder: Path, into: Path | None = None) -> Path:
    """Rename a folder to its name with the time, in its own parent or `into`; return the new path.

    A clock that was set back, or a second of two archives, gives a name that is taken: a number
    follows it then.
    """
    stamped = f"{folder.name}.{time.strftime('%Y%m%d-%H%M%S')}"
    parent = into or folder.parent
    parent.mkdir(exist_ok=True)
    number = 1
    target = parent / stamped
    while target.exists():
        number += 1
        target = parent / f"{stamped}-{number}"
    return folder.rename(target)


def append_json(path: Path, *values: Any) -> None:
    """Append JSON lines without secrets to a file."""
    with contextlib.closing(JsonLines(path)) as lines:
        for value in values:
            lines.append(value)


def create_file(path: Path, text: str) -> None:
    """Write a new file without secrets, and the folders above it. Raises FileExistsError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as stream:
        stream.write(process_redactor().redact_text(text))


def write_file(path: Path, text: str, mode: int | None = None, *, durable: bool = False) -> None:
    """Write a text without secrets; the arguments are those of `write_exact`."""
    write_exact(path, process_redactor().redact_text(text), mode, durable=durable)


def write_exact(
    path: Path,
    text: str,
    mode: int | None = None,
    *,
    durable: bool = False,
    reserved: Path | None = None,
) -> None:
    """Write a file whole or not at all, and create missing folders.

    The file is written under a temporary name and renamed. `mode` has its permissions; without it,
    the process's umask decides. With `durable` the file and its name are on the disk when this
    returns (fsync of both). `reserved` is a file made by `reserve`, which is overwritten and
    renamed, so that a full disk still has room for the text.
    """
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}")
    try:
        if reserved is not None and not reserved.is_symlink():
            with contextlib.suppress(OSError):
                reserved.rename(temporary)
        try:
            descriptor = open_unlinked(temporary, _CREATE)
        except FileNotFoundError:
            # Folders are created only when needed: on a shared file system every call counts.
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = open_unlinked(temporary, _CREATE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "replace"))
            file.truncate()
            if durable:
                file.flush()
                os.fsync(descriptor)
            if mode is not None:
                os.fchmod(descriptor, mode)
        temporary.replace(path)
        if durable:
            _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def reserve(path: Path, size: int) -> None:
    """Write `size` bytes to `path` and to the disk, for a later `write_exact`.

    A full disk is not an error.
    """
    with contextlib.suppress(OSError), open(path, "wb", opener=open_unlinked) as file:
        file.write(b" " * size)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems do not support it
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def first_written(folder: Path, names: Iterable[str]) -> float | None:
    """Return when the first of these files that exists was written, in unix seconds.

    None is returned if none exists.
    """
    for name in names:
        with contextlib.suppress(OSError):
            return (folder / name).stat().st_mtime
    return None
