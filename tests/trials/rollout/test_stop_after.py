"""The supervisor ends a run that has logged the steps that were requested: real processes, no
trainer.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from launch.errors import EXIT_DONE, EXIT_FAILED
from launch.execution.display import PlainDisplay
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome
from launch.execution.supervise.supervisor import Execution, supervise
from launch.slurm.peers import Peers
from tests.execution.supervise.fake import alive, script

TRAINS_FOR_EVER = """
event("total_steps", steps=100000)
step = 0
while True:
    step += 1
    event("step", step=step, loss=2.0)
    time.sleep(0.05)
"""


def run_for(
    folder: Path,
    body: str,
    steps: int | None,
    seconds: float | None = None,
    peers: Peers | None = None,
) -> tuple[Outcome, RunFolder, str]:
    folder.mkdir(exist_ok=True)
    run_folder = RunFolder(folder / "run")
    run_folder.create()
    shown = io.StringIO()
    execution = Execution(
        argv=(sys.executable, str(script(folder, body))),
        env={"FAKE": str(folder)},
        stop_after=steps,
        seconds=seconds,
        peers=peers,
    )
    return supervise(execution, run_folder, PlainDisplay(shown)), run_folder, shown.getvalue()


def test_a_run_is_ended_and_done_after_its_steps(tmp_path: Path) -> None:
    outcome, folder, shown = run_for(tmp_path, TRAINS_FOR_EVER, steps=5)
    assert outcome.exit_code == EXIT_DONE
    assert outcome.steps >= 5
    assert outcome.cause is None and outcome.ended_processes == 0
    steps = [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 5
    assert not alive(tmp_path)
    assert "behind" not in shown


def test_a_run_is_ended_after_its_time(tmp_path: Path) -> None:
    outcome, _, _ = run_for(tmp_path, TRAINS_FOR_EVER, steps=100_000, seconds=2.0)
    assert outcome.exit_code == EXIT_DONE and 0 < outcome.steps < 100_000
    assert 2.0 <= outcome.seconds < 20 and not alive(tmp_path)


def test_the_node_that_counts_the_steps_ends_the_others(tmp_path: Path) -> None:
    first, second = (
        Peers(tmp_path / "7.0", rank, ("n1", "n2"), 20.0, lambda _: None) for rank in range(2)
    )
    outcome, _, _ = run_for(tmp_path / "first", TRAINS_FOR_EVER, steps=3, peers=first)
    assert outcome.exit_code == EXIT_DONE and first.progress == "complete"
    first.check(), second.check()
    silent, _, _ = run_for(tmp_path / "second", "time.sleep(600)", steps=None, peers=second)
    assert (silent.exit_code, silent.steps, silent.cause) == (EXIT_DONE, 0, None)
    assert not alive(tmp_path / "second")


def test_a_run_that_dies_before_is_a_failure(tmp_path: Path) -> None:
    outcome, _, _ = run_for(
        tmp_path, 'event("step", step=1, loss=2.0)\nraise SystemExit("no luck")', steps=5
    )
    assert outcome.exit_code == EXIT_FAILED
    assert outcome.steps == 1


@pytest.mark.parametrize("steps", [1, 3])
def test_a_shorter_run_ends_by_itself(tmp_path: Path, steps: int) -> None:
    body = f'[event("step", step=step, loss=2.0) for step in range(1, {steps} + 1)]'
    outcome, _, _ = run_for(tmp_path, body, steps=5)
    assert (outcome.exit_code, outcome.steps) == (EXIT_DONE, steps)
