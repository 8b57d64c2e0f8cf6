"""What the end of a run prints: a sentence with its result, and what was wrong with it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from launch.execution.announcements import announce_done
from launch.execution.completion import add_reward
from launch.execution.display import PlainDisplay
from launch.execution.record.outcome import Outcome
from launch.execution.record.run import Run
from tests.conftest import planned
from tests.execution.report.folders import write_run

FALLING = [1 - step / 30 for step in range(30)]


@pytest.mark.parametrize(
    ("rewards", "result", "is_warned"),
    [
        ([step / 30 for step in range(30)], "reward 0.0833 to 0.883 (means of the", False),
        ([0.4] * 30, "reward 0.4 to 0.4 (means of the", True),
        (FALLING, "reward 0.917 to 0.117 (means of the", True),
        ([0.25, 0.5], "last reward 0.5;", False),  # too few for a verdict
        ([0.25], "done: 1 step in 1 min 15 s, last reward 0.25;", False),
        ([], "last loss 0.5;", False),
    ],
)
def test_rlvr_ends_with_its_reward_and_others_with_their_loss(
    tmp_path: Path, rewards: list[float], result: str, is_warned: bool
) -> None:
    """The loss of GRPO is 0 by construction."""
    steps = [{"loss": 0.0, "reward": reward} for reward in rewards]
    run = Run(write_run(tmp_path / "demo_rlvr" / "x", steps or [{"loss": 0.5}]))
    outcome = Outcome(0, 75.0, len(steps) or 1, 0.0 if steps else 0.5)
    shown = io.StringIO()
    announce_done(add_reward(outcome, run), planned("stage=demo", "gpus=0"), PlainDisplay(shown))
    first, *warnings = shown.getvalue().splitlines()
    assert result in first and (bool(rewards) != ("last loss" in first))
    assert [("[reward_not_risen]" in line) for line in warnings] == [True] * is_warned
