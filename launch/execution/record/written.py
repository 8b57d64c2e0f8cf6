"""The checkpoints that a run has written, with the state and the digest of each file.

They are recorded in checkpoints.jsonl. A resume compares a checkpoint with its record, to find files
that were replaced.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launch.digests import Digest, describe_file_changes, files_below, hash_file
from launch.execution.record.attempts import attempt_layouts, latest_attempt
from launch.execution.record.checkpoints import (
    MARK,
    Layout,
    RunLayouts,
    is_being_written,
    names_checkpoint,
)
from launch.execution.record.folder import CONVERTED
from launch.files import append_json, read_json_lines
from launch.worker.json_codec import versioned
from launch.worker.opened import FileState, is_same_file, opened_state

WRITTEN = "checkpoints.jsonl"
# The suffixes of files that transformers may read instead of those that the checkpoint has.
_WEIGHTS = (".safetensors", ".index.json")
_IDLE = 19  # the lowest priority of a thread


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A checkpoint as the run wrote it."""

    name: str
    # The attempt that wrote it; None for one that was found after its launcher had been killed.
    attempt: int | None
    files: Mapping[str, FileState]
    # The digests of the files that were read so far.
    digests: Mapping[str, str] = field(default_factory=dict)
    # False for the last checkpoint, to which another node may have added a file after its record.
    whole: bool = True
    # The latest attempt when a checkpoint without a known `attempt` was found.
    found_after: int | None = None

    @property
    def writer(self) -> int | None:
        """The attempt whose ranks wrote the files, whether or not it has proven anything of them."""
        return self.found_after if self.attempt is None else self.attempt

    def find_change(self, folder: Path, digest: Digest) -> str | None:
        """Describe how the files in `folder` differ from those that were written; None if they do
        not.

        A file in the recorded state is not read again. A file without a digest is compared by size
        and modification time. An added file is a difference if weights would be read from it.
        """
        try:
            now = checkpoint_files(folder)
        except OSError as error:
            return f"it can't be read: {error.strerror}"
        recorded: dict[str, object] = {}
        found: dict[str, object] = {}
        for name in {*self.files, *now}:
            if name not in self.files and not name.endswith(_WEIGHTS):
                continue
            if name in self.files:
                recorded[name] = self.files[name]
            if name in now:
                found[name] = now[name]
            if name not in self.files or name not in now:
                continue
            if is_same_file(self.files[name], now[name]):
                found[name] = recorded[name]
                continue
            if name in self.digests:
                recorded[name] = self.digests[name]
                found[name] = digest(folder / name)
            else:
                # A copy has another inode.
                recorded[name] = self.files[name][2:4]
                found[name] = now[name][2:4]
        return describe_file_changes(recorded, found)


def checkpoint_files(folder: Path) -> dict[str, FileState]:
    """Return the state of each file of a checkpoint, by name. Raises OSError.

    The mark of a finished checkpoint is left out, because a resume may add it.
    """
    return {name: opened_state(folder / name) for name in files_below(folder, MARK.__eq__)}


def read_written(run: Path) -> dict[str, WrittenCheckpoint]:
    """Return the checkpoints that a run has recorded by name, each with its last record."""
    written: dict[str, WrittenCheckpoint] = {}
    for line in read_json_lines(run / WRITTEN):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            checkpoint = _read_line(line)
            written[checkpoint.name] = checkpoint
    return written


def _read_line(line: Mapping[str, Any]) -> WrittenCheckpoint:
    files: dict[str, FileState] = {}
    digests: dict[str, str] = {}
    for name, entry in line["files"].items():
        device, inode, size, modified, changed = map(int, entry["state"])
        files[str(name)] = (device, inode, size, modified, changed)
        if entry.get("digest"):
            digests[str(name)] = str(entry["digest"])
    attempt = line["attempt"]
    return WrittenCheckpoint(
        str(line["checkpoint"]),
        None if attempt is None else int(attempt),
        files,
        digests,
        whole=line.get("whole") is not False,
        found_after=line.get("found_after"),
    )


def read_layouts(run: Path, layout: Layout) -> RunLayouts:
    """Return the layouts of a run's checkpoints, each by the width of the attempt that wrote it.

    `layout` is that of the plan, for attempts that recorded no width. A checkpoint that is not
    recorded was written by the latest attempt.
    """
    by_attempt = attempt_layouts(run, layout)
    written = read_written(run)
    by_name = {
        name: by_attempt.get(checkpoint.writer or 0, layout) for name, checkpoint in written.items()
    }
    return RunLayouts(by_attempt.get(latest_attempt(run), layout), by_name)


def record_found(run: Path, checkpoint: Path, *, is_foreign: bool = False) -> None:
    """Record a checkpoint that a resume begins with, unless it is recorded. Raises OSError.

    It is called before the next attempt begins, so the latest one has written the checkpoint.
    `is_foreign`: the user has accepted files that differ from those that an attempt has recorded,
    and about which that attempt has proven nothing.
    """
    known = read_written(run).get(checkpoint.name)
    if known is not None and not is_foreign:
        return
    writer = known.writer if known is not None else latest_attempt(run)
    files = checkpoint_files(checkpoint)
    _append(run, WrittenCheckpoint(checkpoint.name, None, files, found_after=writer))


def record_last(run: Path, output: Path) -> None:
    """Record again what a run wrote last, once its processes have ended on all nodes.

    Another node may have written a file of it after the recorder of node 0 was closed. Checkpoints
    after which the run trained a step keep their record.
    """
    latest = max(1, latest_attempt(run))
    for checkpoint in read_written(run).values():
        if checkpoint.whole or checkpoint.attempt != latest:
            continue
        with contextlib.suppress(OSError):  # it was removed, or the disk is full
            files = checkpoint_files(output / checkpoint.name)
            is_same = files == checkpoint.files
            digests = checkpoint.digests if is_same else {}
            _append(run, replace(checkpoint, files=files, digests=digests, whole=True))


