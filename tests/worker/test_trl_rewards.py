"""How completions become rewards: real verifiers, and what completions without an end earn."""

from __future__ import annotations

from typing import Any

import pytest

from launch.worker.channel import EventWriter
from launch.worker.trl_options import VerifierOption
from launch.worker.trl_rewards import Scorer

END = 2
# text -> tokens; the last one reaches the limit
COMPLETIONS = {"8": [5, END], "7": [6, END], "9": [8, 9]}
COLUMNS: dict[str, Any] = {"ground_truth": ["8", "8", "9"], "dataset": ["gsm8k", "gsm8k", "exact"]}


def rewards(
    verifier: str, truncated_reward: float | None
) -> tuple[list[list[float | None]], list[float]]:
    option = VerifierOption({verifier: 1.0}, 30.0, 64, truncated_reward=truncated_reward)
    scorer = Scorer(option, COLUMNS, EventWriter(None, 0))
    scorer.end_ids = frozenset([END])
    texts = [[{"role": "assistant", "content": text}] for text in COMPLETIONS]
    metrics: list[tuple[str, float]] = []
    columns = {"log_metric": lambda *metric: metrics.append(metric), **COLUMNS}
    try:
        functions = scorer.reward_functions()
        given = [
            function([[]] * 3, texts, list(COMPLETIONS.values()), **columns)
            for function in functions
        ]
    finally:
        scorer.process.close()
    return given, [value for name, value in metrics if name == "verifier_failures"]


@pytest.mark.parametrize(("truncated_reward", "last"), [(None, 1.0), (0.0, 0.0), (-0.5, -0.5)])
def test_a_completion_without_an_end_earns_its_own_reward(
    truncated_reward: float | None, last: float
) -> None:
    given, failures = rewards("exact", truncated_reward)
    assert given == [[1.0, 0.0, last]]
    assert failures == [0.0] * (3 if truncated_reward is None else 2)


def test_each_row_is_scored_by_the_verifier_that_it_names() -> None:
    # of `exact`, of `gsm8k`
    assert rewards("rows", 0.0)[0] == [[None, None, 0.0], [1.0, 0.0, None]]
