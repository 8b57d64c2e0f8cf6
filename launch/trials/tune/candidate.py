"""One setting that `tune` may choose: its overrides, its label and its distance from another one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from launch.config.line import format_value
from launch.config.schema import Mode, Packing

_DISTANCES = {"mode": 1.0, "checkpointing": 0.7, "packing": 0.7, "attention": 0.5, "liger": 0.3, "balanced": 0.3}


@dataclass(frozen=True)
class Candidate:
    """The values of the keys that are searched."""

    per_device: int  # recipe.per_device_batch_size
    mode: Mode
    packing: Packing = Packing.none
    checkpointing: bool = False
    liger: bool = False
    attention: str = "auto"
    balanced: bool = False
    averaging: str | None = None  # recipe.loss_averaging
    extra: tuple[tuple[str, Any], ...] = ()  # keys whose effect nothing predicts, with their values

    def keys(self) -> dict[str, Any]:
        """The configuration keys and their values."""
        keys: dict[str, Any] = {
            "recipe.per_device_batch_size": self.per_device,
            "parallel": self.mode.value,
            "recipe.packing": self.packing.value,
            "recipe.gradient_checkpointing": self.checkpointing,
            "recipe.liger": self.liger,
            "recipe.attention": self.attention,
            "recipe.balanced": self.balanced,
        }
        if self.averaging is not None:
            keys["recipe.loss_averaging"] = self.averaging
        return keys | dict(self.extra)

    def overrides(self) -> list[str]:
        """The overrides of a command line."""
        return [f"{key}={format_value(value)}" for key, value in self.keys().items()]

    def label(self, accumulation: int) -> str:
        """A short name, which its run folder has as well: `zero2-8x2-flatten-liger`."""
        marks = [self.packing.value] if self.packing != Packing.none else []
        marks += ["liger"] if self.liger else []
        marks += ["ckpt"] if self.checkpointing else []
        marks += ["balanced"] if self.balanced else []
        marks += [self.attention] if self.attention != "auto" else []
        marks += [f"{key.rpartition('.')[2]}_{format_value(value)}" for key, value in self.extra]
        return "-".join([self.mode.value, f"{self.per_device}x{accumulation}", *marks])

    def distance(self, other: Candidate) -> float:
        """0 for the same setting, about 1 where other parts of a step dominate its time."""
        distance = 0.5 * abs(math.log2(self.per_device / other.per_device))
        distance += sum(weight for name, weight in _DISTANCES.items() if getattr(self, name) != getattr(other, name))
        return distance + (0.1 if self.extra != other.extra else 0.0)
