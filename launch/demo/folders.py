"""Build folders once and atomically, even if builds are killed or run concurrently.

A folder is built beside its destination, its marker (demo.json) is written last, and one rename moves it into place.
Of two concurrent builds, the one that finishes second keeps the result of the first. There is no lock, because a lock
left by a killed build would block the next one.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.errors import refusal
from launch.files import load_json, write_exact
from launch.worker.json_codec import versioned

MARKER = "demo.json"
ABANDONED_AFTER = 3600.0  # seconds; a build takes ten, so an older staging folder is from a killed build


@dataclass(frozen=True)
class BuiltFolder:
    """A complete folder."""

    facts: dict[str, Any]  # what `build` returned about its content
    built: bool  # False if it existed already


def build_once(folder: Path, kind: str, key: str, build: Callable[[Path], dict[str, Any]]) -> BuiltFolder:
    """Ensure that `folder` contains what `build(empty folder)` creates for `key`, replacing one of another key.

    A folder is complete if its marker has this kind and key, and all files listed in it have their recorded sizes.
    Raises UserError: demo_folder_taken (the folder was not built by this function), and whatever `build` raises.
    """
    facts = _read_current(folder, kind, key)
    if facts is not None:
        return BuiltFolder(facts, built=False)
    _refuse_foreign(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".building", dir=folder.parent))
    made = staging / folder.name
    made.mkdir()
    try:
        facts = build(made)
        marker = versioned({"kind": kind, "key": key, "facts": facts, "files": _file_sizes(made)})
        write_exact(made / MARKER, json.dumps(marker, indent=2) + "\n")
        while not _move_into_place(made, folder):
            existing = _read_current(folder, kind, key)
            if existing is not None:
                return BuiltFolder(existing, built=False)
            _refuse_foreign(folder)
            with contextlib.suppress(FileNotFoundError):  # another builder moved it first
                folder.rename(Path(tempfile.mkdtemp(dir=staging)) / "stale")  # at once, never seen half deleted
        return BuiltFolder(facts, built=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move_into_place(staging: Path, folder: Path) -> bool:
    try:
        staging.rename(folder)
    except OSError:
        if folder.exists():
            return False
        raise
    return True


def _refuse_foreign(folder: Path) -> None:
    """Raise unless `folder` is missing, empty or has a marker: replacing a folder deletes it."""
    is_own = folder.is_dir() and ((folder / MARKER).is_file() or not any(folder.iterdir()))
    if folder.exists() and not is_own:
        message = f"the demo cannot be built in a folder that it did not create (there is no {MARKER})"
        cure = "move the folder away, or choose another one"
        raise refusal("demo_folder_taken", message, str(folder), cure)


def _read_current(folder: Path, kind: str, key: str) -> dict[str, Any] | None:
    """Return the facts of a complete folder of this kind and key, otherwise None."""
    try:
        marker = load_json(folder / MARKER)
        if (marker["kind"], marker["key"]) != (kind, key) or marker["files"] != _file_sizes(folder):
            return None
        return dict(marker["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _file_sizes(folder: Path) -> dict[str, int]:
    """Return {file name: bytes} for the files directly in `folder`, except the marker."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != MARKER}


def _remove_abandoned(folder: Path) -> None:
    for leftover in folder.parent.glob(f".{folder.name}.*.building"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > ABANDONED_AFTER:
                shutil.rmtree(leftover, ignore_errors=True)
