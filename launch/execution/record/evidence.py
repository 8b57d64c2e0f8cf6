"""The evidence of a run: which requested settings were in effect, in evidence.json and as a table.

The worker checks the settings at the first optimizer step (launch/worker/evidence) and reports the
caches. This module merges what it reports over all ranks, and adds the requested settings that
nothing checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from launch.execution.record.events import Event
from launch.execution.record.run import Run
from launch.execution.record.written import writers_of
from launch.table import Table
from launch.worker.evidence import (
    NO_STEP,
    NOT_REACHED,
    PROVEN,
    REFUTED,
    TOO_SHORT,
    UNPROVEN,
    Evidence,
    unmet_evidence,
)
from launch.worker.finding import Finding

_NO_INSPECTOR = "nothing checks it in this trainer"
_OVERRIDDEN = "not checked: a flag of the user's replaces it"  # the note of such a setting
# The settings that the table shows although nothing requested them.
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
    run: Run, requested: Mapping[str, str], attempt: int, *, inspects: bool = True
) -> tuple[Evidence, ...]:
    """Return the items that one attempt of a run has reported.

    `inspects`: whether a worker checks the `requested` settings in this trainer.
    """
    reported = [event for event in run.events("evidence") if event.attempt == attempt]
    return merge_events(reported, requested, inspects=inspects)


def read_steps_before(run: Run) -> dict[int, int]:
    """Return the optimizer steps that were done before each attempt, by its number, as its trainer
    has reported them.
    """
    steps = {}
    for event in run.events("evidence"):
        value = event.data.get("value")
        if event.data["what"] == "resumed_step" and isinstance(value, int):
            steps[event.attempt] = value
    return steps


def merge_events(
    events: Iterable[Event], requested: Mapping[str, str], *, inspects: bool = True
) -> tuple[Evidence, ...]:
    """Return one item for each setting that the "evidence" `events` report, over all ranks.

    The `requested` settings that are not among them follow as unproven.
    """
    settings: dict[str, dict[int, Mapping[str, Any]]] = {}  # {setting: {rank: report}}
    for event in events:
        # A later report of the same rank replaces an earlier one.
        settings.setdefault(event.data["what"], {})[event.rank] = event.data
    items = [_merge_ranks(what, by_rank) for what, by_rank in settings.items()]
    how = NOT_REACHED if inspects else _NO_INSPECTOR
    for what, value in requested.items():
        if what not in settings:
            items.append(Evidence(what, None, how, value, UNPROVEN))
    return tuple(_require_verdict(item, requested.get(item.what)) for item in items)


def _require_verdict(item: Evidence, requested: str | None) -> Evidence:
    """Return a requested setting that was reported without a verdict as unproven."""
    if requested is None or item.verdict is not None:
        return item
    return replace(item, requested=requested, verdict=UNPROVEN, how=NO_STEP)


def add_earlier_proofs(
    items: Iterable[Evidence], run: Run, requested: Mapping[str, str], checkpoint: str | None
) -> tuple[Evidence, ...]:
    """Return the evidence of an attempt with the proofs of those that made its checkpoint.

    These proofs count for settings that no step of this attempt could show, for example because no
    step was left. A resume has compared the checkpoint's files with those that were written then.
    """
    earlier = []
    for attempt in writers_of(run.folder, checkpoint):
        shown = read_evidence(run, requested, attempt)
        earlier.append((attempt, {item.what: item for item in shown}))
    return tuple(_find_proof(item, earlier) for item in items)


def _find_proof(item: Evidence, earlier: Sequence[tuple[int, Mapping[str, Evidence]]]) -> Evidence:
    if item.verdict != UNPROVEN or item.how not in (NOT_REACHED, NO_STEP, TOO_SHORT):
        return item
    for attempt, proofs in earlier:
        proof = proofs.get(item.what)
        if proof is not None and proof.verdict == PROVEN:
            return replace(proof, note=_join(proof.note, f"shown by attempt {attempt}"))
    return item


def _join(*notes: str | None) -> str:
    return "; ".join(note for note in notes if note)


def unchecked_settings(overridden: Mapping[str, str]) -> tuple[Evidence, ...]:
    """Return the recipe's settings that flags replace as unproven: they were requested, but they
    stop no run.
    """
    items = []
    for what, value in overridden.items():
        items.append(Evidence(what, None, _OVERRIDDEN, value, UNPROVEN))
    return tuple(items)


def _merge_ranks(what: str, by_rank: Mapping[int, Mapping[str, Any]]) -> Evidence:
    """Return the worst verdict of all ranks, and every value where they differ."""
    reports = list(by_rank.values())
    verdicts = [report.get("verdict") for report in reports]
    verdict = next((worst for worst in (REFUTED, UNPROVEN, PROVEN) if worst in verdicts), None)
    chosen = reports[verdicts.index(verdict)]
    values = {rank: report.get("value") for rank, report in sorted(by_rank.items())}
    value: Any
    if what.endswith("_cache") and "built" in values.values():
        # One rank built the cache, and the others waited for it.
        chosen = next(report for report in reports if report.get("value") == "built")
        value = "built"
    elif all(other == chosen.get("value") for other in values.values()):
        value = chosen.get("value")
    else:
        value = "; ".join(f"rank {rank}: {of_rank}" for rank, of_rank in values.items())
    how = chosen.get("how") or chosen.get("path")
    return Evidence(what, value, how, chosen.get("requested"), verdict, chosen.get("note"))


def unmet_settings(items: Iterable[Evidence], allow: Collection[str]) -> list[Finding]:
    """Return the failures that stop a run: requested settings that are not proven, although a
    worker checks them in this trainer.
    """
    failures = []
    for item in unmet_evidence(items, allow):
        finding = item.finding(allow)
        if finding is not None and item.how not in (_NO_INSPECTOR, _OVERRIDDEN):
            failures.append(finding)
    return failures


def evidence_table(items: Sequence[Evidence], *, is_whole: bool = False) -> list[str]:
    """Return the lines for the terminal; [] when nothing was requested.

    Settings that are refuted or unproven come first. `is_whole`: no value or note is cut, as in a
    file.
    """
    items, unreached = fold_unreached(items)
    judged = [item for item in items if item.verdict is not None]
    if not judged and not unreached:
        return []
    order = (REFUTED, UNPROVEN, PROVEN)
    judged.sort(key=lambda item: order.index(str(item.verdict)))
    others = [item for item in items if item.verdict is None and item.what in _NOTABLE]
    rows = []
    for item in (*judged, *others):
        value = _describe_value(item)
        note = _describe_note(item)
        if not is_whole:
            value = _truncate(value)
            note = _truncate(note)
        rows.append((str(item.verdict or "-"), item.what, value, note))
    proven = sum(item.verdict == PROVEN for item in judged)
    count = len(judged) + unreached
    settings = "setting is" if count == 1 else "settings are"
    lines = [f"evidence: {proven} of {count} requested {settings} proven"]
    if rows:
        lines += [f"  {line}" for line in Table("", rows).lines()]
    if unreached:
        lines.append(f"  {describe_unreached(unreached)}")
    return lines


def fold_unreached(items: Sequence[Evidence]) -> tuple[list[Evidence], int]:
    """Return the items to show one by one, and the number of the others: settings that the run
    ended too early to check. A single one is shown.
    """
    unreached = [
        item
        for item in items
        if item.verdict == UNPROVEN and item.how == NOT_REACHED and not item.note
    ]
    if len(unreached) < 2:
        return list(items), 0
    return [item for item in items if item not in unreached], len(unreached)


def describe_unreached(count: int) -> str:
    return f"{count} further settings were not reached: the run ended before they were checked"


def _describe_value(item: Evidence) -> str:
    value = "?" if item.value is None else str(item.value)
    if item.verdict == REFUTED or (item.verdict == UNPROVEN and item.requested):
        value = f"{value}, requested {item.requested}"
    return value


def _describe_note(item: Evidence) -> str:
    if item.note:
        return item.note
    if item.how and item.verdict in (REFUTED, UNPROVEN):
        return item.how
    return ""


def _truncate(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
