"""Finds folders that take disk space and can be removed: checkpoints, caches and merged models.

Nothing is removed that a run resumes from, that a stage, a run or a pipeline names (`_Names`), or
that is in use (`find_use`). A link, or a folder that does not belong to a run, is never removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.config.schema import Family
from launch.errors import UserError
from launch.execution.merge import RECORD as MERGE_RECORD
from launch.execution.record.checkpoints import Checkpoint, Layout, find_checkpoints
from launch.execution.record.lock import find_holder, lock_path, run_lock
from launch.execution.record.outcome import folder_status, read_outcome
from launch.execution.record.run import Run, mapping
from launch.execution.record.written import read_layouts, read_written
from launch.files import read_text_or_empty
from launch.pipelines.links import FOLDER as PIPELINES
from launch.planning.find_runs import find_runs, resolve_run, run_name
from launch.resources import GROUPS, config_roots
from launch.slurm.jobs import find_job_folders
from launch.table import Column, Table, format_bytes

# {folder of the cache whose subfolders can be made again: how they are made again}
_CACHES = {
    "data": "the next run that needs this staged data stages it again",
    "tokenized": "the next run on this data tokenises it again",
    "reference_logprobs": "the next DPO run on this data computes them again",
    "demo": "the next run of the demo makes it again",
}
_TRASH = ".cleaned-"  # begins the name of a folder while it is being removed


@dataclass(frozen=True)
class Removable:
    """A folder that can be removed."""

    path: Path
    size: int  # bytes on the disk
    reason: str
    run: Path | None = None  # the run that it belongs to; None for a shared cache


@dataclass(frozen=True)
class Cleaning:
    """The folders below a folder of runs that can be removed, and similar ones that are kept."""

    runs: Path
    removable: tuple[Removable, ...]
    kept: tuple[tuple[Path, str], ...]  # each with the reason
    removed: tuple[Path, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of all folders that can be removed."""
        return sum(item.size for item in self.removable)

    def lines(self) -> list[str]:
        """Return what a terminal shows."""
        lines: list[str] = []
        if self.removable:
            table = Table.of("", _COLUMNS, [(self.runs, item) for item in self.removable])
            lines = table.lines()
        for path, reason in self.kept:
            lines.append(f"kept: {_relative(path, self.runs)}: {reason}")
        return lines

    def json_fields(self) -> dict[str, Any]:
        items = []
        for item in self.removable:
            removed = item.path in self.removed
            row = {"path": item.path, "bytes": item.size, "reason": item.reason, "removed": removed}
            items.append(row)
        kept = [{"path": path, "reason": reason} for path, reason in self.kept]
        return {"runs": self.runs, "bytes": self.size, "items": items, "kept": kept}


def _relative(path: Path, runs: Path) -> str:
    return str(path.relative_to(runs)) if path.is_relative_to(runs) else str(path)


_COLUMNS = [
    Column[tuple[Path, Removable]]("folder", lambda row: _relative(row[1].path, row[0])),
    Column[tuple[Path, Removable]]("size", lambda row: format_bytes(row[1].size)),
    Column[tuple[Path, Removable]]("what it means", lambda row: row[1].reason),
]


def find_removable(runs: Path, name: str | None = None) -> Cleaning:
    """Find what can be removed below a folder of runs; with a name, only of that run.

    The caches belong to all runs, so a name leaves them out. Raises UserError: unknown_run,
    ambiguous_run.
    """
    runs = runs.absolute()
    folders = find_runs(runs) if name is None else [resolve_run(name, runs)]
    finder = _Finder(runs, _Names.read(runs))
    for folder in folders:
        finder.look_into_run(folder)
    if name is None:
        finder.look_into_caches()
    return Cleaning(runs, tuple(finder.removable), tuple(finder.kept))


def remove(cleaning: Cleaning) -> Cleaning:
    """Remove what was found, except for folders that have come into use or been named since.

    A run's own folders are removed under the run's lock, after a second look for what can go.
    """
    removed: list[Path] = []
    kept = list(cleaning.kept)
    by_run: dict[Path | None, list[Removable]] = {}
    for item in cleaning.removable:
        by_run.setdefault(item.run, []).append(item)
    for run, items in by_run.items():
        if run is None:
            outcomes = [(item.path, _remove_cache(item.path, cleaning.runs)) for item in items]
        else:
            outcomes = list(_remove_of_run(run, items, cleaning.runs))
        for path, obstacle in outcomes:
            if obstacle is None:
                removed.append(path)
            else:
                kept.append((path, obstacle))
    return Cleaning(cleaning.runs, cleaning.removable, tuple(kept), tuple(removed))


