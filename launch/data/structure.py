"""Reads and converts the first rows of local data, and describes their formats, roles and turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from launch.config.kinds import KINDS, DataFormat, Kind
from launch.data.columns import TEXT
from launch.data.conversion import Conversion
from launch.data.label_balance import LabelCount
from launch.data.sources import DataFiles, LocalData
from launch.data.staging import load_staged
from launch.errors import UserError
from launch.worker.wording import count_of, noun_for

FIRST_ROWS = 200


@dataclass(frozen=True)
class DataStructure:
    """The formats, roles and turns of the first rows of local data."""

    files: tuple[Path, ...]
    read: int  # number of rows that were read
    all_: bool  # whether these are all rows
    # Number of these rows that are held out; None if it is not known, and where other files are.
    validation: int | None
    formats: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()  # roles of the turns
    turns: tuple[int, int] = (0, 0)  # least and largest number of turns in a row; 0 of plain text
    not_read_because: str | None = None  # None: the rows were read
    notes: tuple[str, ...] = ()  # rows that are left out, and one that outweighs all others
    labels: LabelCount | None = None  # of KTO's answers; None without labels

    def describe(self) -> str:
        """Describe the data in a line."""
        names = ", ".join(path.name for path in self.files[:3])
        if len(self.files) > 3:
            names += ", ..."
        if self.not_read_because:
            return f"{names}: not read, {self.not_read_because}"
        rows = f"{self.read:,} {noun_for(self.read, 'row')}"
        if not self.all_:
            rows = f"the first {rows}"
        facts = [f"{rows} read: {'; '.join(self.formats)}"]
        least, most = self.turns
        if most:
            turns = count_of(most, "turn")
            if least < most:
                turns = f"{least} to {turns}"
            facts.append(f"{turns} ({', '.join(self.roles)})")
        return f"{names}: {'; '.join((*facts, *self.notes))}"


def read_structure(data: LocalData, rows: int | None = FIRST_ROWS) -> DataStructure:
    """Read and convert the first `rows` rows (None: all), without a tokenizer.

    Parquet files are not read if pyarrow is missing, and the description explains it. Raises
    UserError: those of `Conversion.rows`.
    """
    try:
        structure = _read_rows(data, rows)
    except UserError as error:
        if error.problems[0].id == "parquet_needs_pyarrow":
            why = "pyarrow is not installed here"
            return DataStructure(data.files.paths, 0, False, None, not_read_because=why)
        raise
    staged = load_staged(data)
    if staged is None:
        return structure
    held_out = None
    if not isinstance(data.validation, DataFiles):  # the held-out rows are from the same files
        held_out = staged.validation
    read = staged.train + (held_out or 0)
    return replace(
        structure,
        read=read,
        all_=True,
        validation=held_out,
        notes=staged.notes,
        labels=staged.labels,
    )


def _read_rows(data: LocalData, rows: int | None) -> DataStructure:
    """Read the first `rows` rows of the data, and those of its validation files."""
    conversion = Conversion(data)
    conversation = _texts_of(data)[0]  # both sides of a pair have the same turns
    turns: list[int] = []
    sizes: list[tuple[str, int]] = []
    roles: dict[str, None] = {}  # in the order of their first use
    converted = conversion.rows(data.files.paths)
    for place, columns in islice(converted, rows):
        messages = [] if data.format == DataFormat.text else columns[conversation]
        turns.append(len(messages))
        roles.update({message["role"]: None for message in messages})
        sizes.append((place, _count_characters(columns, data)))
    conversion.check_scale()
    notes = conversion.notes(sizes)  # of these rows, without the next one
    is_all = next(converted, None) is None
    held_out = None
    if isinstance(data.validation, DataFiles):
        notes += _note_held_out(data, data.validation, rows)
    elif is_all and data.validation is not None:
        held_out = round(data.validation * len(turns))
    return DataStructure(
        files=data.files.paths,
        read=len(turns),
        all_=is_all,
        validation=held_out,
        formats=tuple(conversion.formats),
        roles=tuple(roles),
        turns=(min(turns), max(turns)),
        notes=tuple(notes),
        labels=conversion.labels if data.kind == Kind.kto else None,
    )


def _note_held_out(data: LocalData, files: DataFiles, rows: int | None) -> list[str]:
    """Read the first rows of the validation files, and return the notes about them."""
    conversion = Conversion(data)
    converted = islice(conversion.rows(files.paths), rows)
    sizes = [(place, _count_characters(columns, data)) for place, columns in converted]
    conversion.check_scale()
    return conversion.notes(sizes, "held-out ")


def _texts_of(data: LocalData) -> tuple[str, ...]:
    """Return the converted columns that hold what is read."""
    return (TEXT,) if data.format == DataFormat.text else KINDS[data.kind].conversations


def _count_characters(columns: Mapping[str, Any], data: LocalData) -> int:
    """Count the characters of a row's turns, or of its text."""
    characters = 0
    for name in _texts_of(data):
        value = columns[name]
        texts = [value] if isinstance(value, str) else [turn["content"] for turn in value]
        characters += sum(map(len, texts))
    return characters
