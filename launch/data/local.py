"""Describe the local data of a plan: its files, how they are read, and the folder of its converted copy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.config.schema import DataFormat, Kind
from launch.data.formats import RowError, columns_of, convert, describe_conversion, normalise_names, recognise
from launch.data.rows import Row, read_rows
from launch.data.sources import file_format
from launch.errors import Problem, UserError

CONVERTER = 2  # raise it when the same files would be converted to other rows
TRAIN_FILE = "train.jsonl"
VALIDATION_FILE = "validation.jsonl"
MAX_PROBLEMS = 3  # reported at once


@dataclass(frozen=True)
class DataFiles:
    """Files, and what their bytes are known by."""

    paths: tuple[Path, ...]
    digest: str


Digest = Callable[[Path], str | None]  # of a local path's content; None for one that is not here


def digest_files(paths: Sequence[Path], digest: Digest) -> str | None:
    """Return a digest of the bytes of files and of how they are read; None if one of them is missing."""
    digests = [digest(path) for path in paths]
    if not all(digests):
        return None
    parts = [f"{''.join(file_format(path))}:{value}" for path, value in zip(paths, digests, strict=True)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class LocalData:
    """Local data, staged as `folder/train.jsonl` before a run; nothing of the user's is changed.

    The folder's name is a key over the content of the files and everything that decides the converted rows, so that an
    edited row gives another folder, another tokenised cache and another identity of the plan.
    """

    files: DataFiles
    kind: Kind
    format: DataFormat
    columns: Mapping[str, str]  # name that launch knows -> name in the rows
    cache: Path
    where: str | None = None  # the key that the data is from
    validation: DataFiles | float | None = None  # files, or a share of the rows

    @property
    def key(self) -> str:
        held_out = self.validation.digest if isinstance(self.validation, DataFiles) else self.validation
        parts = [CONVERTER, self.files.digest, self.kind.value, self.format.value, dict(self.columns), held_out]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def folder(self) -> Path:
        return self.cache / "data" / self.key

    @property
    def train_file(self) -> Path:
        return self.folder / TRAIN_FILE

    @property
    def sources(self) -> tuple[Path, ...]:
        held_out = self.validation.paths if isinstance(self.validation, DataFiles) else ()
        return (*self.files.paths, *held_out)


@dataclass
class Conversion:
    """Converts the rows of files one after another, and remembers what they were."""

    data: LocalData
    formats: dict[str, int] = field(default_factory=dict)  # description -> rows

    def rows(self, files: tuple[Path, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the place and the converted columns of each row.

        Raises UserError with up to MAX_PROBLEMS rows that can't be used: data_columns, data_row, data_roles,
        data_no_answer, data_pair, data_mixed, data_empty; and those of `read_rows`.
        """
        problems: list[Problem] = []
        for file in files:
            try:
                yield from self._rows_of(file, problems)
            except UserError as error:
                raise UserError(list(dict.fromkeys([*problems, *error.problems]))) from error
        if problems:
            raise UserError(problems)

    def _rows_of(self, file: Path, problems: list[Problem]) -> Iterator[tuple[str, dict[str, Any]]]:
        form, is_empty = self.data.format, True
        for row in read_rows(file):
            is_empty = False
            try:
                named = self._rename(row)
                if form == DataFormat.auto:
                    form = self._recognise(named, row.place)
                columns = convert(named, form, self.data.kind)
                description = describe_conversion(form, columns_of(named, form), self.data.kind)
            except RowError as error:
                problems.append(self._mixed(row, form, error) or error.problem(row.place))
                if len(problems) == MAX_PROBLEMS:
                    raise UserError(problems) from error
                continue
            self.formats[description] = self.formats.get(description, 0) + 1
            yield row.place, columns
        if is_empty:
            raise UserError(Problem("data_empty", "the file has no rows", str(file)))

    def _recognise(self, row: Mapping[str, object], place: str) -> DataFormat:
        """Recognise the file by its first row. Raises UserError: data_columns, for all of its rows."""
        try:
            return recognise(row, self.data.kind)
        except RowError as error:
            raise UserError(error.problem(place)) from error

    def _rename(self, row: Row) -> Mapping[str, object]:
        if not isinstance(row.value, dict):
            return convert(row.value, DataFormat.chat, self.data.kind)  # raises
        if not self.data.columns:
            return normalise_names(row.value)
        theirs = {name: known for known, name in self.data.columns.items()}
        missing = [name for name in theirs if name not in row.value]
        if len(missing) == len(theirs):
            has = ", ".join(map(repr, row.value))
            raise RowError(f"there is no column {missing[0]!r}, which data.columns names; the row has {has}")
        kept = {name: value for name, value in row.value.items() if name not in self.data.columns}
        return {theirs.get(name, name): value for name, value in kept.items()}

    def _mixed(self, row: Row, form: DataFormat, error: RowError) -> Problem | None:
        """Return the problem of a file with two kinds of rows; None if this row is faulty in itself."""
        if self.data.format != DataFormat.auto or form == DataFormat.auto or not isinstance(row.value, dict):
            return None
        try:
            other = recognise(self._rename(row), self.data.kind)
        except RowError:
            return None
        if other == form:
            return None
        message = f"this is a row of {other}, and the rows before it are {form}"
        return Problem("data_mixed", message, row.place, "split the file: one kind of row in each")
