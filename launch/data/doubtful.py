"""Counts rows whose texts may not be what was meant: names of empty values, and answers that repeat
their prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.data.labels import NAMES as LABELS
from launch.worker.wording import count_of

# what tools write for an empty value of a table
_EMPTY = frozenset(("nan", "null", "none", "<na>", "n/a", "#n/a", "undefined"))
_LEAST_WORDS = 2  # of a prompt: an answer may begin with its only word by chance


@dataclass
class DoubtfulTexts:
    """The rows with such texts, over all rows."""

    rows: int = 0
    echoes: int = 0  # rows whose answer begins with the whole prompt
    first_echo: str = ""
    empty: dict[str, int] = field(
        default_factory=dict
    )  # the name of an empty value by its column -> rows
    first_empty: str = ""

    def add(
        self,
        row: Mapping[str, object],
        used: Iterable[str],
        conversations: Iterable[Sequence[Mapping[str, Any]]],
        place: str,
    ) -> None:
        """Count a row, the columns of it that are `used`, and what it is converted to."""
        self.rows += 1
        for name in used:
            value = row[name]
            if name not in LABELS and isinstance(value, str) and value.strip().lower() in _EMPTY:
                key = f"{value.strip()!r} in {name}"
                self.empty[key] = self.empty.get(key, 0) + 1
                self.first_empty = self.first_empty or place
        if any(map(_is_echo, conversations)):
            self.echoes += 1
            self.first_echo = self.first_echo or place

    def notes(self) -> list[str]:
        """Describe the names of empty values, and answers with their prompt if most have it."""
        notes = []
        if self.empty:
            listed = ", ".join(
                f"{key} ({count_of(rows, 'row')})" for key, rows in self.empty.items()
            )
            notes.append(
                f"texts that may stand for empty values are read as texts: {listed}, first: "
                f"{self.first_empty}"
            )
        if 2 * self.echoes > self.rows:
            notes.append(
                f"the answers of {count_of(self.echoes, 'row')} begin with their whole prompt, which "
                f"is learnt too (first: {self.first_echo})"
            )
        return notes


def _is_echo(turns: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the last answer of a conversation begins with the turn that it answers."""
    if len(turns) < 2 or turns[-1]["role"] != "assistant" or turns[-2]["role"] != "user":
        return False
    asked = turns[-2]["content"].strip()
    answer = turns[-1]["content"].strip()
    return (
        len(asked.split()) >= _LEAST_WORDS and len(answer) > len(asked) and answer.startswith(asked)
    )