def writers_of(run: Path, checkpoint: str | None) -> list[int]:
    """Return the attempts that led to a checkpoint, the latest first: the one that wrote it, the one
    that wrote the checkpoint which that attempt resumed from, and so on.
    """
    written = read_written(run)
    resumed_from = {
        entry.get("attempt"): entry.get("resumed_from")
        for entry in read_json_lines(run / "attempts.jsonl")
    }
    attempts: list[int] = []
    while checkpoint in written:
        attempt = written[checkpoint].attempt
        if attempt is None or attempt in attempts:
            break
        attempts.append(attempt)
        checkpoint = resumed_from.get(attempt)
    return attempts


class _StoppedError(Exception):
    """The run has ended, so that its checkpoints are not read any further."""


class CheckpointRecorder:
    """Records the checkpoints that appear in a folder while a run trains.

    The state of the files is recorded at once, and their digests by a thread of the lowest priority:
    a resume needs digests only if states can't be compared, as for a copy. The thread also removes
    the converted checkpoint that the attempt began with, which may be as large, once there is one of
    its own width.
    """

    def __init__(self, run: Path, output: Path) -> None:
        self._run = run
        self._output = output
        self._attempt = max(1, latest_attempt(run))
        # The checkpoints that existed before this attempt, or that all ranks have written.
        self._settled = {folder.name for folder in self._folders()}
        # The checkpoints that were recorded while some rank may still have been writing a file.
        self._open: dict[str, dict[str, FileState]] = {}
        self._queue: queue.SimpleQueue[WrittenCheckpoint | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._lock = threading.Lock()  # it guards writes to checkpoints.jsonl
        self._thread = threading.Thread(target=self._digest_all, daemon=True)
        self._thread.start()

    @property
    def is_waiting(self) -> bool:
        """Whether some rank may still write a file of a checkpoint that is recorded."""
        return bool(self._open)

    def _folders(self) -> list[Path]:
        """Return the checkpoints, without those that are being written while later steps train."""
        try:
            folders = [path for path in self._output.iterdir() if names_checkpoint(path)]
        except OSError:
            return []
        return [folder for folder in folders if not is_being_written(folder)]

    def record_new(self, *, is_whole: bool) -> None:
        """Record the checkpoints that were written since the last call.

        `is_whole`: every rank has written its files, which is certain once it trains the next step.
        The run itself does not change them afterwards.
        """
        for folder in self._folders():
            if folder.name in self._settled:
                continue
            with contextlib.suppress(OSError):  # it is being removed, or the disk is full
                files = checkpoint_files(folder)
                if not files or self._open.get(folder.name) == files:
                    continue
                self._open[folder.name] = files
                checkpoint = WrittenCheckpoint(folder.name, self._attempt, files)
                self._write(checkpoint)
                self._queue.put(checkpoint)
        if is_whole:
            self._settled.update(self._open)
            self._open.clear()

    def close(self, *, is_writing: bool) -> None:
        """Stop, once no process of the run is left.

        `is_writing`: the run ended while it wrote a checkpoint. A half-written checkpoint is
        recognised by its files (checkpoints.py).
        """
        self._stopped.set()
        self._queue.put(None)
        self._thread.join()
        if is_writing or self._open:
            self._record_last()

    def _record_last(self) -> None:
        """Record the checkpoints after which the run trained no step."""
        written = read_written(self._run)
        for folder in self._folders():
            if folder.name in self._settled:
                continue
            with contextlib.suppress(OSError):  # it is being removed, or the disk is full
                files = checkpoint_files(folder)
                known = written.get(folder.name)
                digests = known.digests if known and known.files == files else {}
                self._write(
                    WrittenCheckpoint(folder.name, self._attempt, files, digests, whole=False)
                )

    def _write(self, checkpoint: WrittenCheckpoint) -> None:
        with self._lock:
            _append(self._run, checkpoint)

    def _digest_all(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _IDLE)
        while (checkpoint := self._queue.get()) is not None:
            # the ranks have read the converted one, and the next attempt reads the new one
            shutil.rmtree(self._run / CONVERTED, ignore_errors=True)
            with contextlib.suppress(OSError, _StoppedError):
                self._digest(checkpoint)

    def _digest(self, checkpoint: WrittenCheckpoint) -> None:
        """Add a checkpoint's digests to the record, unless it has changed or was removed meanwhile."""
        folder = self._output / checkpoint.name
        digests = {
            name: hash_file(folder / name, self._raise_if_stopped) for name in checkpoint.files
        }
        if checkpoint_files(folder) == checkpoint.files:
            self._write(
                WrittenCheckpoint(checkpoint.name, checkpoint.attempt, checkpoint.files, digests)
            )

    def _raise_if_stopped(self, size: int) -> None:
        if self._stopped.is_set():
            raise _StoppedError


def _append(run: Path, checkpoint: WrittenCheckpoint) -> None:
    files = {}
    for name, state in sorted(checkpoint.files.items()):
        entry: dict[str, object] = {"state": state}
        if name in checkpoint.digests:
            entry["digest"] = checkpoint.digests[name]
        files[name] = entry
    line: dict[str, object] = {"checkpoint": checkpoint.name, "attempt": checkpoint.attempt}
    if not checkpoint.whole:
        line["whole"] = False
    if checkpoint.found_after is not None:
        line["found_after"] = checkpoint.found_after
    line["files"] = files
    append_json(run / WRITTEN, versioned(line))
