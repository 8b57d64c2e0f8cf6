"""The first rows of data as one row, by which a stage is chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from launch.data.columns import COMPLETIONS, KNOWN, own_paths, rename_columns, unfold
from launch.data.labels import NAMES as LABELS
from launch.data.prompts import EMPTY
from launch.data.row_errors import RowError
from launch.data.rows import Row

_MERGED = 1000  # rows
# Columns that fit another kind of row or stage, which few rows do not decide for all.
_DECIDING = KNOWN - {*COMPLETIONS}


@dataclass(frozen=True)
class FirstRows:
    """The columns of the first row, and what others have where that one has nothing; but a column such
    as `label` or `rejected` only if half of the rows fill it.
    """

    columns: Mapping[str, object]  # with the names that launch knows
    place: str  # of the last row that adds a value to them
    labels: frozenset[float]  # numbers of the column with a label, over these rows
    own: Mapping[str, str]  # the file's names of columns, by those that launch knows

    @classmethod
    def of(cls, rows: Iterable[Row], names: Mapping[str, str]) -> FirstRows:
        """Merge the first rows; `names` are the rows' own names by those that launch knows. Rows that
        can't be used are passed over: the reading of all rows names them.
        """
        columns: dict[str, object] = {}
        places: dict[str, str] = {}  # of the first row that has a value, by the column
        filled: Counter[str] = Counter()  # rows
        labels: set[float] = set()
        read = 0
        first: Mapping[str, object] = {}
        own: dict[str, str] = {}
        for row in islice(rows, _MERGED):
            try:
                named = unfold(rename_columns(row.value, names), names)
            except RowError:
                continue
            first = first or named
            own = own or own_paths(row.value, names)
            read += 1
            labels.update(_numbers(named))
            for name, value in named.items():
                columns.setdefault(name, value)
                if not _is_filled(value):
                    continue
                filled[name] += 1
                if filled[name] == 1:
                    columns[name] = value
                    places[name] = row.place
        for name in _DECIDING & columns.keys():
            if 2 * filled[name] < read:
                columns[name] = first.get(name)
                places.pop(name, None)
        place = next((places[name] for name in reversed(places)), "")
        return cls(columns, place, frozenset(labels), own)


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
