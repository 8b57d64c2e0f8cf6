"""A plan's identity: eight hex digits over whatever determines the run, the same on every machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DIGITS = 8


def compute_identity(parts: Mapping[str, Any], places: Mapping[Path, str], content: Mapping[Path, str]) -> str:
    """Compute the identity of JSON-like `parts`, without the machine's paths.

    `places` are folders whose absolute paths become a placeholder (`{runs}`); `content` are local inputs, which become
    their name and content digest.
    """
    names = {str(path): f"{path.name}@{digest}" for path, digest in content.items()}
    names.update({str(path): placeholder for path, placeholder in places.items()})
    longest_first = sorted(names.items(), key=lambda item: len(item[0]), reverse=True)

    def neutral(value: Any) -> Any:
        if isinstance(value, str):
            for path, name in longest_first:
                value = value.replace(path, name)
            return value
        if isinstance(value, Mapping):
            return {str(key): neutral(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [neutral(inner) for inner in value]
        return value

    text = json.dumps(neutral(parts), sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:DIGITS]  # names need not be UTF-8


def content_key(content: Mapping[Path, str]) -> str:
    """Return a short key over the content of local inputs, for caches that depend on it; `hub` without local inputs."""
    if not content:
        return "hub"
    joined = "\n".join(sorted(f"{path.name}@{digest}" for path, digest in content.items()))
    return hashlib.sha256(joined.encode("utf-8", "surrogateescape")).hexdigest()[:DIGITS]
