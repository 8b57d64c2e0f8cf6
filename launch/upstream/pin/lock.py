"""The lock: the pinned commit, the schemas captured from it, and the ids of the files behind them.

It is package data (`launch/upstream/data/`). `python -m maintain bump` and `python -m maintain relock`
write it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from launch.files import load_json
from launch.upstream.schema import Schema, schema_from_json
from launch.upstream.trainers import TRL, parse_trainer

DATA = Path(__file__).parents[1] / "data"
LOCK_FILE = DATA / "lock.json"
SCHEMAS = DATA / "schemas"


@dataclass(frozen=True)
class Lock:
    """The pin and what its schemas were read from."""

    pin: str  # commit of open-instruct
    files: Mapping[str, str]  # {path: git blob id} of open-instruct's files
    packages: Mapping[str, str]  # {library: version} of trl, transformers and olmo_core
    # {flag: the names that upstream accepts as its value}; also `olmo_presets` and `verifiers`
    names: Mapping[str, Sequence[str]]


@cache
def load_lock() -> Lock:
    """Return the committed lock (read once per process)."""
    content = load_json(LOCK_FILE)
    return Lock(content["pin"], content["files"], content["packages"], content["names"])


def locked_schema(trainer: str) -> Schema:
    """Return a trainer's schema at the pin (for TRL: of the locked version), by name or script.

    Raises UserError: unknown_trainer.
    """
    return _load_schema(parse_trainer(trainer))


@cache
def _load_schema(name: str) -> Schema:
    schema = schema_from_json(load_json(SCHEMAS / f"{name}.json"))
    names = {} if name in TRL else load_lock().names
    return replace(schema, is_locked=True, names=names)
