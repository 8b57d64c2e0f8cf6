"""Content digests of local models and data, cached by path, size and modification time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

_WHOLE = 64 << 20  # bytes: larger files are known by their size and both ends
_END = 1 << 20


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
        """Sixteen hex digits over a file's bytes, or over the names and bytes of a folder's files (hidden ones and
        subfolders left out); None when there is nothing."""
        if path.is_file():
            return self._of_file(path)
        if not path.is_dir():
            return None
        parts = [
            f"{file.name}:{self._of_file(file)}"
            for file in sorted(path.iterdir())
            if file.is_file() and not file.name.startswith(".")
        ]
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
        known = self._known.get(key)
        if isinstance(known, list) and known[:2] == [seen.st_size, seen.st_mtime_ns]:
            return str(known[2])
        hasher = hashlib.sha256()
        with path.open("rb") as stream:
            if seen.st_size <= _WHOLE:
                while block := stream.read(_END):
                    hasher.update(block)
            else:
                hasher.update(f"{seen.st_size}:".encode() + stream.read(_END))
                stream.seek(-_END, os.SEEK_END)
                hasher.update(stream.read(_END))
        digest = hasher.hexdigest()[:16]
        self._known[key] = [seen.st_size, seen.st_mtime_ns, digest]
        self._changed = True
        return digest
