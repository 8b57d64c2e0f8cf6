"""Values of other tools' files as numbers, and as overrides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from launch.config.quoting import quote_text

_PLAIN = re.compile(r"[\w./@+~-]+")


def is_set(value: Any) -> bool:
    return value is not None and value not in ("", [], {})


def as_number(value: Any) -> float:
    """Return a number; 0 for anything else. YAML reads `2e-4` as a text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def as_whole(value: Any) -> int | None:
    """Return a whole number; None for a fraction and anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() and not isinstance(value, bool) else None


def as_override(value: Any) -> str:
    """Return a value as an override has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(as_override, value))}]"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else quote_text(text)


def entry_text(entry: Mapping[str, Any]) -> str:
    """Return an entry of data.mix as an override has it."""
    parts = [f"name: {as_override(entry['name'])}"]
    split = entry.get("split") or "train"
    if split != "train":
        parts.append(f"split: {as_override(split)}")
    share = entry.get("share") or 1
    if share != 1:
        parts.append(f"share: {share}")
    return f"{{{', '.join(parts)}}}"


def shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
