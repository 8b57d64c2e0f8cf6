"""Stages local data: writes a converted copy into the cache, keyed by content, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.config.kinds import Kind
from launch.data.conversion import Conversion, find_heaviest
from launch.data.label_balance import LabelCount, count_labels
from launch.data.row_file import RowFile, encode_row
from launch.data.sources import (
    TRAIN_FILE,
    VALIDATION_FILE,
    DataFiles,
    LocalData,
    digest_files,
    file_format,
)
from launch.digests import Digest, digest_folder, hash_file
from launch.errors import UserError, refusal
from launch.files import load_json, read_file, write_json
from launch.worker.json_codec import decode, versioned
from launch.worker.trl_data import choose_limit, hash_row
from launch.worker.wording import noun_for

ABOUT_FILE = "about.json"
# By compression: how many bytes the copy has for a byte of the file, in most cases at most.
_GROWTH = {"": 1.2, ".gz": 8.0, ".bz2": 8.0, ".xz": 10.0}


@dataclass(frozen=True)
class StagedRows:
    """What a staged folder contains."""

    train: int
    validation: int
    formats: Mapping[str, int]  # how the rows were converted -> rows
    shared: int = 0  # validation rows that are also trained on
    notes: tuple[str, ...] = ()  # rows that were left out, and one that outweighs all others
    labels: LabelCount | None = None  # of the rows to train on; None without labels

    def describe(self) -> str:
        rows = f"{self.train:,} {noun_for(self.train, 'row')}"
        if self.validation:
            rows += f" and {self.validation:,} for validation"
        return f"{rows}: {'; '.join((*self.formats, *self.notes))}"


def load_staged(data: LocalData) -> StagedRows | None:
    """Return what is staged already; None if nothing is."""
    try:
        return decode(StagedRows, read_file(data.folder / ABOUT_FILE))
    except (OSError, ValueError):
        return None


def is_staged(data: LocalData, digest: Digest) -> bool:
    """Return whether the data is staged, and its files are those that were written."""
    try:
        written = load_json(data.folder / ABOUT_FILE)["digests"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    found = digest_folder(data.folder, digest, ABOUT_FILE.__eq__)
    return load_staged(data) is not None and bool(found) and written == found


def stage(data: LocalData, digest: Digest) -> StagedRows | None:
    """Convert the data into its folder. Returns None if it has been staged before.

    A folder whose files are no longer those that were written is staged again.

    `digest` returns the digest of a file's present content.

    Raises UserError: data_changed, data_disk_full, data_split, and those of `Conversion.rows`.
    """
    if is_staged(data, digest):
        return None
    _check_unchanged(data, digest)
    parent = data.folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _check_disk_space(data, parent)
        building = Path(tempfile.mkdtemp(prefix=f".{data.key}.", dir=parent))
    except OSError as error:
        raise _write_error(data, error) from error
    try:
        staged = _write(data, building)
        _check_unchanged(data, digest)
        building.chmod(0o755)  # mkdtemp's 0700 would hide it from other users of the cache
        with contextlib.suppress(OSError):  # another launcher may have put the same rows there
            building.rename(data.folder)
        # the process that wrote it was killed, or somebody has changed its files
        if not is_staged(data, digest):
            shutil.rmtree(data.folder, ignore_errors=True)
            building.rename(data.folder)
        return staged
    except OSError as error:
        raise _write_error(data, error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def count_trained_elsewhere(sets: Sequence[LocalData]) -> int:
    """Return how many held-out rows of one staged data set another one trains on. Each data set is
    split separately.
    """
    shared = 0
    for data in sets:
        held_out = data.folder / VALIDATION_FILE
        if not isinstance(data.validation, float) or not held_out.is_file():
            continue
        trained: set[int] = set()
        for other in sets:
            if other.folder != data.folder:
                trained.update(_hash_lines(other.train_file))
        shared += sum(row_hash in trained for row_hash in _hash_lines(held_out))
    return shared


def _hash_lines(file: Path) -> Iterator[int]:
    """Yield the hash of each row of a staged file."""
    with file.open("rb") as stream:
        for line in stream:
            yield hash_row(line.rstrip(b"\n"))


def _write(data: LocalData, folder: Path) -> StagedRows:
    """Write the converted rows, those that are held out, and the description of both."""
    conversion = Conversion(data)
    train = folder / TRAIN_FILE
    validation = folder / VALIDATION_FILE
    trained_hashes = _write_rows(conversion, data.files.paths, train)
    rows = len(trained_hashes)
    held_out = 0
    shared = 0
    if isinstance(data.validation, DataFiles):
        hashes = _write_rows(conversion, data.validation.paths, validation)
        held_out = len(hashes)
        trained = set(trained_hashes)
        shared = sum(row_hash in trained for row_hash in hashes)
    elif data.validation is not None:
        held_out = _split(train, trained_hashes, validation, data.validation, data.where)
        rows -= held_out
    notes = conversion.notes(_line_sizes(train, data.folder))
    if held_out:
        notes += find_heaviest(_line_sizes(validation, data.folder), "held-out ")
    labels = count_labels(train) if data.kind == Kind.kto else None
    staged = StagedRows(rows, held_out, conversion.formats, shared, tuple(notes), labels)
    about = {
        **versioned(staged),
        "files": data.sources,
        "digests": digest_folder(folder, hash_file),
    }
    write_json(folder / ABOUT_FILE, about)
    return staged


def _write_rows(conversion: Conversion, files: tuple[Path, ...], path: Path) -> array[int]:
    """Write the converted rows of files; return the hash of each, in the order of the file."""
    hashes = array("Q")
    with path.open("wb") as stream:
        written = RowFile(path, stream)
        for _, columns in conversion.rows(files):
            hashes.append(hash_row(written.write(columns)))
    hashes.insert(0, hashes.pop(written.finish()))
    return hashes


def _line_sizes(file: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the place and the number of characters of each row.

    `folder` is the folder to which the file will be moved.
    """
    place = folder / file.name
    with file.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            yield f"{place}:{number}", len(line)


