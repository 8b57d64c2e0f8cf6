"""Reading a run's record: in the order of its times, over attempts, while it grows."""

from __future__ import annotations

import io
from pathlib import Path

from launch.execution.record.follow import EventFollower, JsonLinesReader
from launch.execution.replay import Replay, Tail, follow
from tests.execution.record.records import START, append, event, write_run


def times(history: EventFollower) -> list[tuple[str, object, float]]:
    return [
        (
            event.kind,
            event.data.get("step", event.data.get("phase", event.data.get("steps"))),
            event.time - START,
        )
        for event in history.read()
    ]


def test_steps_come_between_the_phases_at_their_times(tmp_path: Path) -> None:
    write_run(tmp_path, steps=2)
    append(
        tmp_path / "events.jsonl",
        [event("phase", 11.5, phase="checkpoint"), event("patch", 12.0, id="x")],
    )
    assert times(EventFollower(tmp_path)) == [
        ("phase", "import", 0.0),
        ("phase", "load", 5.0),
        ("total_steps", 2, 9.0),
        ("phase", "training", 10.0),
        ("step", 1, 11.0),
        ("phase", "checkpoint", 11.5),
        ("step", 2, 12.0),
    ]


def test_only_new_events_are_returned(tmp_path: Path) -> None:
    write_run(tmp_path, steps=1)
    history = EventFollower(tmp_path)
    assert len(history.read()) == 5
    assert history.read() == []
    append(tmp_path / "metrics.jsonl", [{"step": 2, "seconds": 3.0}])
    assert times(history) == [("step", 2, 14.0)]


def test_the_steps_of_a_resumed_attempt_come_after_its_training_began(tmp_path: Path) -> None:
    write_run(tmp_path, steps=2)
    again = [event("phase", 100.0, phase="import"), event("phase", 130.0, phase="training")]
    append(tmp_path / "events.jsonl", again)
    append(tmp_path / "attempts.jsonl", [{"resumed_from": None}, {"resumed_from": "step_2"}])
    append(tmp_path / "metrics.jsonl", [{"step": 3, "seconds": 1.0}])
    assert [row for row in times(EventFollower(tmp_path)) if row[0] == "step"] == [
        ("step", 1, 11.0),
        ("step", 2, 12.0),
        ("step", 3, 131.0),
    ]


def test_an_incomplete_line_waits_and_a_truncated_file_continues(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    lines = JsonLinesReader(file)
    assert list(lines.read()) == []
    file.write_bytes(b'{"a": 1}\nnonsense\n[1]\n{"a": 2}')
    assert list(lines.read()) == [{"a": 1}]
    file.write_bytes(b'{"a": 1}\nnonsense\n[1]\n{"a": 2}\n')
    assert list(lines.read()) == [{"a": 2}]
    file.write_bytes(b'{"a": 1}\n')
    assert list(lines.read()) == []
    file.write_bytes(b'{"a": 1}\n{"a": 3}\n')
    assert list(lines.read()) == [{"a": 3}]


def test_following_shows_new_steps_and_ends_with_the_run(tmp_path: Path) -> None:
    write_run(tmp_path, steps=1, total=7)
    shown = io.StringIO()
    waits: list[float] = []

    def more(seconds: float) -> None:
        waits.append(seconds)
        append(
            tmp_path / "metrics.jsonl", [{"step": len(waits) + 1, "loss": 0.25, "seconds": 30.0}]
        )

    follow(Replay(tmp_path, shown), lambda: len(waits) < 1, sleep=more)
    lines = shown.getvalue().splitlines()
    assert lines[:3] == ["importing the trainer", "loading the model", "training"]
    assert lines[3] == "step 1/7  loss 4.0000  100 tokens/s"
    assert lines[-1] == "step 7/7  loss 0.2500  0 s left"


def test_a_rank_log_is_printed_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_bytes(b"\xff\x00 10%\r20%\r\n")
    shown = io.BytesIO()
    follow(Tail(tmp_path / "rank-0.log", shown), lambda: False)
    assert shown.getvalue() == b"\xff\x00 10%\r20%\r\n"
