"""The source of a trainer's script and schema: a checkout, the lock file, or none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from launch.config.schema import Family, TrainerConfig


class SourceKind(StrEnum):
    """Where a schema is read from."""

    live = "live"  # the source on this machine
    lock = "lock"  # the lock file
    none = "none"  # nowhere: it is unknown


@dataclass(frozen=True)
class UpstreamState:
    """The upstream source that a plan is made for."""

    commit: str | None  # of open-instruct; None for TRL
    source: SourceKind
    checkout: Path | None  # the folder of open-instruct's source
    description: str
    matches_pin: bool  # False for a checkout that differs from the pin


def trainer_entry(trainer: TrainerConfig, checkout: Path | None) -> str:
    """Return what the worker runs: the script's path (the default one without a checkout), or the module's name."""
    if trainer.family == Family.trl:
        return trainer.entry
    return str((checkout or Path("external/open-instruct")) / trainer.entry)
