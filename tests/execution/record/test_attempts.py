"""One metrics.jsonl over all attempts: each step once, in order."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from launch.execution.record.attempts import (
    add_earlier_steps,
    begin_attempt,
    drop_repeated_steps,
    latest_attempt,
    supersede_steps,
)
from launch.execution.record.checkpoints import Checkpoint
from launch.execution.record.outcome import Outcome
from launch.execution.resume import last_logged_step


def write(path: Path, values: Iterable[tuple[int, float]]) -> Path:
    path.write_text(
        "".join(json.dumps({"schema_version": 1, "step": s, "loss": x}) + "\n" for s, x in values)
    )
    return path


def read(path: Path) -> list[tuple[int, float]]:
    return [
        (value["step"], value["loss"]) for value in map(json.loads, path.read_text().splitlines())
    ]


def test_steps_after_the_checkpoint_are_superseded(tmp_path: Path) -> None:
    metrics = write(tmp_path / "metrics.jsonl", [(step, 1.0) for step in range(1, 14)])
    with metrics.open("a") as stream:
        stream.write('{"schema_version": 1, "step": 14, "lo')  # the crash
    chosen = Checkpoint(tmp_path / "model" / "step_10", "step", 10, (), marked=True)
    broken = Checkpoint(
        tmp_path / "model" / "step_12", "step", 12, ("optimizer.bin is missing",), marked=True
    )
    assert begin_attempt(tmp_path, None, ()) == 1
    assert begin_attempt(tmp_path, chosen, (broken,)) == 2
    assert read(metrics) == [(step, 1.0) for step in range(1, 11)]
    assert read(tmp_path / "metrics.superseded.jsonl") == [(11, 1.0), (12, 1.0), (13, 1.0)]
    attempt = json.loads((tmp_path / "attempts.jsonl").read_text().splitlines()[1])
    assert (attempt["resumed_from"], attempt["set_aside"], attempt["schema_version"]) == (
        "step_10",
        ["step_12"],
        1,
    )
    assert last_logged_step(tmp_path) == 10


def test_attempts_are_counted_by_their_numbers(tmp_path: Path) -> None:
    """A line that a full disk cut short takes no number from the next attempt."""
    assert latest_attempt(tmp_path) == 0
    for number in (1, 2):
        assert begin_attempt(tmp_path, None, ()) == number
    attempts = tmp_path / "attempts.jsonl"
    first, second = attempts.read_text().splitlines()
    attempts.write_text(f"{first[:20]}\n{second}\n{second[:20]}")
    assert begin_attempt(tmp_path, None, ()) == 3
    assert latest_attempt(tmp_path) == 3


def test_steps_after_an_epoch_checkpoint_replace_the_earlier_ones(tmp_path: Path) -> None:
    first, second = [(step, 1.0) for step in range(1, 10)], [(step, 2.0) for step in range(8, 15)]
    metrics = write(tmp_path / "metrics.jsonl", [*first, *second])
    drop_repeated_steps(metrics)
    assert read(metrics) == [(step, 1.0 if step < 8 else 2.0) for step in range(1, 15)]


@given(attempts=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=5))
def test_settled_steps_are_in_order_and_the_latest(attempts: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        values = [
            (first + i, float(n)) for n, (first, count) in enumerate(attempts) for i in range(count)
        ]
        metrics = write(Path(folder) / "metrics.jsonl", values)
        drop_repeated_steps(metrics)
        settled = read(metrics)
        assert [step for step, _ in settled] == sorted({step for step, _ in settled})
        latest = dict(values)
        assert all(latest[step] == attempt for step, attempt in settled)


def test_a_file_that_is_missing_or_in_order_stays_as_it_is(tmp_path: Path) -> None:
    drop_repeated_steps(tmp_path / "metrics.jsonl")
    assert not (tmp_path / "metrics.jsonl").exists()
    metrics = write(tmp_path / "metrics.jsonl", [(1, 3.0), (2, 2.0)])
    before = metrics.stat().st_ino
    drop_repeated_steps(metrics)
    assert metrics.stat().st_ino == before
    supersede_steps(metrics, 2)
    assert read(metrics) == [(1, 3.0), (2, 2.0)]
    assert not (tmp_path / "metrics.superseded.jsonl").exists()


def test_an_attempt_without_steps_reports_the_earlier_ones(tmp_path: Path) -> None:
    metrics = write(tmp_path / "metrics.jsonl", [(1, 3.0), (2, 2.5)])
    outcome = add_earlier_steps(Outcome(0, 5.0, 0, None), metrics)
    assert (outcome.steps, outcome.last_loss) == (2, 2.5)
    assert add_earlier_steps(Outcome(0, 5.0, 7, 1.0), metrics).steps == 7
