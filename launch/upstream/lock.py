"""The lock: the pinned commit, the git blob ids of the files its schemas were read from, and what was read.

It is data of the package (`launch/upstream/data/`), written by `python -m launch.upstream.relock`, never by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
LOCK_FILE = DATA / "lock.json"


@dataclass(frozen=True)
class Lock:
    """The pin and the files (path relative to the checkout -> git blob id) that its schemas were read from."""

    pin: str
    files: Mapping[str, str]


@cache
def load_lock() -> Lock:
    """The committed lock (read once a process)."""
    content: dict[str, Any] = json.loads(LOCK_FILE.read_text(encoding="utf-8"))
    return Lock(pin=content["pin"], files=content["files"])
