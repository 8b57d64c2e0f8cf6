"""The rows of local data, converted one after another; which of them can't be used, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from launch.config.schema import DataFormat
from launch.data.formats import (
    RowError,
    columns_of,
    convert,
    describe_conversion,
    normalise_names,
    recognise,
)
from launch.data.rows import Row, read_rows
from launch.data.sources import LocalData
from launch.errors import UserError, refusal
from launch.worker.finding import Finding, Fix

MAX_PROBLEMS = 3  # reported at once
_UNKNOWN_ROWS = 1000  # of a file, without one that is recognised: no other is read


@dataclass
class Conversion:
    """Converts the rows of files one after another, and remembers what they were."""

    data: LocalData
    formats: dict[str, int] = field(default_factory=dict)  # description -> rows
    faults: dict[str, int] = field(default_factory=dict)  # what is wrong with rows -> rows
    problems: list[Finding] = field(default_factory=list)  # of the first rows that can't be used

    def rows(self, files: tuple[Path, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the place and the converted columns of each row; from the first one that can't be
        used on, the rest is only counted, unless such rows are skipped.

        Raises UserError for rows that can't be used: data_columns, data_row, data_roles,
        data_no_answer, data_pair, data_mixed, data_not_parsed; for more than MAX_PROBLEMS bad_rows;
        data_empty, and those of `read_rows`.
        """
        used = 0
        for row in chain.from_iterable(map(self._rows_of, files)):
            used += 1
            if self.data.skips or not self.problems:
                yield row
        if self.problems and not (self.data.skips and used):
            raise UserError(self._refusals(used))

    @property
    def skipped(self) -> str | None:
        """Describe the rows that can't be used: how many, why, and the first; None without any."""
        bad = sum(self.faults.values())
        if not bad:
            return None
        reasons = sorted(self.faults.items(), key=lambda reason: -reason[1])
        named = "; ".join(f"{count:,}: {reason}" for reason, count in reasons[:MAX_PROBLEMS])
        named += (
            f"; and {len(reasons) - MAX_PROBLEMS} more reasons"
            if len(reasons) > MAX_PROBLEMS
            else ""
        )
        total = bad + sum(self.formats.values())
        return f"{bad:,} of {total:,} rows can't be used ({named}; first: {self.problems[0].where})"

    def _refusals(self, used: int) -> list[Finding]:
        bad, first = sum(self.faults.values()), self.problems[0]
        if not used:  # nothing is left without them
            return [first] if first.id == "data_columns" else self.problems
        if bad <= MAX_PROBLEMS:
            return [replace(problem, cure=_or_skip(problem.cure)) for problem in self.problems]
        return [Finding.error("bad_rows", str(self.skipped), self.data.where, _or_skip(first.cure))]

    def _rows_of(self, file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        form, is_empty, unknown = self.data.format, True, 0
        for row in read_rows(file):
            is_empty = False
            try:
                if isinstance(row.value, Finding):
                    raise RowError(row.value.message, row.value.cure, row.value.id)
                named = self._rename(row)
                if form == DataFormat.auto:
                    form = recognise(named, self.data.kind)
                columns = convert(named, form, self.data.kind)
                description = describe_conversion(form, columns_of(named, form), self.data.kind)
            except RowError as error:
                unknown += form == DataFormat.auto
                self._note(self._mixed(row, form, error) or error.problem(row.place))
                if unknown == _UNKNOWN_ROWS:
                    return
                continue
            self.formats[description] = self.formats.get(description, 0) + 1
            yield row.place, columns
        if is_empty:
            raise refusal("data_empty", "the file has no rows", str(file))

    def _note(self, problem: Finding) -> None:
        reason = re.sub(r"\bturn \d+ of\b", "a turn of", problem.message)
        self.faults[reason] = self.faults.get(reason, 0) + 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def _rename(self, row: Row) -> Mapping[str, object]:
        if not isinstance(row.value, dict):
            return convert(row.value, DataFormat.chat, self.data.kind)  # raises
        if not self.data.columns:
            return normalise_names(row.value)
        theirs = {name: known for known, name in self.data.columns.items()}
        missing = [name for name in theirs if name not in row.value]
        if len(missing) == len(theirs):
            has = ", ".join(map(repr, row.value))
            raise RowError(
                f"there is no column {missing[0]!r}, which data.columns names; the row has {has}"
            )
        kept = {name: value for name, value in row.value.items() if name not in self.data.columns}
        return {theirs.get(name, name): value for name, value in kept.items()}

    def _mixed(self, row: Row, form: DataFormat, error: RowError) -> Finding | None:
        """Return the problem of a file with two kinds of rows; None if this row is faulty in
        itself.
        """
        if (
            self.data.format != DataFormat.auto
            or form == DataFormat.auto
            or not isinstance(row.value, dict)
        ):
            return None
        try:
            other = recognise(self._rename(row), self.data.kind)
        except RowError:
            return None
        if other == form:
            return None
        message = f"this is a row of {other}, and the rows before it are {form}"
        return Finding.error(
            "data_mixed", message, row.place, "split the file: one kind of row in each"
        )


def _or_skip(cure: Fix | None) -> Fix:
    start = f"{cure}; or" if cure else "repair them, or"
    return Fix.of(f"{start} set {{0}} to leave such rows out", "data.bad_rows=skip")


def find_heaviest(sizes: Iterable[tuple[str, int]], kind: str = "") -> tuple[str, ...]:
    """Name the row that outweighs all others; `sizes` are the place and the characters of each
    row.
    """
    count, total, heaviest = 0, 0, ("", 0)
    for place, size in sizes:
        count, total, heaviest = (
            count + 1,
            total + size,
            max(heaviest, (place, size), key=lambda row: row[1]),
        )
    if count < 2 or 2 * heaviest[1] <= total:
        return ()
    return (
        (
            f"one row has {heaviest[1]:,} of the {total:,} characters of {count:,} {kind}rows: "
            f"{heaviest[0]}"
        ),
    )