def _split(
    train: Path, hashes: array[int], validation: Path, share: float, where: str | None
) -> int:
    """Move a share of the rows to `validation`, and return how many these are.

    Their hashes decide which rows are moved, as in `launch.worker.trl_data`.

    Raises UserError: data_split.
    """
    try:
        limit = choose_limit(hashes, share)
    except ValueError as error:
        cure = "set another share, or name a file with data.validation=FILE"
        raise refusal("data_split", f"data.validation={share:g}: {error}", where, cure) from error
    rest = train.with_name(".rest")
    held_out = 0
    with train.open("rb") as stream, rest.open("wb") as kept, validation.open("wb") as split:
        for line, row_hash in zip(stream, hashes, strict=True):
            if row_hash <= limit:
                split.write(line)
                held_out += 1
            else:
                kept.write(line)
    rest.replace(train)
    return held_out


def leave_out_held(
    rows: Iterator[tuple[str, Any]], data: LocalData, whole: Sequence[Path]
) -> Iterator[tuple[str, Any]]:
    """Yield the converted rows without those that the staging will hold out, or has held out."""
    limit = -1
    if isinstance(data.validation, float) and whole:
        hashes = array("Q")
        for file in whole:
            with file.open("rb") as lines:
                hashes.extend(map(hash_row, lines))
        with contextlib.suppress(ValueError):  # the staging refuses such a share
            limit = choose_limit(hashes, data.validation)
    for place, columns in rows:
        if limit < 0 or hash_row(encode_row(columns)) > limit:
            yield place, columns


def _check_unchanged(data: LocalData, digest: Digest) -> None:
    """Raise UserError (data_changed) unless the files are those that were planned."""
    for files in (data.files, data.validation):
        if isinstance(files, DataFiles) and digest_files(files.paths, digest) != files.digest:
            names = ", ".join(str(path) for path in files.paths[:3])
            message = f"{names} changed while being read"
            cure = "start again when it is written completely"
            raise refusal("data_changed", message, data.where, cure)


def _check_disk_space(data: LocalData, folder: Path) -> None:
    """Raise UserError (data_disk_full) unless the disk has space for the converted copy."""
    needed = 0.0
    for path in data.sources:
        _, compression = file_format(path)
        needed += path.stat().st_size * _GROWTH[compression]
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise _disk_full(data, f"{free / 2**30:.1f} GiB free for about {needed / 2**30:.1f} GiB")


def _write_error(data: LocalData, error: OSError) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _disk_full(data, os.strerror(error.errno))
    message = (
        f"the converted data can't be written to {data.folder.parent}: {error.strerror or error}"
    )
    return refusal("data_not_staged", message, "cache", "set cache= to a writable folder")


def _disk_full(data: LocalData, reason: str) -> UserError:
    message = f"no disk space for the converted copy of the data in {data.folder.parent}: {reason}"
    cure = "free disk space, or set cache= to a larger disk"
    return refusal("data_disk_full", message, "cache", cure)
