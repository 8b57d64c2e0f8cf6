"""Look at the first rows of local data: whether they parse and convert, what they are, how many
there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from launch.config.schema import Kind
from launch.data.conversion import Conversion, find_heaviest
from launch.data.sources import DataFiles, LocalData
from launch.data.staging import load_staged
from launch.errors import UserError

FIRST_ROWS = 200
_CONVERSATIONS = {
    Kind.sft: ("messages",),
    **dict.fromkeys((Kind.dpo, Kind.rm), ("chosen", "rejected")),
    Kind.rlvr: ("prompt",),
}


@dataclass(frozen=True)
class DataStructure:
    """What the first rows of local data are."""

    files: tuple[Path, ...]
    read: int  # rows
    all_: bool  # whether there are no more rows than those read
    validation: int | None  # rows held out, where known
    formats: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()  # of the turns
    turns: tuple[int, int] = (0, 0)  # of a row: least, most
    unread: str | None = None  # why nothing was read
    notes: tuple[str, ...] = ()  # rows that are left out, and one that outweighs all others

    def describe(self) -> str:
        names = ", ".join(path.name for path in self.files[:3]) + (
            ", ..." if len(self.files) > 3 else ""
        )
        if self.unread:
            return f"{names}: not read, {self.unread}"
        rows = f"{self.read:,} rows" if self.all_ else f"the first {self.read:,} rows"
        least, most = self.turns
        turns = f"{least} to {most} turns" if least < most else f"{least} turns"
        facts = (
            f"{rows} read: {'; '.join(self.formats)}",
            f"{turns} ({', '.join(self.roles)})",
            *self.notes,
        )
        return f"{names}: {'; '.join(facts)}"


def read_structure(data: LocalData, rows: int | None = FIRST_ROWS) -> DataStructure:
    """Read and convert the first `rows` rows (None: all), without a tokenizer.

    Parquet is described as unread where pyarrow is missing. Raises UserError with what is wrong
    with the rows: see `Conversion.rows`.
    """
    conversion, notes = Conversion(data), list[str]()
    counts: list[int] = []
    sizes: list[tuple[str, int]] = []
    roles: dict[str, None] = {}  # in the order of their first use
    try:
        converted = conversion.rows(data.files.paths)
        for place, columns in islice(converted, rows):
            messages = columns[_CONVERSATIONS[data.kind][0]]
            counts.append(len(messages))
            roles.update({message["role"]: None for message in messages})
            sizes.append((place, _count_characters(columns, data.kind)))
        is_all = next(converted, None) is None
        notes += [*filter(None, [conversion.skipped]), *find_heaviest(sizes)]
        if isinstance(data.validation, DataFiles):
            held_out = Conversion(data)
            others = islice(held_out.rows(data.validation.paths), rows)
            sizes = [(place, _count_characters(columns, data.kind)) for place, columns in others]
            notes += [*filter(None, [held_out.skipped]), *find_heaviest(sizes, "held-out ")]
    except UserError as error:
        if error.problems[0].id == "parquet_needs_pyarrow":
            return DataStructure(
                data.files.paths, 0, False, None, unread="pyarrow is not installed here"
            )
        raise
    staged = load_staged(data)
    read, validation = len(counts), staged.validation if staged else None
    if staged:
        read, is_all = (
            staged.train + (0 if isinstance(data.validation, DataFiles) else staged.validation),
            True,
        )
    elif is_all and isinstance(data.validation, float):
        validation = round(data.validation * read)
    turns = (min(counts), max(counts))
    kept = staged.notes if staged else tuple(notes)
    return DataStructure(
        data.files.paths,
        read,
        is_all,
        validation,
        tuple(conversion.formats),
        tuple(roles),
        turns,
        notes=kept,
    )


def _count_characters(columns: Mapping[str, Any], kind: Kind) -> int:
    """Return the characters of a row's turns."""
    return sum(len(turn["content"]) for name in _CONVERSATIONS[kind] for turn in columns[name])
