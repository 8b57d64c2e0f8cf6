"""`Evidence`: what a trainer shows of a requested setting. The modules of this package collect it.

The evidence is in the objects of the running trainer rather than in its logs. Nothing here gathers
a partitioned parameter or starts a collective: only modules, functions and metadata are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..finding import Finding
from ..json_codec import without_none
from .sentences import wording_of

# The verdicts.
PROVEN = "proven"
REFUTED = "refuted"
UNPROVEN = "unproven"
# A run of at most so many optimizer steps, such as a smoke test, may end before an update of the
# weights can show.
FEW_STEPS = 2
# The `how` of evidence that is unproven because the run has so few steps; it stops no run.
TOO_SHORT = "the run has too few steps to prove it"
# The `how` of evidence that is unproven because this attempt had no step left to show it. The
# attempt that wrote its checkpoint may have shown it.
NO_STEP = "no step of this attempt could show it"
# The `how` of evidence that is unproven because the run ended earlier.
NOT_REACHED = "the run ended before it was checked"
# The texts of `how` that are reasons. All others name a place.
REASONS = (TOO_SHORT, NO_STEP, NOT_REACHED)


@dataclass(frozen=True)
class Evidence:
    """One setting of the running trainer: what the plan requested, and what is in effect."""

    what: str  # a stable name
    value: Any  # the value in effect; None if it could not be determined
    how: str | None  # the place where the value was found
    requested: str | None = None  # None if the plan left it open
    verdict: str | None = None  # PROVEN, REFUTED or UNPROVEN; None if nothing was requested
    note: str | None = None

    @classmethod
    def read(cls, item: Mapping[str, Any]) -> Evidence:
        """Return the evidence that an item of evidence.json holds."""
        return cls(
            what=str(item.get("what")),
            value=item.get("found"),
            how=item.get("how"),
            requested=item.get("requested"),
            verdict=item.get("verdict"),
            note=item.get("note"),
        )

    def judge(self, requested: str | None, holds: bool | None) -> Evidence:
        """Return a copy with the verdict on what is `requested`.

        `holds` says whether it is in effect; None means that this can't be determined.
        """
        if requested is None:
            return self
        verdict = PROVEN if holds else REFUTED
        if holds is None:
            verdict = UNPROVEN
        return replace(self, requested=requested, verdict=verdict)

    def compare(self, requested: str | None) -> Evidence:
        """Return a copy with the verdict whether the value is what is `requested`.

        A value of None is unproven, not refuted.
        """
        holds = None if self.value is None else str(self.value) == requested
        return self.judge(requested, holds)

    def json_fields(self) -> dict[str, Any]:
        """Return an item of evidence.json."""
        return {
            "what": self.what,
            "requested": self.requested,
            "found": self.value,
            "verdict": self.verdict,
            "how": self.how,
            "note": self.note,
        }

    def fields(self) -> dict[str, Any]:
        """Return the fields of an "evidence" event."""
        return without_none(asdict(self))

    def finding(self, allow: Collection[str]) -> Finding | None:
        """Return the failure of a requested setting that the run could have proven and did not.

        None is returned for every other evidence. The id of the failure, which `allow` takes, is
        "refuted_liger", "unproven_packing", ...
        """
        if self.verdict in (None, PROVEN) or self.how == TOO_SHORT:
            return None
        id = f"{self.verdict}_{self.what}"
        wording = wording_of(self.what)
        cure = wording.cure.format(requested=self.requested, value=self.value)
        return Finding.error(id, self.sentence, cure=cure).apply_allow(allow)

    @property
    def sentence(self) -> str:
        """What a refuted or unproven setting means, with what was found, as one sentence."""
        wording = wording_of(self.what)
        template = wording.refuted if self.verdict == REFUTED else wording.unproven
        sentence = template.format(requested=self.requested, value=self.value)
        if self.note:
            return f"{sentence}: {self.note}"
        if self.how in REASONS:
            return f"{sentence}: {self.how}"
        return f"{sentence} (seen in {self.how})" if self.how else sentence


def judge_all(evidence: Iterable[Evidence], requested: Mapping[str, str]) -> list[Evidence]:
    """Return the evidence with verdicts on what is `requested`, which is given by `what`.

    Evidence that has a verdict keeps it. A setting that was neither determined nor requested is
    left out.
    """
    judged = []
    for item in evidence:
        result = item if item.verdict else item.compare(requested.get(item.what))
        if result.verdict or result.value is not None:
            judged.append(result)
    return judged


def unmet_evidence(items: Iterable[Evidence], allow: Collection[str]) -> list[Evidence]:
    """Return the requested settings that are refuted or unproven and that `allow` does not accept.

    Settings that so short a run cannot show are left out.
    """
    unmet = []
    for item in items:
        finding = item.finding(allow)
        if finding is not None and finding.stops:
            unmet.append(item)
    return unmet
