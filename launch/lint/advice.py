"""What is known about a trainer's flags beyond its parser: never read, refused later, or named otherwise elsewhere.

The knowledge is data, in the trainers' YAML files (`configs/tulu/trainer/`): `unread`, `refused`, and the flags that
carry the words of a recipe, from which it follows what one trainer's flag is called in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Advice:
    """unread: flags that the trainer accepts and never reads. refused: {flag: why it can't work}. words: {what it is
    for: the flag's name}, the same words for every trainer."""

    unread: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)


def load_advice(folder: Path) -> dict[str, Advice]:
    """The advice by trainer name, from every YAML in the folder; a file that isn't a map gives none."""
    advice: dict[str, Advice] = {}
    for path in sorted(folder.glob("*.yaml")):
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if isinstance(content, dict):
            advice[path.stem] = _advice(content)
    return advice


def elsewhere(trainer: str, flag: str, advice: Mapping[str, Advice]) -> tuple[str, str] | None:
    """(another trainer that has this flag, what this trainer calls it), or None."""
    own = advice.get(trainer, Advice()).words
    for other, theirs in advice.items():
        if other != trainer:
            for word, name in theirs.words.items():
                if name == flag and own.get(word, flag) != flag:
                    return other, own[word]
    return None


def _advice(content: Mapping[str, Any]) -> Advice:
    words: dict[str, str] = {}
    for group in ("recipe", "launch"):
        for word, name in (content.get(group) or {}).items():
            if isinstance(name, str):
                words[f"{group}.{word}"] = name
    return Advice(
        unread=frozenset(str(flag) for flag in content.get("unread") or ()),
        refused={str(flag): str(why) for flag, why in (content.get("refused") or {}).items()},
        words=words,
    )
