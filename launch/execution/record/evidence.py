"""What a run proved about itself: evidence.json, and the table printed at its end.

The worker judges at the first optimizer step (launch/worker/evidence). Its findings, the readers' (the caches) and the
requested settings that nothing checked become one list here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launch.execution.record.events import SCHEMA_VERSION
from launch.execution.record.history import JsonLinesReader
from launch.terminal import align_columns

PROVEN, REFUTED, UNPROVEN = "proven", "refuted", "unproven"
_NOT_REACHED = "the run ended before it was checked"
_NO_INSPECTOR = "nothing checks it in this trainer"
# shown in the table although nothing requested them
_NOTABLE = (
    "attention",
    "balance",
    "dataset_cache",
    "reference_logprobs_cache",
    "reference_logprobs",
    "resumed_from",
    "master_dtype",
    "zero_offload",
    "sharding",
)
_WIDTH = 76  # characters of a value or note in the table


@dataclass(frozen=True)
class EvidenceItem:
    """One setting and what the run shows of it."""

    what: str
    requested: str | None  # None: the plan left it open
    found: Any
    verdict: str | None  # PROVEN, REFUTED or UNPROVEN; None where nothing was requested
    how: str | None = None  # where the value was read
    note: str | None = None

    @property
    def id(self) -> str:
        """The id that `allow` takes for it, as in launch/worker/evidence/collector.py."""
        return f"{self.verdict}_{self.what}"

    def as_json(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def read_evidence(
    events: Path, requested: Mapping[str, str], since: float, *, inspects: bool = True
) -> tuple[EvidenceItem, ...]:
    """Return the items of one attempt: those in `events` (events.jsonl) at time `since` (unix seconds) or later.

    `inspects`: whether a worker checks the `requested` settings in this trainer.
    """
    reported = [
        event
        for event in JsonLinesReader(events).read()
        if event.get("kind") == "evidence" and event.get("time", 0) >= since
    ]
    return merge_events(reported, requested, inspects=inspects)


def merge_events(
    events: Iterable[Mapping[str, Any]], requested: Mapping[str, str], *, inspects: bool = True
) -> tuple[EvidenceItem, ...]:
    """Return one item for each setting that the "evidence" `events` report, over all ranks.

    The `requested` settings that are not among them follow as unproven.
    """
    settings: dict[str, dict[int, Mapping[str, Any]]] = {}
    for event in events:
        settings.setdefault(str(event["what"]), {})[int(event["rank"])] = event  # a later one replaces an earlier one
    reported = [_merge_ranks(what, by_rank) for what, by_rank in settings.items()]
    how = _NOT_REACHED if inspects else _NO_INSPECTOR
    missing = [EvidenceItem(what, requested[what], None, UNPROVEN, how) for what in requested if what not in settings]
    return (*reported, *missing)


def _merge_ranks(what: str, by_rank: Mapping[int, Mapping[str, Any]]) -> EvidenceItem:
    """Return the worst verdict of all ranks, and every value where they differ."""
    verdicts = [event.get("verdict") for event in by_rank.values()]
    verdict = next((worst for worst in (REFUTED, UNPROVEN, PROVEN) if worst in verdicts), None)
    chosen = next(event for event in by_rank.values() if event.get("verdict") == verdict)
    values = {rank: event.get("value") for rank, event in sorted(by_rank.items())}
    agree = all(value == chosen.get("value") for value in values.values())
    if what.endswith("_cache") and "built" in values.values():  # the other ranks waited for the one that built it
        agree, chosen = True, next(event for event in by_rank.values() if event.get("value") == "built")
    value = chosen.get("value") if agree else "; ".join(f"rank {rank}: {value}" for rank, value in values.items())
    how = chosen.get("how") or chosen.get("path")
    return EvidenceItem(what, chosen.get("requested"), value, verdict, how, chosen.get("note"))


def unmet_items(items: Iterable[EvidenceItem], allow: Collection[str]) -> list[EvidenceItem]:
    """Return the requested settings that are not proven, without those that no worker checks in this trainer."""
    return [
        item
        for item in items
        if item.requested is not None
        and item.verdict in (REFUTED, UNPROVEN)
        and item.how != _NO_INSPECTOR
        and item.id not in allow
    ]


def evidence_as_json(items: Sequence[EvidenceItem]) -> dict[str, Any]:
    """Return the content of evidence.json."""
    return {"schema_version": SCHEMA_VERSION, "items": [item.as_json() for item in items]}


def evidence_table(items: Sequence[EvidenceItem]) -> list[str]:
    """Return the lines for the terminal, what is not proven first; [] when nothing was requested."""
    judged = [item for item in items if item.verdict is not None]
    if not judged:
        return []
    order = (REFUTED, UNPROVEN, PROVEN)
    judged.sort(key=lambda item: order.index(str(item.verdict)))
    others = [item for item in items if item.verdict is None and item.what in _NOTABLE]
    rows = [
        (str(item.verdict or "-"), item.what, _describe_value(item), _describe_note(item))
        for item in (*judged, *others)
    ]
    proven = sum(item.verdict == PROVEN for item in judged)
    header = f"evidence: {proven} of {len(judged)} requested settings are proven"
    return [header, *(f"  {line}" for line in align_columns(rows))]


def _describe_value(item: EvidenceItem) -> str:
    value = "?" if item.found is None else str(item.found)
    if item.verdict == REFUTED or (item.verdict == UNPROVEN and item.requested):
        value = f"{value}, requested {item.requested}"
    return _truncate(value)


def _describe_note(item: EvidenceItem) -> str:
    how = str(item.how) if item.verdict in (REFUTED, UNPROVEN) and item.how else ""
    return _truncate(item.note or how)


def _truncate(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
