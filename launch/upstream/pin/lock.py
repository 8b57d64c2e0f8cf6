"""The lock: the pinned commit, the schemas captured from it, and the git blob ids of the files they depend on.

It is package data (`launch/upstream/data/`), which `launch upstream bump` and `python -m launch.upstream.pin.relock`
write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from launch.errors import Problem, UserError
from launch.upstream.schema import Schema, schema_from_json
from launch.upstream.trainers import ENTRIES, TRL, trainer_name

DATA = Path(__file__).parents[1] / "data"
LOCK_FILE = DATA / "lock.json"
SCHEMAS = DATA / "schemas"


@dataclass(frozen=True)
class Lock:
    """The pin and what its schemas were read from."""

    pin: str  # commit of open-instruct
    files: Mapping[str, str]  # {path: git blob id} of open-instruct's files
    packages: Mapping[str, str]  # {library: version}: trl, transformers, olmo_core
    names: Mapping[
        str, Sequence[str]
    ]  # {flag: the names that upstream looks its value up in}; `olmo_presets`, `verifiers`


@cache
def load_lock() -> Lock:
    """Return the committed lock (read once per process)."""
    content: dict[str, Any] = json.loads(LOCK_FILE.read_text(encoding="utf-8"))
    return Lock(pin=content["pin"], files=content["files"], packages=content["packages"], names=content["names"])


def locked_schema(trainer: str) -> Schema:
    """Return a trainer's schema at the pin (for TRL: of the locked version), by name or script.

    Raises UserError: unknown_trainer.
    """
    name = trainer_name(trainer)
    if name is None:
        message, cure = f"trainer '{trainer}' is not in the lock", f"use one of {', '.join(ENTRIES)}"
        raise UserError(Problem("unknown_trainer", message, cure=cure))
    return _load_schema(name)


@cache
def _load_schema(name: str) -> Schema:
    schema = schema_from_json(json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8")))
    return replace(schema, is_locked=True, names={} if name in TRL else load_lock().names)
