"""The events of a run (phases, steps, patches, evidence, warnings, errors), and its metrics.

Workers write events as JSON lines. Step events of rank 0 become the objects of metrics.jsonl, one
for each logged step. An object has these keys, where the trainer logs them:

- `step`, `loss`, `lr`;
- `grad_norm`: before clipping;
- `tokens`, `tokens_padded`: over all ranks since the previous logged step, without and with padding;
- `padding_share`: the share of padding in `tokens_padded`;
- `seconds`: since the previous logged step;
- `tokens_per_second`: without padding, in those seconds;
- `tokens_per_second_total`: without padding, since this process began to train;
- `memory_gib`, `memory_reserved_gib`: peaks of rank 0, of what tensors took and of what torch held;
- whatever else the trainer logs, under its own names.

The file is strict JSON: a loss that is NaN is written as `"loss": null` and `"loss_text": "nan"`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from launch.config.ranges import is_number
from launch.worker.json_codec import SCHEMA_VERSION, versioned
from launch.worker.opened import FileUse, UsedFile

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
    # It also has eval_loss, and what else the trainer measures on its validation data.
    "evaluation": {"step": int},
    "early_stop": {"step": int, "best_step": int, "evaluations": int},  # it also has best_loss
    # An answer to one of the prompts that an RLVR run samples again; it also has the rewards.
    "completion": {"step": int},
    # The model was saved, and the worker has compared its files with the weights in memory.
    "saved": {"step": int},
    # A file that the trainer or a verifier has used, with its state; it also has `use`
    # (launch/worker/opened.py).
    "opened": {"path": str, "state": list},
    # The tokens of the first samples, in a run that trains an adapter.
    "first_rows": {"rows": list},
}


@dataclass(frozen=True)
class Event:
    """One event of one rank."""

    kind: str
    time: float  # unix seconds
    rank: int
    # The keys of its kind: `step`, `loss`, `message`, ...
    data: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 1  # the attempt (attempts.jsonl), since times may go back between two attempts

    def json_fields(self) -> dict[str, Any]:
        own = {"kind": self.kind, "time": self.time, "rank": self.rank, "attempt": self.attempt}
        return {**own, **self.data}


def parse_event(line: str | bytes, rank: int) -> Event | None:
    """Parse one line of rank `rank`'s channel; return None for a line that is not a valid event."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # a UnicodeDecodeError is a ValueError
        return None
    if not isinstance(value, dict):
        return None
    event = read_event({"rank": rank, **value})
    return event if event is not None and event.rank == rank else None


def read_event(value: Mapping[str, Any]) -> Event | None:
    """Return the event that a JSON object holds; None if it is not a valid one."""
    data = dict(value)
    version = data.pop("schema_version", None)
    kind = data.pop("kind", None)
    time = data.pop("time", None)
    rank = data.pop("rank", None)
    attempt = data.pop("attempt", 1)
    if version != SCHEMA_VERSION or not isinstance(kind, str) or not isinstance(rank, int):
        return None
    if not is_number(time) or not math.isfinite(time) or not _is_complete(kind, data):
        return None
    if type(attempt) is not int or attempt < 1:
        return None
    return Event(kind, float(time), rank, data, attempt)


def _is_complete(kind: str, data: Mapping[str, Any]) -> bool:
    """Return whether the data of an event has the keys that its kind requires."""
    if kind not in _REQUIRED:
        return False
    if kind == "phase" and data.get("phase") not in PHASES:
        return False
    for name, required in _REQUIRED[kind].items():
        value = data.get(name)
        if not isinstance(value, required):
            return False
        if required is int and not _is_count(value):
            return False
    return True


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


# The keys of metrics.jsonl, in the order of the file.
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

# Some trainers log sums since the start of the process, under these names. The value of a step is
# the difference between its sum and the previous one.
_SUMS: Mapping[str, str] = {
    "tokens": "total_tokens",
    "tokens_padded": "total_tokens_including_padding",
}


class Metrics:
    """Makes the objects of metrics.jsonl; a repeated step, or one out of order, gives none."""

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
        named_first = ("step", *get_args(MetricName))
        ordered_names = [*(name for name in named_first if name in known), *known]
        self.last = {name: known[name] for name in ordered_names if name not in _SUMS.values()}
        return versioned(self.last)

    def _add_rates(self, values: dict[str, Any]) -> None:
        """Add tokens per second and the share of padding to the values of a step."""
        tokens = values.get("tokens")
        seconds = values.get("seconds", 0)
        if tokens is None:
            return
        if seconds > 0:
            values.setdefault("tokens_per_second", round(tokens / seconds, 3))
            self._tokens += tokens
            self._seconds += seconds
            values["tokens_per_second_total"] = round(self._tokens / self._seconds, 3)
        padded = values.get("tokens_padded", 0)
        if padded >= tokens > 0:
            values["padding_share"] = round(1 - tokens / padded, 6)

    def _add_differences(self, values: dict[str, Any], time: float) -> None:
        """Add the seconds and the tokens since the previous step to the values of a step."""
        if "seconds" not in values and self._time is not None and time > self._time:
            values["seconds"] = round(time - self._time, 6)
        self._time = time
        for name, sum_name in _SUMS.items():
            total = values.get(sum_name)
            if total is None:
                continue
            if name not in values and total >= self._sums[name]:
                values[name] = total - self._sums[name]
            self._sums[name] = total


def read_opened(event: Event) -> UsedFile | None:
    """Return the file of an "opened" event; None if its state or its use is not valid."""
    try:
        device, inode, size, modified, changed = map(int, event.data["state"])
    except (TypeError, ValueError):
        return None
    use = event.data.get("use", "load")
    if use not in get_args(FileUse):
        return None
    return UsedFile(event.data["path"], (device, inode, size, modified, changed), use)
