"""Facts for tests: steps a second apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from launch.execution.facts import Fact, Guard, GuardFinding, LoggedStep
from launch.execution.record.events import MetricName


def steps(
    key: MetricName, values: Sequence[float], start: int = 1, seconds: float = 1.0
) -> list[Fact]:
    """Steps `start`, ... with `values` under `key`, `seconds` apart."""
    assert key in get_args(MetricName), f"no run logs {key}: {', '.join(get_args(MetricName))}"
    return [
        LoggedStep((start + at) * seconds, start + at, {key: value})
        for at, value in enumerate(values)
    ]


def first(guard: Guard, facts: Sequence[Fact]) -> tuple[int, GuardFinding] | None:
    """The index of the first fact that gives a finding, and the finding."""
    for at, fact in enumerate(facts):
        finding = guard.judge(fact)
        if finding is not None:
            return at, finding
    return None
