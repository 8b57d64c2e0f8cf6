"""Step events become the objects of metrics.jsonl: one a logged step, of rank 0.

Keys, where the trainer has them: `step`; `loss`; `lr`; `tokens` and `tokens_padded` (sums since the start over all
ranks, without and with padding); `tokens_per_second` (without padding, since the previous logged step); `memory_gib`
(peak allocated, of rank 0); `seconds` (since the previous logged step); and whatever else the trainer logs.
The file is strict JSON: of a loss that is NaN or infinite there is `"loss": null` and `"loss_text": "nan"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch.runtime.events import SCHEMA_VERSION, Event, strict

# what trainers call the same things; the first one present counts
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "loss": ("loss", "train_loss"),
    "lr": ("lr", "learning_rate"),
    "tokens": ("tokens", "total_tokens", "num_tokens", "perf/total_tokens"),
    "tokens_padded": ("tokens_padded", "total_tokens_including_padding"),
    "tokens_per_second": ("tokens_per_second", "perf/tokens_per_second_step"),
    "memory_gib": ("memory_gib", "allocated_mem_GiB"),
}
_DROPPED = frozenset(name for names in _ALIASES.values() for name in names) | {"step", "training_step"}


class Metrics:
    """Makes the objects; a step that came already, or a smaller one, gives none."""

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}
        self.last_loss: float | None = None
        self._step = -1
        self._time: float | None = None
        self._tokens: float | None = None

    def training_began(self, time: float) -> None:
        """From when the first step's seconds count."""
        if self._step < 0 and self._time is None:
            self._time, self._tokens = time, 0

    def add(self, event: Event) -> dict[str, Any] | None:
        """The object for a "step" event, or None for a repeated step and for another rank's."""
        step = int(event.data["step"])
        if event.rank != 0 or step <= self._step:
            return None
        values: dict[str, Any] = {"step": step}
        for key, names in _ALIASES.items():
            value = next((event.data[name] for name in names if _is_number(event.data.get(name))), None)
            if value is not None:
                values[key] = value
        self._add_rates(values, event.time)
        extras = {name: value for name, value in event.data.items() if name not in _DROPPED and _is_number(value)}
        values |= {name: value for name, value in extras.items() if name not in values}
        self._step = step
        if "loss" in values:
            self.last_loss = float(values["loss"])
        self.last = values
        return {"schema_version": SCHEMA_VERSION, **strict(values)}

    def _add_rates(self, values: dict[str, Any], time: float) -> None:
        if self._time is not None and time > self._time:
            seconds = time - self._time
            values["seconds"] = round(seconds, 6)
            if "tokens_per_second" not in values and self._tokens is not None and "tokens" in values:
                gained = values["tokens"] - self._tokens
                if gained >= 0:
                    values["tokens_per_second"] = round(gained / seconds, 3)
        self._time, self._tokens = time, values.get("tokens")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
