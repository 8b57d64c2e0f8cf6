"""A run folder is read part by part; what is missing or broken in it is empty and hides no other
part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launch.__main__ import main
from launch.execution.record.run import Run
from launch.worker.json_codec import to_json
from tests.execution.record.records import event

PARTS: dict[str, Any] = {
    "plan.json": {
        "schema_version": 1,
        "flags": {"lr": {"value": 0.1}, "odd": 3},
        "command": ["python"],
        "parallel": {"precision": "bf16"},
    },
    "versions.json": {"python": "3.11.7"},
    "git.json": {"launch": {"commit": "a" * 40}},
    "patches.json": [{"id": "evidence"}, "odd"],
    "evidence.json": {"items": [{"what": "liger"}, 3]},
    "config.yaml": {"stage": {"kind": "sft"}},
    "DONE": {
        "exit_code": 0,
        "seconds": 2.5,
        "steps": 2,
        "last_loss": 1.5,
        "ended_processes": 0,
        "finished": "2026-11-23T20:06:39Z",
    },
}
LINES = {
    "metrics.jsonl": [
        {"step": 1, "loss": 2.0},
        {"step": True},
        {"loss": 1.0},
        [],
        {"step": 2, "loss": 1.5},
    ],
    "events.jsonl": [
        {"schema_version": 1, **event("total_steps", 0.5, steps=8)},
        {"schema_version": 1, **event("phase", 1.0, phase="training")},
        {"schema_version": 1, **event("total_steps", 2.0, steps="many")},
        7,
    ],
    "attempts.jsonl": [{"attempt": 1}],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "sft" / "a"
    folder.mkdir(parents=True)
    for name, content in PARTS.items():
        (folder / name).write_text(json.dumps(content))
    for name, lines in LINES.items():
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"cut o')
    return folder


def test_each_part_of_a_whole_folder(run: Path) -> None:
    record = Run(run)
    assert record.name == "sft/a" and record.flags == {"lr": 0.1, "odd": None}
    assert (record.patches, record.evidence) == ([{"id": "evidence"}], [{"what": "liger"}])
    assert record.attempts == [{"attempt": 1}] and record.settings == PARTS["config.yaml"]
    assert [step["loss"] for step in record.steps() if "loss" in step] == [2.0, 1.5]
    assert [event.kind for event in record.events("phase")] == ["phase"]
    assert [event.kind for event in record.events()] == ["total_steps", "phase"]
    assert record.total_steps == 8 and record.finished == 1_795_464_399.0
    status = record.status
    assert (status.state, status.step, status.total_steps, status.loss) == ("done", 2, 8, 1.5)
    assert status.phase is None and status.seconds_left is None  # it does not run


def test_the_status_of_a_finished_run_does_not_read_its_steps(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Run) -> Iterator[dict[str, Any]]:
        raise AssertionError("all steps are read")

    monkeypatch.setattr(Run, "steps", refuse)
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write("\n" + "x" * (1 << 17) + "\n" + '{"step": 3, "loss": 1.25}\n')
    assert Run(run).status.loss == 1.25


@pytest.mark.parametrize(
    "broken", [b"", b"\xff\xfe\x00", b"[1, 2", b"[" * 100_000, b'{"items": 3, "flags": [1]}', None]
)
@pytest.mark.parametrize("name", [*PARTS, *LINES])
def test_a_broken_part_hides_no_other(
    run: Path, name: str, broken: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """`None`: a folder lies in the file's place."""
    (run / name).unlink()
    if broken is None:
        (run / name).mkdir()
    else:
        (run / name).write_bytes(broken)
    record, whole = Run(run), len(PARTS)
    found = (
        record.flags,
        record.versions,
        record.git,
        record.patches,
        record.evidence,
        record.settings,
    )
    assert sum(map(bool, (*found, record.outcome))) >= whole - 1
    # an object in DONE, of whatever form, ends a run
    is_marked = name != "DONE" or (broken or b"").startswith(b"{")
    assert record.status.state == ("done" if is_marked else "unfinished")
    runs = f"runs={run.parents[1]}"
    for verb in (["status"], ["report", "sft/a"], ["compare", "sft/a", "sft/a"]):
        assert main([*verb, runs]) in (0, 2), capsys.readouterr().err
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "damage", "note"),
    [
        ("plan.json", "[", "plan.json cannot be read"),
        ("metrics.jsonl", "\n[1]\n", "5 lines of metrics.jsonl could not be read"),
        ("events.jsonl", "\nnull\n", "4 lines of events.jsonl could not be read"),
        ("attempts.jsonl", "\n7\n", "2 lines of attempts.jsonl could not be read"),
        ("evidence.json", "x", "evidence.json cannot be read"),
        ("DONE", "x", "DONE cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named(run: Path, name: str, damage: str, note: str) -> None:
    before = (run / name).read_text() if name.endswith(".jsonl") else ""
    (run / name).write_text(before + damage)
    assert any(found.startswith(note) for found in Run(run).missing_parts), Run(run).missing_parts


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('{"schema_version": 7}', "its schema_version is 7"),
        ('{"schema_version": true}', "its schema_version is True"),
        ('{"schema_version": "1"}', "its schema_version is 1"),
        ('{"identity": "0"}', "it has no schema_version"),
        ("{}", "it has no schema_version"),
        ("[", "it has no schema_version"),
    ],
)
def test_a_plan_of_another_format_is_named(run: Path, content: str, fault: str) -> None:
    assert Run(run).other_format is None
    (run / "plan.json").write_text(content)
    problem = Run(run).other_format
    assert problem is not None and problem.id == "other_format"
    assert problem.message.startswith(f"{run / 'plan.json'} ") and problem.message.endswith(fault)
    status = to_json(Run(run).status)
    assert status["cause_id"] == "other_format" and status["cause"] == problem.message
    assert status["state"] in ("done", "failed", "unfinished", "running")


def test_nothing_of_a_folder_that_is_not_there(tmp_path: Path) -> None:
    record = Run(tmp_path / "sft" / "gone")
    assert not (
        record.plan or record.patches or record.config or record.command or list(record.steps())
    )
    assert record.other_format is None
    assert (
        record.status.state == "absent" and record.finished is None and record.total_steps is None
    )
