"""The settings of `bench`, `rollout` and `tune`, and the record in an overlay of `tune`. Not part of any identity."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Order(StrEnum):
    """How the two settings take turns; `abba` alternates which goes first, so that a drift cancels out."""

    abba = "abba"
    abab = "abab"


class Then(StrEnum):
    """What follows once every width has passed."""

    run = "run"
    stop = "stop"


@dataclass
class BenchConfig:
    """Settings of `bench`; steps=, warmup=, repeats=, order=, max_minutes=, loss_tolerance= are short for its keys."""

    steps: int = 10  # optimizer steps of each run
    warmup: int = 2  # first steps that are not measured: compilation, caches
    repeats: int = 3  # runs of each setting
    order: Order = Order.abba
    max_minutes: float | None = None  # no run starts that would not end within them
    loss_tolerance: float = 0.05  # relative difference after equal steps


@dataclass
class RolloutConfig:
    """Settings of `rollout`; steps=, then=, price_per_gpu_hour= and parallel_at_one= are short for its keys."""

    steps: int = 100  # optimizer steps of each width
    then: Then = Then.stop
    price_per_gpu_hour: float | None = None  # in any currency
    parallel_at_one: str | None = None  # parallel= of the width of one rank, if it differs from the others


@dataclass
class TuneConfig:
    """Settings of `tune`; steps=, probes=, minutes= and dry_run= are short for its keys."""

    steps: int = 8  # optimizer steps of each probe
    probes: int = 8  # maximum number of short runs
    minutes: float = 10.0  # for all probes together; the first one runs to its end
    skip: int = 2  # first steps that are not measured
    room: float = 0.05  # fraction of a GPU's memory that the chosen setting leaves free
    dry_run: bool = False  # only predict


@dataclass
class TunedConfig:
    """The conditions and results with which an overlay (`+tuned=NAME`) was measured."""

    name: str = ""
    date: str = ""
    stage: str = ""
    trainer: str = ""
    model: str = ""
    width: str = ""  # as in a run's name: gpu8
    global_batch_size: int = 0
    max_seq_length: int | None = None  # null in overlays older than this key
    machine: str = ""  # the host's name
    card: str | None = None  # name in nvidia-smi; null on a CPU
    versions: dict[str, str] = field(default_factory=dict)
    tokens_per_second: float | None = None
    step_seconds: float | None = None
    reserved_gib: float | None = None
    record: str = ""  # folder of the search