@dataclass(frozen=True)
class _Names:
    """The texts that may name a folder: stages, and the records of runs and pipelines."""

    stages: tuple[tuple[Path, str], ...]  # the YAML of users and pipelines' records, by file
    by_run: dict[Path, str]  # plan.json and config.yaml

    @classmethod
    def read(cls, runs: Path) -> _Names:
        files: list[Path] = []
        for root in config_roots():
            for group in GROUPS:
                files += (root / group).glob("*.yaml")
        files += (runs / PIPELINES).glob("*/*.json")
        stages = tuple((file, read_text_or_empty(file)) for file in files)
        by_run = {}
        for folder in find_runs(runs):
            texts = [read_text_or_empty(folder / file) for file in ("plan.json", "config.yaml")]
            by_run[folder] = "\n".join(texts)
        return cls(stages, by_run)

    def find(self, *names: str, but: Path | None = None) -> str | None:
        """Return the file or the run that names a folder, or None.

        The folder's path ends with one of `names`; the run `but` is not searched.
        """
        for file, text in self.stages:
            if any(name in text for name in names):
                return str(file)
        for run, text in self.by_run.items():
            if run != but and any(name in text for name in names):
                return f"the run {run_name(run)}"
        return None

    def find_keeper(self, path: Path) -> str | None:
        """Return why a folder of a shared cache is kept; None if nothing needs it.

        The folder of a base, which `eval` and a merge load, is kept for what names it, and any
        other one for a run that is not finished.
        """
        name = f"{path.parent.name}/{path.name}"
        if path.name.startswith("model-"):
            named_by = self.find(name)
            return None if named_by is None else f"{named_by} names it"
        for run, text in self.by_run.items():
            if name in text and folder_status(run) != "done":
                return f"the run {run_name(run)} is not finished and needs it"
        return None


@dataclass
class _Finder:
    """Collects the folders that can be removed, and those that are kept."""

    runs: Path
    names: _Names
    removable: list[Removable] = field(default_factory=list)
    kept: list[tuple[Path, str]] = field(default_factory=list)

    def look_into_run(self, folder: Path) -> None:
        """Collect the removable folders of a run that is not running."""
        if not (folder / "plan.json").is_file() or folder.is_symlink():
            return
        if find_holder(lock_path(folder)) is not None:
            self.kept.append((folder, "the run is running"))
            return
        self.collect_of_run(folder)

    def collect_of_run(self, folder: Path) -> None:
        """Collect the checkpoints and the merged model of a run."""
        other_format = Run(folder).other_format
        if other_format is not None:
            self.kept.append((folder, str(other_format)))
            return
        for checkpoint, reason in _unneeded_checkpoints(folder):
            self._add(checkpoint, reason, folder, "model")
        merged = folder / "merged"
        if (merged / MERGE_RECORD).is_file():
            self._add(merged, f"`launch merge {run_name(folder)}` makes it again", folder)

    def _add(self, path: Path, reason: str, run: Path, *between: str) -> None:
        """Add a folder of a run, unless something else names it."""
        if path.is_symlink():
            return
        name = run_name(run)
        full_name = "/".join((name, *between, path.name))
        named_by = self.names.find(full_name, f"{name}/{path.name}", but=run)
        if named_by is not None:
            self.kept.append((path, f"{named_by} names it"))
            return
        self.removable.append(Removable(path, _size(path), reason, run))

    def look_into_caches(self) -> None:
        """Collect the folders of the shared caches that no unfinished run needs."""
        obstacle = find_use(self.runs)
        for kind, reason in _CACHES.items():
            for path in sorted((self.runs / ".cache" / kind).glob("[!.]*")):
                if path.is_symlink() or not path.is_dir():
                    continue
                keeper = obstacle or self.names.find_keeper(path)
                if keeper is None:
                    self.removable.append(Removable(path, _size(path), reason))
                else:
                    self.kept.append((path, keeper))


