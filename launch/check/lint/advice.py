"""What is documented about a trainer's flags beyond its parser: flags that are never read or do not work.

The data is in the trainers' YAML files (`configs/tulu/trainer/`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

_CURE = re.compile(r"; (?:say|set) ")  # introduces the cure, which refers to launch's own keys


@dataclass(frozen=True)
class Advice:
    """Flags of one trainer that its parser accepts but that do nothing or do not work."""

    unread: frozenset[str] = frozenset()  # flags that the trainer never reads
    refused: Mapping[str, str] = field(default_factory=dict)  # {flag: why it cannot work}


def load_advice(folder: Path) -> dict[str, Advice]:
    """Load the advice by trainer name from every YAML file in the folder; a file that is not a map is skipped."""
    advice: dict[str, Advice] = {}
    for path in sorted(folder.glob("*.yaml")):
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if isinstance(content, dict):
            unread = frozenset(map(str, content.get("unread") or ()))
            refused = (content.get("refused") or {}).items()
            advice[path.stem] = Advice(unread, {str(flag): _CURE.split(str(reason))[0] for flag, reason in refused})
    return advice
