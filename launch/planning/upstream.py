"""Which source a trainer's script and schema come from: a live checkout, the lock, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from launch.config.schema import Family, TrainerConfig
from launch.upstream.source import Checkout


class SourceKind(StrEnum):
    """`live`: read from the source on this machine; `lock`: from the lock file; `none`: not known here."""

    live = "live"
    lock = "lock"
    none = "none"


@dataclass(frozen=True)
class UpstreamState:
    """`commit` is open-instruct's (None for TRL); `checkout` where it lies, None without one."""

    commit: str | None
    source: SourceKind
    checkout: Path | None
    description: str

    def as_json(self) -> dict[str, Any]:
        return {
            "commit": self.commit,
            "source": self.source.value,
            "checkout": str(self.checkout) if self.checkout else None,
            "description": self.description,
        }


def entry_of(trainer: TrainerConfig, checkout: Path | None) -> str:
    """What the worker runs: the script's path (a path to be, without a checkout), or the module's name."""
    if trainer.family == Family.trl:
        return trainer.entry
    return str((checkout or Path("external/open-instruct")) / trainer.entry)


def commit_of(checkout: Checkout | None, pin: str) -> str:
    """The commit that a plan is made for: the checkout's where it is known, else the pin."""
    return checkout.commit or pin if checkout else pin
