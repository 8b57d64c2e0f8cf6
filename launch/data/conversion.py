"""Converts the rows of local data one after another, and records which can't be used, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from launch.config.kinds import KINDS, DataFormat, Kind
from launch.data.cells import ListedTexts
from launch.data.columns import (
    TEXT,
    columns_of,
    columns_of_texts,
    own_paths,
    rename_columns,
    rename_path,
    unfold,
)
from launch.data.doubtful import DoubtfulTexts
from launch.data.formats import convert, describe_conversion, ends_with_answer, recognise
from launch.data.label_balance import LabelCount
from launch.data.labels import LabelColumn, own_names
from launch.data.marks import MarkCount
from launch.data.padding import Padding
from launch.data.rendered import RenderedRows
from launch.data.row_errors import RowError
from launch.data.rows import Row, read_rows
from launch.data.scales import Scale
from launch.data.sources import LocalData
from launch.data.system_turns import merge_system_turns
from launch.data.tables import KeyPath
from launch.data.unused import UnusedColumns
from launch.errors import UserError, refusal
from launch.worker.finding import Finding, Fix
from launch.worker.wording import count_of

MAX_PROBLEMS = 3  # reported at once
# A file is given up after so many rows if none of them is recognised.
_MAX_UNKNOWN_ROWS = 1000


@dataclass
class Conversion:
    """Converts the rows of files one after another, and remembers what they were."""

    data: LocalData
    formats: dict[str, int] = field(default_factory=dict)  # description -> rows
    faults: dict[str, int] = field(default_factory=dict)  # reason why rows can't be used -> rows
    # problems of the first rows that can't be used
    problems: list[Finding] = field(default_factory=list)
    padding: Padding = field(default_factory=Padding)
    unused: UnusedColumns = field(init=False)
    scale: Scale = field(init=False)
    rendered: RenderedRows = field(default_factory=RenderedRows)
    doubtful: DoubtfulTexts = field(default_factory=DoubtfulTexts)
    merged: int = 0  # rows whose system turn was put into the first user turn
    lists: ListedTexts = field(default_factory=ListedTexts)
    marks: MarkCount = field(default_factory=MarkCount)
    labels: LabelCount = field(default_factory=LabelCount)
    answered: int = 0  # rows of prompts whose final answer is left out

    def __post_init__(self) -> None:
        self.unused = UnusedColumns(is_verified=self.data.kind == Kind.rlvr)
        self.scale = Scale(self.data.kind, self._label)

    def rows(self, files: tuple[Path, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the place and the converted columns of each row.

        After the first row that can't be used, the others are only counted, unless such rows are
        skipped.

        Raises UserError for rows that can't be used: data_columns, data_row, data_roles,
        data_marks, data_no_answer, data_pair, data_label, data_mixed, data_not_parsed; for more
        than MAX_PROBLEMS bad_rows; data_empty, and those of `read_rows`.
        """
        used = 0
        for file in files:
            for row in self._rows_of(file):
                used += 1
                if self.data.skips or not self.problems:
                    yield row
        self.check_scale()
        if self.problems and not (self.data.skips and used):
            raise UserError(self._refusals(used))
        self.lists.check(self._columns)

    def check_scale(self) -> None:
        """Refuse the rows so far if the values that judge their answers are of another scale, also
        where rows that can't be used are skipped. Raises UserError: data_pair, data_label.
        """
        problem = self.scale.problem()
        if problem is not None:
            raise UserError(problem)

    @cached_property
    def _columns(self) -> Mapping[str, str]:
        """The rows' own names of columns, by those that launch knows."""
        return own_names(self.data.columns)

    @cached_property
    def _label(self) -> LabelColumn:
        """The column that data.columns names for the label, and its texts."""
        return LabelColumn.named_in(self.data.columns)

    @property
    def skipped(self) -> str | None:
        """Describe the rows that can't be used: how many, why, and the first; None without any."""
        bad = sum(self.faults.values())
        if not bad:
            return None
        reasons = sorted(self.faults.items(), key=lambda reason: -reason[1])
        named = "; ".join(f"{count:,}: {reason}" for reason, count in reasons[:MAX_PROBLEMS])
        if len(reasons) > MAX_PROBLEMS:
            named += f"; and {len(reasons) - MAX_PROBLEMS} more reasons"
        total = bad + sum(self.formats.values())
        return f"{bad:,} of {total:,} rows can't be used ({named}; first: {self.problems[0].where})"

    def notes(self, sizes: Iterable[tuple[str, int]], kind: str = "") -> list[str]:
        """Describe the rows that can't be used, what is left out of the others, and a row that
        outweighs all others.

        `sizes` are the place and the number of characters of each row that is used.
        """
        merged = None
        if self.merged:
            merged = f"the system turns of {self.merged:,} rows are put into the first user turn"
        answered = None
        if self.answered:
            answered = (
                f"{count_of(self.answered, 'final answer')} left out, which RLVR does not learn"
            )
        found = (
            self.skipped,
            merged,
            answered,
            self.marks.note(),
            self.labels.note(),
            self.rendered.note(),
            *self.doubtful.notes(),
            *self.unused.notes(),
            self.padding.note(),
        )
        notes = [note for note in found if note]
        notes += find_heaviest(sizes, kind)
        return notes

    def _refusals(self, used: int) -> list[Finding]:
        """Return the problems to report; `used` is the number of rows that can be used."""
        bad = sum(self.faults.values())
        first = self.problems[0]
        if not used:  # skipping the bad rows would leave none
            is_one = first.id in ("data_columns", "data_not_parsed")  # of all rows alike
            return [first] if is_one else self.problems
        if bad <= MAX_PROBLEMS:
            return [replace(problem, cure=_or_skip(problem.cure)) for problem in self.problems]
        return [Finding.error("bad_rows", str(self.skipped), self.data.where, _or_skip(first.cure))]

    def _rows_of(self, file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the place and the converted columns of each row of a file that can be used."""
        form = self.data.format
        is_empty = True
        unknown = 0
        padded: dict[frozenset[KeyPath], frozenset[KeyPath]] = {}  # by the paths in a file
        own: dict[str, str] | None = None  # of the first row
        for row in read_rows(file):
            is_empty = False
            own = own_paths(row.value, self._columns) if own is None else own
            try:
                if isinstance(row.value, Finding):
                    raise RowError(row.value.message, row.value.cure, row.value.id)
                named = rename_columns(row.value, self._columns)
                if row.padded:
                    known = padded.get(row.padded)
                    if known is None:
                        known = padded.setdefault(row.padded, self._rename_paths(row.padded))
                    named = self.padding.remove(named, known, row.place)
                named = unfold(named, self._columns)
                self.scale.add(named, row.place, own)
                if form == DataFormat.auto:
                    form = recognise(named, self.data.kind)
                columns = self._convert(named, form)
                used = columns_of(named, form, self.data.kind)
            except RowError as error:
                if form == DataFormat.auto:
                    unknown += 1
                self._record(self._mixed_formats(row, form) or error.problem(row.place, own))
                if unknown == _MAX_UNKNOWN_ROWS:
                    return
                continue
            description = describe_conversion(form, used, self.data.kind)
            self.formats[description] = self.formats.get(description, 0) + 1
            if self.data.format == DataFormat.auto:
                self.lists.form = form.value
                self.lists.add(named, columns_of_texts(named, used), row.place)
            self.marks.add(columns)
            self.labels.add(columns)
            if form != DataFormat.text:  # whose marks are learnt as they stand
                self.rendered.add(self._texts(columns), row.place)
            self.unused.add(named, used, self._texts(columns), self._answers(columns))
            self.doubtful.add(named, used, self._conversations(columns), row.place)
            for turns in self._conversations(columns):
                self.unused.add_turns(turns)
            self.answered += self.data.kind == Kind.rlvr and ends_with_answer(named)
            yield row.place, columns
        if is_empty:
            raise refusal("data_empty", "the file has no rows", str(file))

    def _convert(self, named: Mapping[str, object], form: DataFormat) -> dict[str, Any]:
        """Return the row as the trainer reads it. Raises RowError."""
        data = self.data
        columns = convert(
            named,
            form,
            data.kind,
            data.train_on,
            needs_truth=data.needs_truth,
            label=self._label,
        )
        if self.data.merges_system_turns:
            columns, is_merged = merge_system_turns(columns)
            self.merged += is_merged
        return columns

    def _texts(self, columns: Mapping[str, Any]) -> Iterator[str]:
        """Yield the texts of the turns of a converted row, or its plain text."""
        if set(columns) == {TEXT}:
            yield columns[TEXT]
        for turns in self._conversations(columns):
            for turn in turns:
                yield turn["content"]
                reasoning = turn.get("reasoning_content")
                if isinstance(reasoning, str):
                    yield reasoning

    def _answers(self, columns: Mapping[str, Any]) -> Iterator[str]:
        """Yield the texts of the answers of a converted row."""
        for turns in self._conversations(columns):
            yield from (turn["content"] for turn in turns if turn["role"] == "assistant")

    def _conversations(self, columns: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
        """Yield the conversations of a converted row. Columns that a verifier gets are none, whatever
        their names.
        """
        names = KINDS[self.data.kind].conversations
        return (columns[name] for name in names if name in columns)

    def _record(self, problem: Finding) -> None:
        """Count the problem by its reason, and keep it if it is one of the first."""
        reason = re.sub(r"\bturn \d+ of\b", "a turn of", problem.message)
        self.faults[reason] = self.faults.get(reason, 0) + 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def _rename_paths(self, padded: frozenset[KeyPath]) -> frozenset[KeyPath]:
        """Return the paths of the columns that launch knows, with the names that it knows."""
        renamed = (rename_path(path, self._columns) for path in padded)
        return frozenset(path for path in renamed if path is not None)

    def _mixed_formats(self, row: Row, form: DataFormat) -> Finding | None:
        """Return the problem of a bad row whose format differs from that of the rows before it.

        It is None for any other bad row.
        """
        is_known = self.data.format == DataFormat.auto and form != DataFormat.auto
        if not is_known or not isinstance(row.value, dict):
            return None
        try:
            named = unfold(rename_columns(row.value, self._columns), self._columns)
            other = recognise(named, self.data.kind)
        except RowError:
            return None
        if other == form:
            return None
        message = f"this is a row of {other}, and the rows before it are {form}"
        cure = "split the file: one kind of row in each"
        return Finding.error("data_mixed", message, row.place, cure)


def _or_skip(cure: Fix | None) -> Fix:
    """Return the cure with an alternative: to skip such rows."""
    start = f"{cure}; or" if cure else "repair them, or"
    return Fix.of(f"{start} set {{0}} to leave such rows out", "data.bad_rows=skip")


def find_heaviest(sizes: Iterable[tuple[str, int]], kind: str = "") -> tuple[str, ...]:
    """Describe the row that is longer than all others together; return nothing without one.

    `sizes` are the place and the number of characters of each row.
    """
    rows = 0
    total = 0
    largest = 0
    largest_place = ""
    for place, size in sizes:
        rows += 1
        total += size
        if size > largest:
            largest = size
            largest_place = place
    if rows < 2 or 2 * largest <= total:
        return ()
    share = f"{largest:,} of the {total:,} characters of {rows:,} {kind}rows"
    return (f"one row has {share}: {largest_place}",)
