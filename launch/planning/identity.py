"""A plan's identity: eight hex digits over what decides the run, the same on every machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DIGITS = 8


def identity(parts: Mapping[str, Any], places: Mapping[Path, str], content: Mapping[Path, str]) -> str:
    """The identity of JSON-like `parts`, machine paths left out.

    `places` are folders whose absolute paths become a word (`{upstream}`); `content` are local inputs, which become
    their name and content digest.
    """
    names = {str(path): f"{path.name}@{digest}" for path, digest in content.items()}
    names.update({str(path): word for path, word in places.items()})
    ordered = sorted(names.items(), key=lambda item: len(item[0]), reverse=True)

    def neutral(value: Any) -> Any:
        if isinstance(value, str):
            for path, word in ordered:
                value = value.replace(path, word)
            return value
        if isinstance(value, Mapping):
            return {str(key): neutral(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [neutral(inner) for inner in value]
        return value

    text = json.dumps(neutral(parts), sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def content_key(content: Mapping[Path, str]) -> str:
    """A short key over the content of local inputs, for caches that must not outlive it; `hub` without any."""
    if not content:
        return "hub"
    joined = "\n".join(sorted(f"{path.name}@{digest}" for path, digest in content.items()))
    return hashlib.sha256(joined.encode()).hexdigest()[:DIGITS]
