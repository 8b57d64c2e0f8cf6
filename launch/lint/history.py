"""What happened to a flag upstream, as lint asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Change:
    """`what` happened (`use_flash_attn was removed in #1567`), and the cure, where there is one."""

    what: str
    cure: str | None = None


class History(Protocol):
    """The rename ledger: the last change of a trainer's flag (underscore name), or None."""

    def __call__(self, trainer: str, flag: str) -> Change | None: ...


def no_history(trainer: str, flag: str) -> Change | None:
    """A ledger that knows nothing."""
    return None
