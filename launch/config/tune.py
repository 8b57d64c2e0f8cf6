"""What `tune` reads, and what the overlay that it writes says of itself. Not part of any plan's identity."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TuneConfig:
    """`tune` alone reads it; steps=, probes=, minutes= and dry_run= are short for its keys."""

    steps: int = 8  # optimizer steps of each probe
    probes: int = 8  # short runs at most
    minutes: float = 10.0  # of all probes together; the first one runs whatever it takes
    skip: int = 2  # first steps that no speed counts
    room: float = 0.05  # of a card's memory, left free by what is chosen
    dry_run: bool = False  # predict, and run nothing


@dataclass
class TunedConfig:
    """What an overlay (`+tuned=NAME`) was measured with: where it holds, and what it gave."""

    name: str = ""
    date: str = ""
    stage: str = ""
    trainer: str = ""
    model: str = ""
    width: str = ""  # as in a run's name: gpu8
    global_batch_size: int = 0
    max_seq_length: int | None = None  # null in overlays that were written before it was told
    machine: str = ""  # the host's name
    card: str | None = None  # as nvidia-smi calls it; null on a CPU
    versions: dict[str, str] = field(default_factory=dict)
    tokens_per_second: float | None = None
    step_seconds: float | None = None
    reserved_gib: float | None = None
    record: str = ""  # the search's folder
