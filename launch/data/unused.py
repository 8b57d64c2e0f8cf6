"""Counts the columns of rows that hold something and that no stage of this kind learns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from launch.data.formats import KNOWN
from launch.data.turns import is_transcript

_SHOWN = 6  # columns that a note names


@dataclass
class UnusedColumns:
    """The columns that the conversion leaves out, over all rows.

    A known column counts where it has a value, any other one where it has a text. A text that
    stands in a turn as well is not lost.
    """

    rows: int = 0
    _filled: dict[str, int] = field(default_factory=dict)

    def add(self, row: Mapping[str, object], used: Iterable[str], texts: Iterable[str]) -> None:
        """Count a row: the columns that are `used`, and the texts of its turns."""
        self.rows += 1
        used = set(used)
        turns: str | None = None
        for name, value in row.items():
            if isinstance(value, str):
                text = value.strip()
                if not text:
                    continue
                turns = "\0".join(texts) if turns is None else turns
                is_read = name in _READ_ELSEWHERE or (name in used and is_transcript(text))
                is_lost = text not in turns and not is_read
            else:
                is_lost = name in KNOWN and name not in used and bool(value)
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


# columns whose text is not written into a turn as it stands
_READ_ELSEWHERE = frozenset(("tools", "functions", "history", "label", "kto_tag"))
