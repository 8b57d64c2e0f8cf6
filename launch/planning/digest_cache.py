"""Digests local files and folders, and caches the digests by path, size and times."""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from launch.digests import files_below, hash_file, key_of
from launch.files import load_json, write_exact
from launch.planning.model_folder import is_model_folder, is_unrelated
from launch.terminal import notify
from launch.worker.json_codec import versioned
from launch.worker.opened import FileState, file_state, is_same_file

_READERS = 4  # files at once; hashing lets other threads run
_LARGE = 64 << 20  # bytes
# The least number of bytes read for which a folder is created to cache their digests.
_WORTH_A_FOLDER = 16 << 20
_PROGRESS_EVERY = 10.0  # seconds between two lines about how much was read
# A large file in the hub's cache has the SHA-256 of its content as its name.
_BLOB = re.compile(r"[0-9a-f]{64}")
# A file that changed less than so many seconds ago may change again within the resolution of its
# times, and is not cached.
_SETTLED = 2.0


class DigestCache:
    """Digests files and folders. Results are cached in `file`, which may be missing, stale or not
    writable. Another node may have written it: the number of a device does not count.

    `await_other` returns once another process has cached the digests of the same files; it is
    called once, before a large file is read.
    """

    def __init__(self, file: Path, await_other: Callable[[], None] | None = None) -> None:
        self._file = file
        self._await_other = await_other
        self._cached: dict[str, list[object]] = {}
        self._changed = False
        self._bytes_read = 0
        self._last_read = -math.inf
        self._reported = 0.0  # when a line about the reading was last due
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

        None if there is nothing. In the folder of a model or an adapter, what does not belong to
        the model is left out (model_folder.py).
        """
        if path.is_file():
            return self._of_file(path)
        if not path.is_dir():
            return None
        # slow to import; a plan without local inputs doesn't need it
        from concurrent.futures import ThreadPoolExecutor

        names = list(files_below(path, is_unrelated if is_model_folder(path) else lambda _: False))
        with ThreadPoolExecutor(_READERS) as readers:
            digests = list(readers.map(self._of_file, (path / name for name in names)))
        return key_of(dict(zip(names, digests, strict=True)))

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
        key = path.resolve()
        if key.parent.name == "blobs" and _BLOB.fullmatch(key.name):
            return key.name[:16]
        state = file_state(key)
        cached_digest = self._find(str(key), state)
        if cached_digest is not None:
            return cached_digest
        size = state[2]
        with self._lock:
            if self._await_other is not None and size > _LARGE:
                self._await_other()
                self._await_other = None
                self._load()
        cached_digest = self._find(str(key), state)
        if cached_digest is not None:
            return cached_digest
        digest = hash_file(key, lambda read: self._count(read, path))
        *_, modified, changed = state
        is_settled = time.time() - max(modified, changed) / 1e9 > _SETTLED
        if is_settled and file_state(key) == state:  # else it was written while it was read
            self._cached[str(key)] = [*state, digest]
            self._changed = True
        return digest

    def _count(self, size: int, path: Path) -> None:
        """Count the bytes that are read, and report them from time to time."""
        with self._lock:
            self._bytes_read += size
            now = time.monotonic()
            if now - self._last_read > _PROGRESS_EVERY:  # nothing was read for a while
                self._reported = now
            self._last_read = now
            if now - self._reported < _PROGRESS_EVERY:
                return
            self._reported = now
        notify(f"reading {path} to compare it: {self._bytes_read / 2**30:.1f} GiB so far")

    def _find(self, key: str, state: FileState) -> str | None:
        cached = self._cached.get(key)
        if not isinstance(cached, list) or len(cached) != len(state) + 1:
            return None
        *known, digest = cached
        return str(digest) if is_same_file(tuple(known), state) else None
