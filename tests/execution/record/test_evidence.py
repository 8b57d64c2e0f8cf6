"""What a run proved: the events of all ranks become items, a file and a table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.execution.record.events import Event
from launch.execution.record.evidence import (
    add_earlier_proofs,
    evidence_table,
    merge_events,
    read_evidence,
    unmet_settings,
)
from launch.execution.record.run import Run
from launch.files import write_json_lines
from launch.worker.evidence import NO_STEP, Evidence
from launch.worker.json_codec import versioned


def evidence_event(what: str, value: Any, rank: int = 0, **others: Any) -> Event:
    return Event("evidence", 10.0, rank, {"what": what, "value": value, **others})


def test_ranks_that_agree_are_one_item() -> None:
    events = [
        evidence_event("dtype", "bf16", rank, requested="bf16", verdict="proven", how="read")
        for rank in (0, 1)
    ]
    assert merge_events(events, {}) == (Evidence("dtype", "bf16", "read", "bf16", "proven"),)


def test_one_rank_that_differs_decides_the_verdict() -> None:
    events = [
        evidence_event("liger", "rope", requested="rope", verdict="proven"),
        evidence_event(
            "liger",
            "none",
            rank=1,
            requested="rope",
            verdict="refuted",
            note="rope is in 0 of 2 places",
        ),
    ]
    expected = Evidence(
        "liger", "rank 0: rope; rank 1: none", None, "rope", "refuted", "rope is in 0 of 2 places"
    )
    assert merge_events(events, {}) == (expected,)


def test_a_later_event_of_a_rank_replaces_an_earlier_one() -> None:
    events = [
        evidence_event("zero_stage", 3, how="accelerate's state"),
        evidence_event("zero_stage", 3, how="the engine"),
    ]
    assert merge_events(events, {})[0].how == "the engine"


def test_a_cache_that_one_rank_built_was_built() -> None:
    [item] = merge_events(
        [
            evidence_event("dataset_cache", "hit", 1, path="/c"),
            evidence_event("dataset_cache", "built", 0, path="/c"),
        ],
        {},
    )
    assert (item.value, item.how, item.verdict) == ("built", "/c", None)


def test_a_setting_that_was_not_checked_is_unproven() -> None:
    early = merge_events([], {"packing": "flatten"})
    assert early == (
        Evidence("packing", None, "the run ended before it was checked", "flatten", "unproven"),
    )
    [unchecked] = merge_events([], {"packing": "bins"}, inspects=False)
    assert unchecked.how == "nothing checks it in this trainer"


def test_only_this_attempt_counts(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = [
        replace(evidence_event("dtype", "fp32"), time=3620.0),
        # a time server has set the clock back since
        replace(evidence_event("dtype", "bf16"), time=20.0, attempt=2),
        Event("phase", 21.0, 0, {"phase": "training"}, 2),
    ]
    damaged = ['{"kind": "evidence", "time": 22.0, "rank": 0}', "[1]", '{"kind": "evid']
    lines = [*(json.dumps(versioned(event)) for event in events), *damaged]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert [item.value for item in read_evidence(Run(tmp_path), {}, 1)] == ["fp32"]
    assert [item.value for item in read_evidence(Run(tmp_path), {}, 2)] == ["bf16"]
    assert read_evidence(Run(tmp_path), {}, 3) == ()


def test_the_file_has_one_version() -> None:
    event = evidence_event("grad_clip", "1.0", requested="1.0", verdict="proven", how="the engine")
    content = versioned({"items": merge_events([event], {})})
    assert content == {
        "schema_version": 1,
        "items": [
            {
                "what": "grad_clip",
                "requested": "1.0",
                "found": "1.0",
                "verdict": "proven",
                "how": "the engine",
                "note": None,
            }
        ],
    }


def test_the_table_begins_with_what_is_not_proven() -> None:
    events = [
        evidence_event("dtype", "bf16", requested="bf16", verdict="proven"),
        evidence_event(
            "packing", "none", requested="flatten", verdict="refuted", note="4 rows of 30 tokens"
        ),
        evidence_event("attention", "sdpa"),
        evidence_event("parameter_dtype", "bf16"),
    ]
    assert evidence_table(merge_events(events, {"grad_clip": "1.0"})) == [
        "evidence: 1 of 3 requested settings are proven",
        "  refuted   packing    none, requested flatten  4 rows of 30 tokens",
        "  unproven  grad_clip  ?, requested 1.0         the run ended before it was checked",
        "  proven    dtype      bf16",
        "  -         attention  sdpa",
    ]
    assert evidence_table(merge_events([evidence_event("attention", "sdpa")], {})) == []


def test_settings_that_were_not_reached_are_one_line() -> None:
    refuted = evidence_event("packing", "none", requested="flatten", verdict="refuted")
    unreached = {"grad_clip": "1.0", "seed": "1", "beta": "0.1"}
    head, row, folded = evidence_table(merge_events([refuted], unreached))
    assert "0 of 4" in head and "packing" in row and "3 further settings" in folded
    assert len(evidence_table(merge_events([], unreached))) == 2
    [_, unchecked, *_] = evidence_table(merge_events([], unreached, inspects=False))
    assert "nothing checks it" in unchecked  # another reason, and each is shown


def write_attempts(run: Path) -> None:
    """Attempt 1 wrote checkpoint-10, from which attempt 2 resumed and wrote checkpoint-20."""
    write_json_lines(
        run / "attempts.jsonl",
        [{"attempt": 1, "resumed_from": None}, {"attempt": 2, "resumed_from": "checkpoint-10"}],
    )
    written = {"checkpoint-10": 1, "checkpoint-20": 2, "checkpoint-25": None}
    lines = [
        {"checkpoint": name, "attempt": attempt, "files": {}} for name, attempt in written.items()
    ]
    write_json_lines(run / "checkpoints.jsonl", lines)
    events = [
        evidence_event("grad_clip", "1.0", verdict="proven", requested="1.0"),
        evidence_event("first_update", "weights", verdict="proven", requested="weights"),
        replace(
            evidence_event("grad_clip", None, verdict="unproven", requested="1.0", how=NO_STEP),
            attempt=2,
        ),
        replace(
            evidence_event("last_update", "finite", verdict="proven", requested="finite"), attempt=2
        ),
    ]
    write_json_lines(run / "events.jsonl", [versioned(event) for event in events])


REQUESTED = {"grad_clip": "1.0", "first_update": "weights", "last_update": "finite"}


@pytest.mark.parametrize(
    ("checkpoint", "proven"),
    [
        ("checkpoint-20", {"grad_clip": 1, "first_update": 1, "last_update": 2}),
        ("checkpoint-10", {"grad_clip": 1, "first_update": 1}),
        ("checkpoint-25", {}),  # nobody knows which attempt wrote it
        ("checkpoint-30", {}),
        (None, {}),
    ],
)
def test_proofs_come_from_the_attempts_that_made_the_checkpoint(
    tmp_path: Path, checkpoint: str | None, proven: dict[str, int]
) -> None:
    write_attempts(tmp_path)
    run = Run(tmp_path)
    items = add_earlier_proofs(merge_events([], REQUESTED), run, REQUESTED, checkpoint)
    shown = {item.what: item.note for item in items if item.verdict == "proven"}
    assert shown == {what: f"shown by attempt {attempt}" for what, attempt in proven.items()}


@pytest.mark.parametrize("verdict", ["refuted", "unproven"])
def test_what_this_attempt_has_judged_itself_stays(tmp_path: Path, verdict: str) -> None:
    write_attempts(tmp_path)
    judged = Evidence("grad_clip", "2.0", "the engine", "1.0", verdict)
    assert add_earlier_proofs([judged], Run(tmp_path), REQUESTED, "checkpoint-20") == (judged,)


def test_a_requested_setting_without_a_verdict_is_unproven() -> None:
    [item] = merge_events([evidence_event("global_batch", "7 samples")], {"global_batch": "8"})
    assert (item.verdict, item.requested, item.how) == ("unproven", "8", NO_STEP)
    assert len(unmet_settings([item], ())) == 1


def test_a_long_note_is_cut_on_a_terminal_and_whole_in_a_file() -> None:
    note = "the first micro batch " * 20
    item = Evidence("clip", "1.0", "the engine", "1.0", "proven", note)
    [_, on_terminal] = evidence_table([item])
    [_, in_file] = evidence_table([item], is_whole=True)
    assert on_terminal.endswith("...") and len(on_terminal) < len(note)
    assert note.strip() in in_file
