"""Counts the columns of rows, and the keys of their turns, that hold something and are not used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.data.columns import KNOWN, VERIFIER_COLUMNS
from launch.data.labels import NAMES as LABELS
from launch.data.prompts import EMPTY
from launch.data.row_errors import path_of_text
from launch.data.turns import ROLE_KEYS, TURN_KEYS
from launch.worker.wording import count_of

_SHOWN = 6  # names in a note
_TEXT_KEYS = ("reasoning_content", "thinking", "reasoning")  # keys of a turn that are texts


@dataclass
class UnusedColumns:
    """The columns that the conversion leaves out, over all rows.

    A column counts where it has a value: a text, numbers or lists may say what is to be learned, or
    hold it. A text that stands in a turn as well is not lost, unless an answer only begins with it:
    it may be what the answer completes, such as the first lines of a program.
    """

    is_verified: bool = False  # whether a verifier gets every column
    rows: int = 0
    _filled: dict[str, int] = field(default_factory=dict)
    _telling: set[str] = field(default_factory=set)  # with a text or a truth value in some row
    _keys: set[str] = field(default_factory=set)  # of turns

    def add(
        self,
        row: Mapping[str, object],
        used: Iterable[str],
        texts: Iterable[str],
        answers: Iterable[str],
    ) -> None:
        """Count a row: the columns that are `used`, the texts of its turns, and those of them that
        are answers.
        """
        self.rows += 1
        used = {*used, *(VERIFIER_COLUMNS if self.is_verified else ())}
        turns: dict[str, bool] | None = None  # whether each is an answer
        for name, value in row.items():
            is_label = name in LABELS and isinstance(value, bool)
            if name in used or is_label or value in EMPTY:
                continue
            if turns is None:
                completed = {text.strip() for text in answers}
                turns = {text.strip(): text.strip() in completed for text in texts}
            if _is_lost(value, turns):
                self._filled[name] = self._filled.get(name, 0) + 1
                if name not in self._telling and _tells(value):
                    self._telling.add(name)

    def add_turns(self, turns: Sequence[Mapping[str, Any]]) -> None:
        """Remember the keys of turns that hold texts or lists which templates do not know."""
        for turn in turns:
            for key, value in turn.items():
                is_text = isinstance(value, str)
                is_known = key in TURN_KEYS and (is_text or key not in _TEXT_KEYS)
                if value and not is_known and isinstance(value, str | list | dict):
                    self._keys.add(key)

    def notes(self) -> list[str]:
        """Name the columns that hold a text or a truth value in any row, or have a name that launch
        knows; others that are filled in most rows; and the keys of turns. Only of others, and of
        keys, some may be counted alone.
        """
        names = []
        for name in sorted(self._filled, key=self._rank):
            rows = self._filled[name]
            if 2 * rows > self.rows:
                names.append(repr(name))
            elif self._rank(name) < _OTHER:
                names.append(f"{name!r} (in {count_of(rows, 'row')})")
        shown = sum(self._rank(name) < _OTHER for name in self._filled)
        unused = "columns that only the verifier gets" if self.is_verified else _UNUSED
        notes = [f"{unused}: {_list(names, max(shown, _SHOWN))}"] if names else []
        if self._keys:
            keys = _list(list(map(repr, sorted(self._keys))))
            notes.append(f"keys of turns that no template of launch writes: {keys}")
        return notes

    def _rank(self, name: str) -> int:
        """Return how early a column is listed; _OTHER for unknown ones with numbers alone."""
        if name in KNOWN:
            return 0
        return 1 if name in self._telling else _OTHER


_OTHER = 2
_UNUSED = "columns that are not used"


def _is_lost(value: object, turns: Mapping[str, bool]) -> bool:
    """Return whether a value contains something that is not in the text of a turn. A single word
    has to be a turn's whole text, because it may occur in others by chance.

    turns: the text of each turn, and whether it is an answer.
    """
    if value in EMPTY:
        return False
    if isinstance(value, list):
        return any(_is_lost(element, turns) for element in value)
    if isinstance(value, dict):
        return any(_is_lost(value[key], turns) for key in value if key not in ROLE_KEYS)
    text = value.strip() if isinstance(value, str) else None
    if text is None or text in turns:
        return text is None
    if len(text.split()) == 1:
        return True
    return not any(text in turn[is_answer:] for turn, is_answer in turns.items())


def _tells(value: object) -> bool:
    """Return whether a value is a truth value, or a text stands in it: few rows with one may mean
    something else than the others. Lists of numbers, such as token ids, are not searched.
    """
    if isinstance(value, list) and isinstance(value[0], int | float):
        return False
    return isinstance(value, bool) or path_of_text(value) is not None


def _list(names: Sequence[str], shown: int = _SHOWN) -> str:
    listed = ", ".join(names[:shown])
    return f"{listed} and {len(names) - shown} more" if len(names) > shown else listed
