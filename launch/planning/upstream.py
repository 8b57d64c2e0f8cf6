"""Which source a trainer's script and schema come from: a live checkout, the lock, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from launch.config.schema import Family, TrainerConfig


class SourceKind(StrEnum):
    """`live`: read from the source on this machine; `lock`: from the lock file; `none`: not known here."""

    live = "live"
    lock = "lock"
    none = "none"


@dataclass(frozen=True)
class UpstreamState:
    """`commit` is open-instruct's (None for TRL); `checkout` where it lies, None without one; `matches_pin` is False
    for a checkout that differs from the pin."""

    commit: str | None
    source: SourceKind
    checkout: Path | None
    description: str
    matches_pin: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "commit": self.commit,
            "source": self.source.value,
            "checkout": str(self.checkout) if self.checkout else None,
            "description": self.description,
            "matches_pin": self.matches_pin,
        }


def entry_of(trainer: TrainerConfig, checkout: Path | None) -> str:
    """What the worker runs: the script's path (a path to be, without a checkout), or the module's name."""
    if trainer.family == Family.trl:
        return trainer.entry
    return str((checkout or Path("external/open-instruct")) / trainer.entry)
