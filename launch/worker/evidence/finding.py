"""A finding: what was checked, what was found, and whether that matches the request."""

from __future__ import annotations

from collections.abc import Callable
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


def check_isolation(leaks: Callable[[], bool], how: str, note: str | None = None) -> EvidenceFinding:
    """Return the finding "isolation": whether documents that share a row are apart, by a test that may fail itself."""
    try:
        has_leak = leaks()
    except Exception as error:  # any model or kernel may refuse to be built or called like this
        why = f"the test did not run ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
        return EvidenceFinding("isolation", None, how, note=why).judge("true", None)
    value = "documents see each other" if has_leak else "documents are apart"
    return EvidenceFinding("isolation", value, how, note=note).judge("true", not has_leak)


def unproven(what: str, requested: str | None, how: str) -> list[EvidenceFinding]:
    """Return the finding that nothing shows whether `requested` is in effect; none where nothing is requested."""
    return [EvidenceFinding(what, None, how).judge(requested, None)] if requested else []
