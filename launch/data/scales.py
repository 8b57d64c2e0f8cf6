"""Checks that all values of a column that judges answers are of one scale that launch knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from launch.config.kinds import KINDS, Kind
from launch.data.labels import LabelColumn, find_label
from launch.data.pairs import find_used_verdict
from launch.data.row_errors import complete_cure, jq_path
from launch.data.verdicts import Verdict, find_named, read_mark
from launch.worker.finding import Finding
from launch.worker.wording import noun_for

_SHOWN = 6  # values in a message


@dataclass
class Scale:
    """The values of the verdicts on two answers, or of the labels of KTO, over all rows.

    If one value is of another scale, the others may have another meaning too: with 0 and 1 beside
    `response_1` and `response_2`, the 1 is the second answer.
    """

    kind: Kind
    label: LabelColumn
    column: str = ""
    answers: tuple[str, str] | None = None  # the columns that a verdict names; None for labels
    values: set[str] = field(default_factory=set)
    strays: set[str] = field(
        default_factory=set
    )  # values that name neither answer, or are not a label
    place: str = ""  # of the first row with a stray value
    own: Mapping[str, str] = field(default_factory=dict)  # the file's names of columns

    def add(self, row: Mapping[str, object], place: str, own: Mapping[str, str]) -> None:
        """Remember the value of a row, if it has one. `own` are the file's names of columns."""
        self.own = own
        if KINDS[self.kind].is_paired:
            verdict = find_used_verdict(row)
            if verdict is not None:
                self._add_verdict(row[verdict.column], verdict, place)
        elif self.kind == Kind.kto and not self.label.texts:
            column = find_label(row, self.label)
            self._add_label(row.get(column), self.label.name or column, place)

    def _add_verdict(self, value: object, verdict: Verdict, place: str) -> None:
        mark = read_mark(value)
        if mark is None:  # a word such as `tie`
            return
        self.column = verdict.column
        self.answers = verdict.answers
        self._add(value, place, fits=find_named(value, verdict.answers) is not None)

    def _add_label(self, value: object, column: str, place: str) -> None:
        if isinstance(value, int | float):
            self.column = column
            self._add(value, place, fits=value in (0, 1))

    def _add(self, value: object, place: str, *, fits: bool) -> None:
        self.values.add(_show(value))
        if not fits:
            self.strays.add(_show(value))
            self.place = self.place or place

    def problem(self) -> Finding | None:
        """Return the problem of values that are of another scale; None if they fit."""
        if not self.place:
            return None
        values = sorted(self.values, key=_order)
        listed = ", ".join(values[:_SHOWN])
        if len(values) > _SHOWN:
            listed += f" and {len(values) - _SHOWN} more"
        has = f"{self.column} has the {noun_for(len(values), 'value')} {listed}"
        if self.answers is None:
            return self._problem_of_label(has, values)
        first, second = self.answers
        message = f"{has}, and it is not certain which of them means {first} and which {second}"
        cure = f"write the name of the better answer there, {first} or {second}"
        if len(values) == 2:
            table = f'{{"{values[0]}": "{first}", "{values[1]}": "{second}"}}'
            program = f"with: jq -c '{jq_path(self.column)} |= {table}[tostring]'"
            cure += f"; if {values[0]} means {first}, {self._complete(program)}"
        elif len(values) == 3 and "0" in self.strays and len(self.strays) == 1:
            program = f"with: jq -c 'select({jq_path(self.column)} | tostring != \"0\")'"
            cure += f"; if 0 is a tie, {self._complete(program)}"
        else:
            cure += ", and leave out rows of which neither is better"
        return Finding.error("data_pair", message, self.place, cure)

    def _complete(self, program: str) -> str:
        """Return the command that writes the file anew."""
        return complete_cure(program, self.place, self.own)

    def _problem_of_label(self, has: str, values: list[str]) -> Finding:
        message = f"{has}, and a label is true or false, or 1 or 0 in all rows"
        good, bad = values if len(values) == 2 else ("GOOD", "BAD")
        named = f"data.columns.label={self.column}:"
        cure = (
            f"name its two values, the good one first: {named}{good}/{bad} or {named}{bad}/{good}"
        )
        if len(values) != 2:
            cure = f"name its two values, the good one first ({named}{good}/{bad})"
        return Finding.error("data_label", message, self.place, cure)


def _show(value: object) -> str:
    """Return a value as a message has it, whole numbers without a point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def _order(value: str) -> tuple[bool, float, str]:
    """Return what values are sorted by: numbers by their size, before texts."""
    try:
        return False, float(value), ""
    except ValueError:
        return True, 0.0, value
