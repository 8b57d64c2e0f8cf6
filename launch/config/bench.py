"""What `bench` reads besides the two settings. Not part of any plan's identity."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Order(StrEnum):
    """How the two settings take turns: `abba` begins each pair with the other one, so that a drift cancels out."""

    abba = "abba"
    abab = "abab"


@dataclass
class BenchConfig:
    """steps=, warmup=, repeats=, order=, max_minutes= and loss_tolerance= are short for its keys."""

    steps: int = 10  # optimizer steps of each run
    warmup: int = 2  # first steps that no speed counts: compilation, caches
    repeats: int = 3  # runs of each setting
    order: Order = Order.abba
    max_minutes: float | None = None  # no run is begun that would not end within them
    loss_tolerance: float = 0.05  # relative, after equal steps
