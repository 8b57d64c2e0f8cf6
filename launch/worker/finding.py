"""`Finding`: what a check found. `Evidence`: what a trainer shows of a requested setting."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

Level = Literal["pass", "skipped", "warn", "fail"]

PROVEN, REFUTED, UNPROVEN = "proven", "refuted", "unproven"
# optimizer steps of a run, as of a smoke test, that may end before an update of the weights can
# show
FEW_STEPS = 2
# the `how` of what is unproven for that reason, and stops no run
TOO_SHORT = "the run has too few steps to prove it"


@dataclass(frozen=True)
class Finding:
    """One result of a check."""

    id: str  # stable; `allow=[id]` takes that of a failure
    level: Level
    message: str
    cure: str | None = None  # what to do
    where: str | None = None  # where it is set: a key, a flag, or a line of a file
    numbers: Mapping[str, Any] = field(default_factory=dict)  # the measurements behind it
    allowed: bool = False  # `allow=[id]` overrides the failure

    @property
    def stops(self) -> bool:
        return self.level == "fail" and not self.allowed

    def apply_allow(self, allow: Collection[str]) -> Self:
        """Return a copy that is allowed if it is a failure and its id is in `allow`."""
        return replace(self, allowed=self.level == "fail" and self.id in allow)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        cure = f"; {self.cure}" if self.cure else ""
        return f"{place}{self.message}{cure} [{self.id}]{', allowed' if self.allowed else ''}"


@dataclass(frozen=True)
class Evidence:
    """One setting of the running trainer: what the plan requested, and what is in effect."""

    what: str  # a stable name
    value: Any  # what was found; None if it could not be determined
    how: str | None  # where it was found
    requested: str | None = None  # None if the plan left it open
    verdict: str | None = None  # PROVEN, REFUTED or UNPROVEN; None if nothing was requested
    note: str | None = None

    def judge(self, requested: str | None, holds: bool | None) -> Evidence:
        """Return a copy with a verdict on what is `requested`; `holds` None means that it can't be
        determined.
        """
        if requested is None:
            return self
        verdict = UNPROVEN if holds is None else PROVEN if holds else REFUTED
        return replace(self, requested=requested, verdict=verdict)

    def compare(self, requested: str | None) -> Evidence:
        """Return a copy with a verdict: whether the value is what is `requested`; None can't be
        determined.
        """
        return self.judge(requested, None if self.value is None else str(self.value) == requested)

    def fields(self) -> dict[str, Any]:
        """Return the fields of an "evidence" event."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def finding(self, allow: Collection[str]) -> Finding | None:
        """Return the failure of a requested setting that is not proven though the run could prove
        it, else None.

        Its id, which `allow` takes, is "refuted_liger", "unproven_packing", ...
        """
        if self.verdict in (None, PROVEN) or self.how == TOO_SHORT:
            return None
        state = "nothing proves that it is in effect"
        # what was found may be what was requested, with something else wrong
        if self.verdict == REFUTED:
            is_other = str(self.value) != self.requested
            state = f"the trainer has {self.value}" if is_other else "it is not in effect"
        message = f"requested {self.what}={self.requested}, but {state} ({self.note or self.how})"
        return Finding(f"{self.verdict}_{self.what}", "fail", message).apply_allow(allow)


def judge_found(found: Iterable[Evidence], requested: Mapping[str, str]) -> list[Evidence]:
    """Compare what has no verdict yet with what is requested; what was neither found nor requested
    is left out.
    """
    judged = [item if item.verdict else item.compare(requested.get(item.what)) for item in found]
    return [item for item in judged if item.verdict or item.value is not None]
