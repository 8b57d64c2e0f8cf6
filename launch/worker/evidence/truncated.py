"""Tells rows that a trainer has truncated from rows that end differently from the others anyway,
such as conversations that were truncated before they were staged, by the texts of the staged rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

_MAX_ROWS = 200_000  # staged rows that are searched, over all data sets
_PREFIX = 8  # characters of a turn by which its beginning is found


def count_truncated_suspects(suspects: Sequence[str], names: Sequence[str]) -> int | None:
    """Return how many of the `suspects` were truncated: they end within a turn of a staged row.

    `suspects`: the texts of tokenised rows that all have one length and end unlike the others.
    `names`: the files or folders of the data sets, as a trainer is given them. None is returned if
    no staged row can be read.
    """
    remaining = list(suspects)
    has_rows = False
    for turns in islice(_read_turns(names), _MAX_ROWS):
        has_rows = True
        remaining = [text for text in remaining if not _ends_within(text, turns)]
        if not remaining:
            break
    return len(suspects) - len(remaining) if has_rows else None


def _ends_within(text: str, turns: Sequence[str]) -> bool:
    """Whether a text contains the first turns, and ends with a part of the next one."""
    cursor = 0
    for turn in turns:
        start = text.find(turn, cursor)
        if start >= 0:
            cursor = start + len(turn)
            continue
        start = text.find(turn[:_PREFIX], cursor)
        while start >= 0:
            if turn.startswith(text[start:]):
                return True
            start = text.find(turn[:_PREFIX], start + 1)
        return False
    return False


def _read_turns(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts of the turns of each staged row; a pair yields one list for each side."""
    for name in names:
        path = Path(name)
        file = path / "train.jsonl" if path.is_dir() else path
        try:
            with file.open(encoding="utf-8") as lines:
                for line in lines:
                    yield from _turns_of(json.loads(line))
        except (OSError, ValueError):
            continue


def _turns_of(row: Any) -> Iterator[list[str]]:
    for name in ("messages", "chosen", "rejected"):
        messages = row.get(name) if isinstance(row, dict) else None
        if isinstance(messages, list):
            contents = [str(message.get("content") or "").strip() for message in messages]
            yield [content for content in contents if content]
