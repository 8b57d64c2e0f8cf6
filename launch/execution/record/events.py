"""The events of a run (phases, steps, patches, evidence, warnings, errors), and the metrics of its
steps.

Workers write events as JSON lines. Step events of rank 0 become the objects of metrics.jsonl, one
per logged step. Their keys, where the trainer logs them: `step`; `loss`; `lr`; `tokens` and
`tokens_padded` (over all ranks since the previous logged step, without and with padding),
`padding_share` (of tokens_padded); `seconds` (since the previous logged step); `tokens_per_second`
(without padding, in those seconds) and `tokens_per_second_total` (since this process began to
train); `memory_gib` and `memory_reserved_gib` (peaks of rank 0: what tensors took, and what torch
held for them); `grad_norm` (before clipping); and whatever else the trainer logs, under its own
names. The file is strict JSON: a loss that is NaN is written as `"loss": null` and `"loss_text":
"nan"`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard, get_args

from launch.worker.json_codec import SCHEMA_VERSION, versioned

PHASES = (
    "import",
    "tokenize",
    "load",
    "reference_logprobs",
    "first_step",
    "training",
    "evaluate",
    "checkpoint",
    "save",
    "push",
)
_REQUIRED: Mapping[str, Mapping[str, type]] = {
    "phase": {"phase": str},
    "step": {"step": int},
    "patch": {"id": str, "applied": bool},
    "evidence": {"what": str},
    "warning": {"message": str},
    "error": {"message": str},
    "guard": {"id": str, "message": str},
    "total_steps": {"steps": int},
    # with eval_loss and what else the trainer measures on its validation data
    "evaluation": {"step": int},
    "early_stop": {"step": int, "best_step": int, "evaluations": int},  # with best_loss
    # of one of the prompts that an RLVR run samples again, with its rewards
    "completion": {"step": int},
    "saved": {"step": int},  # the model, by a worker that has compared its files with memory
    "first_rows": {"rows": list},  # tokens of the first samples of a run that trains an adapter
}


@dataclass(frozen=True)
class Event:
    """One event of one rank."""

    kind: str
    time: float  # unix seconds
    rank: int
    # the keys of its kind: `step`, `loss`, `message`, ...
    data: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return versioned({"kind": self.kind, "time": self.time, "rank": self.rank, **self.data})


def parse_event(line: str | bytes, rank: int) -> Event | None:
    """Parse one line of rank `rank`'s channel; None for anything that is not a valid event of
    it.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # ValueError: a UnicodeDecodeError too
        return None
    event = read_event({"rank": rank, **value}) if isinstance(value, dict) else None
    return event if event is not None and event.rank == rank else None


def read_event(value: Mapping[str, Any]) -> Event | None:
    """Return the event that a JSON object holds; None if it is not a valid one."""
    data = dict(value)
    version, kind, time, rank = (
        data.pop(name, None) for name in ("schema_version", "kind", "time", "rank")
    )
    if version != SCHEMA_VERSION or not isinstance(kind, str) or not isinstance(rank, int):
        return None
    if not is_number(time) or not math.isfinite(time) or not _is_complete(kind, data):
        return None
    return Event(kind, float(time), rank, data)


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


# the keys above, in the order of the file
MetricName = Literal[
    "loss",
    "lr",
    "tokens",
    "tokens_padded",
    "tokens_per_second",
    "grad_norm",
    "memory_gib",
    "memory_reserved_gib",
    "seconds",
    "tokens_per_second_total",
    "padding_share",
]

# sums since the start of the process; a step's own value is the difference
_SUMS: Mapping[str, str] = {
    "tokens": "total_tokens",
    "tokens_padded": "total_tokens_including_padding",
}


class Metrics:
    """Makes the objects of metrics.jsonl; a repeated or smaller step gives none."""

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}
        self.last_loss: float | None = None
        self._step = -1
        self._time: float | None = None
        self._sums: dict[str, float] = dict.fromkeys(_SUMS, 0)
        self._tokens = 0.0
        self._seconds = 0.0

    def training_began(self, time: float) -> None:
        """Set when the first step's seconds begin."""
        if self._step < 0:
            self._time = time

    def add(self, event: Event) -> dict[str, Any] | None:
        """Return the object for a "step" event; None for a repeated step or another rank's."""
        step = int(event.data["step"])
        if event.rank != 0 or step <= self._step:
            return None
        known = {name: value for name, value in event.data.items() if is_number(value)}
        self._add_differences(known, event.time)
        self._add_rates(known)
        self._step = step
        if "loss" in known:
            self.last_loss = float(known["loss"])
        first = {name: known[name] for name in ("step", *get_args(MetricName)) if name in known}
        self.last = first | {
            name: value for name, value in known.items() if name not in _SUMS.values()
        }
        return versioned(self.last)

    def _add_rates(self, values: dict[str, Any]) -> None:
        tokens, seconds = values.get("tokens"), values.get("seconds", 0)
        if tokens is None:
            return
        if seconds > 0:
            values.setdefault("tokens_per_second", round(tokens / seconds, 3))
            self._tokens, self._seconds = self._tokens + tokens, self._seconds + seconds
            values["tokens_per_second_total"] = round(self._tokens / self._seconds, 3)
        if values.get("tokens_padded", 0) >= tokens > 0:
            values["padding_share"] = round(1 - tokens / values["tokens_padded"], 6)

    def _add_differences(self, values: dict[str, Any], time: float) -> None:
        if "seconds" not in values and self._time is not None and time > self._time:
            values["seconds"] = round(time - self._time, 6)
        self._time = time
        for name, sum_name in _SUMS.items():
            if (total := values.get(sum_name)) is not None:
                if name not in values and total >= self._sums[name]:
                    values[name] = total - self._sums[name]
                self._sums[name] = total


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number of JSON, and not true or false."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
