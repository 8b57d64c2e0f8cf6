"""Look at the first rows of local data: whether they parse and convert, what they are, how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from launch.data.local import Conversion, DataFiles, LocalData
from launch.data.staging import load_staged
from launch.errors import UserError

FIRST_ROWS = 200


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

    def describe(self) -> str:
        names = ", ".join(path.name for path in self.files[:3]) + (", ..." if len(self.files) > 3 else "")
        if self.unread:
            return f"{names}: not read, {self.unread}"
        rows = f"{self.read:,} rows" if self.all_ else f"the first {self.read:,} rows"
        least, most = self.turns
        turns = f"{least} to {most} turns" if least < most else f"{least} turns"
        return f"{names}: {rows} read: {'; '.join(self.formats)}; {turns} ({', '.join(self.roles)})"


def read_structure(data: LocalData, rows: int = FIRST_ROWS) -> DataStructure:
    """Read and convert the first `rows` rows, without a tokenizer.

    Parquet is described as unread where pyarrow is missing. Raises UserError with what is wrong with the rows: see
    `Conversion.rows`.
    """
    conversion = Conversion(data)
    counts: list[int] = []
    roles: dict[str, None] = {}  # in the order of their first use
    try:
        converted = conversion.rows(data.files.paths)
        for _, columns in islice(converted, rows):
            messages = next(columns[name] for name in ("prompt", "chosen", "messages") if name in columns)
            counts.append(len(messages))
            roles.update({message["role"]: None for message in messages})
        is_all = next(converted, None) is None
        if isinstance(data.validation, DataFiles):
            for _ in islice(Conversion(data).rows(data.validation.paths), rows):
                pass
    except UserError as error:
        if error.problems[0].id == "parquet_needs_pyarrow":
            return DataStructure(data.files.paths, 0, False, None, unread="pyarrow is not installed here")
        raise
    staged = load_staged(data)
    read, held_out = len(counts), staged.validation if staged else None
    if staged:
        read, is_all = staged.train + (0 if isinstance(data.validation, DataFiles) else staged.validation), True
    elif is_all and isinstance(data.validation, float):
        held_out = round(data.validation * read)
    turns = (min(counts), max(counts))
    return DataStructure(data.files.paths, read, is_all, held_out, tuple(conversion.formats), tuple(roles), turns)
