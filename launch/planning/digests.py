"""Content digests of local models and data, kept by path, size and times so that each file is read once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_BLOCK = 1 << 20  # bytes
_READERS = 4  # files at once; hashing lets other threads run
_SETTLED = 2.0  # seconds: a file that changed later than this may change again within the resolution of its times


class DigestCache:
    """Digests of files and folders. What was computed is kept in `file`, which may be missing, stale or unwritable."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, list[object]] = {}
        self._changed = False
        with contextlib.suppress(OSError, ValueError):
            loaded = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(loaded, dict) and isinstance(loaded.get("files"), dict):
                self._known = loaded["files"]

    def of(self, path: Path) -> str | None:
        """Sixteen hex digits over a file's bytes, or over the names and bytes of a folder's files, hidden ones left
        out; None when there is nothing. Of a model's folder (it has a config.json) the subfolders are left out: they
        are checkpoints, or the same weights in another format."""
        if path.is_file():
            return self._of_file(path)
        if not path.is_dir():
            return None
        deep = not (path / "config.json").exists()
        files = sorted(_files(path, deep))
        with ThreadPoolExecutor(_READERS) as readers:
            digests = list(readers.map(self._of_file, files))
        parts = [f"{file.relative_to(path).as_posix()}:{digest}" for file, digest in zip(files, digests, strict=True)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def save(self) -> None:
        """Keep what was computed; a folder that can't be written only costs time later."""
        if not self._changed:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._file.parent, prefix=".digests.")
            with os.fdopen(handle, "w", encoding="utf-8") as temporary:
                json.dump({"schema_version": 1, "files": self._known}, temporary)
            Path(name).replace(self._file)

    def _of_file(self, path: Path) -> str:
        seen = path.stat()
        key = str(path.resolve())
        # the time of change too: a copy that keeps the time of modification still sets it
        state = [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns]
        known = self._known.get(key)
        if isinstance(known, list) and known[:3] == state and len(known) == 4:
            return str(known[3])
        hasher = hashlib.sha256()
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                hasher.update(block)
        digest = hasher.hexdigest()[:16]
        if time.time() - max(seen.st_mtime, seen.st_ctime) > _SETTLED:
            self._known[key] = [*state, digest]
            self._changed = True
        return digest


def _files(folder: Path, deep: bool) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_file():
            yield path
        elif deep and path.is_dir():
            yield from _files(path, deep)
