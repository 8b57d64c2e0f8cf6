"""Puts the system turns of converted rows into their first user turns, for chat templates that
refuse system turns.
"""

from __future__ import annotations

from typing import Any

from launch.data.row_errors import RowError
from launch.worker.system_turns import has_system_turn, merge_system_turn
from launch.worker.turns import TRAINED_TURNS

_CONVERSATIONS = ("messages", "chosen", "rejected", "prompt")  # columns of a converted row
_TEXT_KEYS = {"role", "content"}


def merge_system_turns(columns: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return a converted row without system turns, and whether it had one.

    Raises RowError (data_roles) for a system turn with keys that a user turn can't have.
    """
    merged = {}
    for name in _CONVERSATIONS:
        turns = columns.get(name)
        if has_system_turn(turns):
            others = ", ".join(sorted(set(turns[0]) - _TEXT_KEYS))
            if others:
                message = f"the system turn of {name} has {others}, which a user turn can't have"
                raise RowError(message, "set data.system_turns=keep", "data_roles")
            merged[name] = merge_system_turn(turns)
    marks = columns.get(TRAINED_TURNS)
    if "messages" in merged and marks is not None:
        # a mark of each message, of which there may be one less now
        merged[TRAINED_TURNS] = marks[len(columns["messages"]) - len(merged["messages"]) :]
    return {**columns, **merged}, bool(merged)
