"""The first rows of data as one row, by which a stage is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from launch.data.columns import rename_columns, unfold
from launch.data.labels import NAMES as LABELS
from launch.data.prompts import EMPTY
from launch.data.row_errors import RowError
from launch.data.rows import Row

_MERGED = 1000  # rows


@dataclass(frozen=True)
class FirstRows:
    """The columns of the first row, and what others have where that one has nothing."""

    columns: Mapping[str, object]  # with the names that launch knows
    place: str  # of the last row that adds a value to them
    labels: frozenset[float]  # numbers of the column with a label, over these rows

    @classmethod
    def of(cls, rows: Iterable[Row], names: Mapping[str, str]) -> FirstRows:
        """Merge the first rows; `names` are the rows' own names by those that launch knows. Rows that
        can't be used are passed over: the reading of all rows names them.
        """
        merged: dict[str, object] = {}
        place = ""
        labels: set[float] = set()
        for row in islice(rows, _MERGED):
            try:
                columns = unfold(rename_columns(row.value, names))
            except RowError:
                continue
            labels.update(_numbers(columns))
            added = {
                name: value
                for name, value in columns.items()
                if name not in merged or (_is_filled(value) and not _is_filled(merged[name]))
            }
            if any(map(_is_filled, added.values())):
                place = row.place
            merged.update(added)
        return cls(merged, place, frozenset(labels))


def _numbers(columns: Mapping[str, object]) -> list[float]:
    """Return the numbers of a row's label."""
    values = (columns.get(name) for name in LABELS)
    return [float(value) for value in values if isinstance(value, int | float)]


def _is_filled(value: object) -> bool:
    """Return whether a value, or something in it, is not empty."""
    if isinstance(value, dict):
        return any(map(_is_filled, value.values()))
    if isinstance(value, list):
        return any(map(_is_filled, value))
    return value not in EMPTY and str(value).strip() != ""
