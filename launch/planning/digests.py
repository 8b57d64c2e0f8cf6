"""Content digests of local models and data, cached by path, size and times so that each file is read once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launch.files import load_json, open_file, write_exact

_BLOCK = 1 << 20  # bytes
_READERS = 4  # files at once; hashing lets other threads run
_LARGE = 64 << 20  # bytes
_WORTH_A_FOLDER = 16 << 20  # bytes that are read again in a blink: no folder is made to remember their digests
_SETTLED = 2.0  # seconds: a file that changed later than this may change again within the resolution of its times


class DigestCache:
    """Digests files and folders. Results are cached in `file`, which may be missing, stale or not writable.

    `await_other` returns once another process has cached the digests of the same files; it is called once, before a
    large file is read.
    """

    def __init__(self, file: Path, await_other: Callable[[], None] | None = None) -> None:
        self._file, self._await_other = file, await_other
        self._cached: dict[str, list[object]] = {}
        self._changed = False
        self._bytes_read = 0
        self._lock = threading.Lock()
        self._load()

    def _load(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            loaded = load_json(self._file)
            if isinstance(loaded, dict) and isinstance(loaded.get("files"), dict):
                self._cached |= loaded["files"]

    def of(self, path: Path) -> str | None:
        """Digest a file's bytes, or the names and bytes of a folder's files except hidden ones: sixteen hex digits.

        None if there is nothing. The subfolders of a folder with a model or an adapter are left out: they hold
        checkpoints, or the same weights in another format.
        """
        if path.is_file():
            return self._of_file(path)
        if not path.is_dir():
            return None
        from concurrent.futures import ThreadPoolExecutor  # slow to import; a plan without local inputs doesn't need it

        recursive = not any((path / name).exists() for name in ("config.json", "adapter_config.json"))
        files = sorted(_files(path, recursive))
        with ThreadPoolExecutor(_READERS) as readers:
            digests = list(readers.map(self._of_file, files))
        parts = [f"{file.relative_to(path).as_posix()}:{digest}" for file, digest in zip(files, digests, strict=True)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def save(self, *, create_folder: bool = True) -> None:
        """Write the cache, if anything is new; a folder that is not writable only costs time later.

        A missing folder is created only after much was read.
        """
        creates = create_folder and self._bytes_read >= _WORTH_A_FOLDER
        if not self._changed or not (creates or self._file.parent.is_dir()):
            return
        with contextlib.suppress(OSError):
            write_exact(self._file, json.dumps({"schema_version": 1, "files": self._cached}))

    def _of_file(self, path: Path) -> str:
        stat = path.stat()
        key = str(path.resolve())
        # ctime too: a copy that preserves the modification time still sets it
        state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        if (digest := self._find(key, state)) is not None:
            return digest
        with self._lock:
            if self._await_other is not None and stat.st_size > _LARGE:
                self._await_other()
                self._await_other = None
                self._load()
        if (digest := self._find(key, state)) is not None:
            return digest
        hasher = hashlib.sha256()
        with open_file(path) as stream:
            while block := stream.read(_BLOCK):
                hasher.update(block)
        digest = hasher.hexdigest()[:16]
        self._bytes_read += stat.st_size
        if time.time() - max(stat.st_mtime, stat.st_ctime) > _SETTLED:
            self._cached[key] = [*state, digest]
            self._changed = True
        return digest

    def _find(self, key: str, state: list[int]) -> str | None:
        cached = self._cached.get(key)
        is_current = isinstance(cached, list) and cached[:3] == state and len(cached) == 4
        return str(cached[3]) if cached and is_current else None


def _files(folder: Path, recursive: bool) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_file():
            yield path
        elif recursive and path.is_dir():
            yield from _files(path, recursive)
