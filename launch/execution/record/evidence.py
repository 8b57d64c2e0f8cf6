"""What a run proved about itself: evidence.json, and the table printed at its end.

The worker judges at the first optimizer step (launch/worker/evidence). Its findings, its
reports of the caches and the requested settings that nothing checked become one list here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from launch.execution.record.events import Event
from launch.execution.record.run import Run
from launch.table import Table
from launch.worker.finding import PROVEN, REFUTED, UNPROVEN, Evidence, Finding
from launch.worker.json_codec import versioned

_NOT_REACHED = "the run ended before it was checked"
_NO_INSPECTOR = "nothing checks it in this trainer"
_OVERRIDDEN = "not checked: a flag of the user's replaces it"
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
    "saved_weights",
)
_WIDTH = 76  # characters of a value or note in the table


def read_evidence(
    run: Run, requested: Mapping[str, str], since: float, *, inspects: bool = True
) -> tuple[Evidence, ...]:
    """Return the items of one attempt of a run: those reported at time `since` (unix seconds) or
    later.

    `inspects`: whether a worker checks the `requested` settings in this trainer.
    """
    reported = [event for event in run.events("evidence") if event.time >= since]
    return merge_events(reported, requested, inspects=inspects)


def merge_events(
    events: Iterable[Event], requested: Mapping[str, str], *, inspects: bool = True
) -> tuple[Evidence, ...]:
    """Return one item for each setting that the "evidence" `events` report, over all ranks.

    The `requested` settings that are not among them follow as unproven.
    """
    settings: dict[str, dict[int, Mapping[str, Any]]] = {}
    for event in events:
        # a later one of the same rank replaces an earlier one
        settings.setdefault(event.data["what"], {})[event.rank] = event.data
    reported = [_merge_ranks(what, by_rank) for what, by_rank in settings.items()]
    how = _NOT_REACHED if inspects else _NO_INSPECTOR
    missing = [
        Evidence(what, None, how, requested[what], UNPROVEN)
        for what in requested
        if what not in settings
    ]
    return (*reported, *missing)


def unchecked_settings(overridden: Mapping[str, str]) -> tuple[Evidence, ...]:
    """Return settings of the recipe that flags replace: they count among those requested, and stop
    no run.
    """
    return tuple(
        Evidence(what, None, _OVERRIDDEN, value, UNPROVEN) for what, value in overridden.items()
    )


def _merge_ranks(what: str, by_rank: Mapping[int, Mapping[str, Any]]) -> Evidence:
    """Return the worst verdict of all ranks, and every value where they differ."""
    verdicts = [event.get("verdict") for event in by_rank.values()]
    verdict = next((worst for worst in (REFUTED, UNPROVEN, PROVEN) if worst in verdicts), None)
    chosen = next(event for event in by_rank.values() if event.get("verdict") == verdict)
    values = {rank: event.get("value") for rank, event in sorted(by_rank.items())}
    agree = all(value == chosen.get("value") for value in values.values())
    # the other ranks waited for the one that built it
    if what.endswith("_cache") and "built" in values.values():
        agree, chosen = (
            True,
            next(event for event in by_rank.values() if event.get("value") == "built"),
        )
    value = (
        chosen.get("value")
        if agree
        else "; ".join(f"rank {rank}: {value}" for rank, value in values.items())
    )
    how = chosen.get("how") or chosen.get("path")
    return Evidence(what, value, how, chosen.get("requested"), verdict, chosen.get("note"))


def unmet_settings(items: Iterable[Evidence], allow: Collection[str]) -> list[Finding]:
    """Return what stops a run: requested settings that are not proven, where a worker checks them
    in this trainer.
    """
    found = (item.finding(allow) for item in items if item.how not in (_NO_INSPECTOR, _OVERRIDDEN))
    return [finding for finding in found if finding and finding.stops]


def evidence_as_json(items: Sequence[Evidence]) -> dict[str, Any]:
    """Return the content of evidence.json."""
    return versioned({"items": [_item_as_json(item) for item in items]})


def _item_as_json(item: Evidence) -> dict[str, Any]:
    named = {
        "what": item.what,
        "requested": item.requested,
        "found": item.value,
        "verdict": item.verdict,
    }
    return {**named, "how": item.how, "note": item.note}


def evidence_table(items: Sequence[Evidence]) -> list[str]:
    """Return the lines for the terminal, what is not proven first; [] when nothing was
    requested.
    """
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
    return [header, *(f"  {line}" for line in Table("", rows).lines())]


def _describe_value(item: Evidence) -> str:
    value = "?" if item.value is None else str(item.value)
    if item.verdict == REFUTED or (item.verdict == UNPROVEN and item.requested):
        value = f"{value}, requested {item.requested}"
    return _truncate(value)


def _describe_note(item: Evidence) -> str:
    how = str(item.how) if item.verdict in (REFUTED, UNPROVEN) and item.how else ""
    return _truncate(item.note or how)


def _truncate(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