def find_use(runs: Path) -> str | None:
    """Return why nothing in the shared caches can be removed, because a run may be using them; None
    if it can.
    """
    for lock in (*runs.glob("[!.]*/.*.lock"), *runs.glob("[!.]*/*/.*.lock")):
        if find_holder(lock) is not None:
            return "a run is running, which may use it"
    for lock in (runs / ".cache").glob("*/.users/*.lock"):
        if find_holder(lock) is not None:
            return "a run is building tokenised data"
    for run in find_job_folders(runs):
        if folder_status(run) != "done":
            return f"the submitted run {run_name(run)} has not finished and may need it"
    return None


def _unneeded_checkpoints(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the checkpoints of a run that nothing will resume from, with the reason.

    An unfinished run keeps the last complete checkpoint that it wrote, and all after it; it also
    keeps the one that a guard named as the last good one. A run that ends with its best checkpoint
    keeps all.
    """
    run = Run(folder)
    layout = _read_layout(run)
    if layout is None:
        return
    checkpoints = find_checkpoints(folder / "model", read_layouts(folder, layout))
    if folder_status(folder) == "done":
        for checkpoint in checkpoints:
            yield checkpoint.path, "the run is finished and does not resume"
        return
    if mapping(run.settings.get("recipe")).get("early_stop") is not None:
        return
    last = _last_resumable(folder, checkpoints)
    if last is None:
        return
    outcome = read_outcome(folder)
    good = outcome.checkpoint if outcome is not None else None
    for checkpoint in checkpoints[: checkpoints.index(last)]:
        if str(checkpoint.path) != good:
            yield checkpoint.path, f"the run resumes from {last.path.name}"


def _last_resumable(folder: Path, checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the last complete checkpoint that the run recorded; None without one."""
    written = read_written(folder)
    for checkpoint in reversed(checkpoints):
        if checkpoint.complete and checkpoint.path.name in written:
            return checkpoint
    return None


def _read_layout(run: Run) -> Layout | None:
    """Return the layout of a run's checkpoints; None if its record does not have it."""
    family = mapping(run.settings.get("trainer")).get("family")
    width = mapping(run.plan.get("batch")).get("width")
    zero_stage = mapping(run.plan.get("parallel")).get("zero_stage")
    if family not in list(Family) or not isinstance(width, int):
        return None
    return Layout(Family(family), width, zero_stage if isinstance(zero_stage, int) else None)


def _remove_of_run(
    run: Path, items: Sequence[Removable], runs: Path
) -> Iterator[tuple[Path, str | None]]:
    """Remove folders of a run under its lock; yield each, with the reason if it is kept."""
    try:
        with run_lock(run, lambda _: None):
            finder = _Finder(runs, _Names.read(runs))
            finder.collect_of_run(run)
            still_spare = {item.path for item in finder.removable}
            for item in items:
                is_spare = item.path in still_spare
                yield item.path, _remove_folder(item.path) if is_spare else "it is needed now"
    except UserError as error:
        for item in items:
            yield item.path, error.problems[0].message


def _remove_cache(path: Path, runs: Path) -> str | None:
    """Remove a folder of a shared cache; return the reason if it is kept.

    The folder is renamed first. A run that found it before the rename holds its lock by now, and a
    stage or a plan that was written meanwhile names it: then the folder gets its name back.
    """
    trash = path.with_name(f"{_TRASH}{path.name}")
    try:
        path.rename(trash)
    except OSError as error:
        return f"it can't be removed: {error.strerror}"
    obstacle = find_use(runs) or _Names.read(runs).find_keeper(path)
    if obstacle is not None:
        with contextlib.suppress(OSError):  # the run may have made it again meanwhile
            trash.rename(path)
            return obstacle
    return _remove_folder(trash)


def _remove_folder(path: Path) -> str | None:
    """Remove a folder; return the reason if it is kept."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        return f"it can't be removed: {error.strerror}"
    return None


def _size(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk; a file with two links counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for parent, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                state = os.lstat(Path(parent, name))
                sizes[state.st_dev, state.st_ino] = state.st_blocks * 512
    return sum(sizes.values())
