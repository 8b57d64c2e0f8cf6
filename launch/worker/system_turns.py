"""Puts the system turn of a conversation into its first user turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard


def has_system_turn(turns: Any) -> TypeGuard[list[Any]]:
    """Whether `turns` is a conversation that begins with a system turn."""
    return isinstance(turns, list) and bool(turns) and _has_role(turns[0], "system")


def merge_system_turn(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation with the text of its system turn above that of the user turn that
    follows it, with an empty line between them.

    Where another turn follows, the text becomes a user turn of its own. A system turn without a
    text is left out.
    """
    system = turns[0]
    rest = [dict(turn) for turn in turns[1:]]
    text = system["content"]
    if not text:
        return rest
    if not rest or not _has_role(rest[0], "user"):
        return [{"role": "user", "content": text}, *rest]
    question = {**rest[0], "content": f"{text}\n\n{rest[0]['content']}"}
    return [question, *rest[1:]]


def _has_role(turn: Any, role: str) -> bool:
    return isinstance(turn, Mapping) and turn.get("role") == role
