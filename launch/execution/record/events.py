"""The events of a run: phases, steps, patches, evidence, warnings, errors.

Workers write them as JSON lines; a trainer's reader makes them from its log lines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launch.worker.json_codec import SCHEMA_VERSION, to_json

PHASES = ("import", "tokenize", "load", "reference_logprobs", "training", "evaluate", "checkpoint", "save", "push")
_REQUIRED: Mapping[str, Mapping[str, type]] = {
    "phase": {"phase": str},
    "step": {"step": int},
    "patch": {"id": str, "applied": bool},
    "evidence": {"what": str},
    "warning": {"message": str},
    "error": {"message": str},
    "guard": {"id": str, "message": str},
    "total_steps": {"steps": int},
    "evaluation": {"step": int},  # with eval_loss and what else the trainer measures on its validation data
    "early_stop": {"step": int, "best_step": int, "evaluations": int},  # with best_loss
    "first_rows": {"rows": list},  # tokens of the first samples of a run that trains an adapter
}


@dataclass(frozen=True)
class Event:
    """One event of one rank."""

    kind: str
    time: float  # unix seconds
    rank: int
    data: Mapping[str, Any] = field(default_factory=dict)  # the keys of its kind: `step`, `loss`, `message`, ...

    def as_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "time": self.time,
            "rank": self.rank,
            **to_json(self.data),
        }


def parse_event(line: bytes, rank: int) -> Event | None:
    """Parse one line of rank `rank`'s channel; None for anything that is not a valid event."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # ValueError: a UnicodeDecodeError too
        return None
    if not isinstance(value, dict) or value.pop("schema_version", None) != SCHEMA_VERSION:
        return None
    kind, time, sender = value.pop("kind", None), value.pop("time", None), value.pop("rank", rank)
    if not isinstance(kind, str) or sender != rank or not _is_complete(kind, value):
        return None
    if isinstance(time, bool) or not isinstance(time, (int, float)) or not math.isfinite(time):
        return None
    return Event(kind, float(time), rank, value)


def _is_complete(kind: str, data: Mapping[str, Any]) -> bool:
    if kind not in _REQUIRED or (kind == "phase" and data.get("phase") not in PHASES):
        return False
    for name, required in _REQUIRED[kind].items():
        value = data.get(name)
        if not isinstance(value, required):
            return False
        if required is int and (isinstance(value, bool) or (isinstance(value, int) and value < 0)):
            return False
    return True
