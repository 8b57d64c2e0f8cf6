"""Digests local files and folders, and caches the digests by path, size and times."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launch.files import load_json, open_file, write_exact
from launch.worker.json_codec import versioned

_BLOCK = 1 << 20  # bytes
_READERS = 4  # files at once; hashing lets other threads run
_LARGE = 64 << 20  # bytes
# The least number of bytes read for which a folder is created to cache their digests.
_WORTH_A_FOLDER = 16 << 20
# A file that changed less than so many seconds ago may change again within the resolution of its
# times, and is not cached.
_SETTLED = 2.0


class DigestCache:
    """Digests files and folders. Results are cached in `file`, which may be missing, stale or not
    writable.

    `await_other` returns once another process has cached the digests of the same files; it is
    called once, before a large file is read.
    """

    def __init__(self, file: Path, await_other: Callable[[], None] | None = None) -> None:
        self._file = file
        self._await_other = await_other
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
        """Digest a file's bytes, or the names and bytes of a folder's files except hidden ones:
        sixteen hex digits.

        None if there is nothing. The subfolders of a folder with a model or an adapter are left
        out: they hold checkpoints, or the same weights in another format.
        """
        if path.is_file():
            return self._of_file(path)
        if not path.is_dir():
            return None
        # slow to import; a plan without local inputs doesn't need it
        from concurrent.futures import ThreadPoolExecutor

        recursive = not any(
            (path / name).exists() for name in ("config.json", "adapter_config.json")
        )
        files = sorted(_files(path, recursive))
        with ThreadPoolExecutor(_READERS) as readers:
            digests = list(readers.map(self._of_file, files))
        parts = [
            f"{file.relative_to(path).as_posix()}:{digest}"
            for file, digest in zip(files, digests, strict=True)
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def save(self, *, create_folder: bool = True) -> None:
        """Write the cache, if anything is new; a folder that is not writable only costs time later.

        A missing folder is created only after much was read.
        """
        creates = create_folder and self._bytes_read >= _WORTH_A_FOLDER
        if not self._changed or not (creates or self._file.parent.is_dir()):
            return
        with contextlib.suppress(OSError):
            write_exact(self._file, json.dumps(versioned({"files": self._cached})))

    def _of_file(self, path: Path) -> str:
        stat = path.stat()
        key = str(path.resolve())
        # ctime too: a copy that preserves the modification time still sets it
        state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        cached_digest = self._find(key, state)
        if cached_digest is not None:
            return cached_digest
        with self._lock:
            if self._await_other is not None and stat.st_size > _LARGE:
                self._await_other()
                self._await_other = None
                self._load()
        cached_digest = self._find(key, state)
        if cached_digest is not None:
            return cached_digest
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
    """Yield the files of a folder that are not hidden."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_file():
            yield path
        elif recursive and path.is_dir():
            yield from _files(path, recursive)
