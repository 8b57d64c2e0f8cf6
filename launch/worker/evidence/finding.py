"""A finding: what was checked, what was found, and whether that matches the request."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

PROVEN = "proven"
REFUTED = "refuted"
UNPROVEN = "unproven"


@dataclass(frozen=True)
class EvidenceFinding:
    """One checked setting of the running trainer."""

    what: str  # a stable name
    value: Any  # what was found; None if it could not be determined
    how: str  # where it was found
    requested: str | None = None  # what the plan requested; None if nothing
    verdict: str | None = None  # PROVEN, REFUTED or UNPROVEN; None if nothing was requested
    note: str | None = None

    def judge(self, requested: str | None, holds: bool | None) -> EvidenceFinding:
        """Return a copy with a verdict on what is `requested`; `holds` None means that it can't be determined."""
        if requested is None:
            return self
        verdict = UNPROVEN if holds is None else PROVEN if holds else REFUTED
        return replace(self, requested=requested, verdict=verdict)

    def fields(self) -> dict[str, Any]:
        """Return the fields of an "evidence" event."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def unproven(what: str, requested: str | None, how: str) -> list[EvidenceFinding]:
    """Return the finding that nothing shows whether `requested` is in effect; none where nothing is requested."""
    return [EvidenceFinding(what, None, how).judge(requested, None)] if requested else []
