"""Counts the columns of rows that hold something and that no stage of this kind learns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from launch.data.labels import NAMES as LABELS
from launch.data.row_errors import parse_list
from launch.data.turns import is_transcript

_SHOWN = 6  # columns that a note names


@dataclass
class UnusedColumns:
    """The columns that the conversion leaves out, over all rows.

    A column counts where it has a value: a text, numbers or lists may say what is to be learned, or
    hold it. A text that stands in a turn as well is not lost.
    """

    rows: int = 0
    _filled: dict[str, int] = field(default_factory=dict)

    def add(self, row: Mapping[str, object], used: Iterable[str], texts: Iterable[str]) -> None:
        """Count a row: the columns that are `used`, and the texts of its turns."""
        self.rows += 1
        used = set(used)
        turns: str | None = None
        for name, value in row.items():
            if not isinstance(value, str):
                is_read = name in used or (name in LABELS and isinstance(value, bool))
                is_lost = not is_read and value not in (None, [], {})
            elif not value.strip() or name in _READ_ELSEWHERE or _is_parsed(name, value, used):
                is_lost = False
            else:
                turns = "\0".join(texts) if turns is None else turns
                is_lost = value.strip() not in turns
            if is_lost:
                self._filled[name] = self._filled.get(name, 0) + 1

    def note(self) -> str | None:
        """Name the columns that are filled in most rows; None without any."""
        names = [name for name, rows in self._filled.items() if 2 * rows > self.rows]
        if not names:
            return None
        listed = ", ".join(map(repr, names[:_SHOWN]))
        if len(names) > _SHOWN:
            listed += f" and {len(names) - _SHOWN} more"
        return f"columns that are not used: {listed}"


def _is_parsed(name: str, text: str, used: set[str]) -> bool:
    """Return whether a column that is used holds its turns in a text."""
    return name in used and (is_transcript(text) or isinstance(parse_list(text), list))


# columns whose text is not written into a turn as it stands
_READ_ELSEWHERE = frozenset(("tools", "functions", "history"))
