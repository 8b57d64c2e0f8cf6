"""Facts for tests: steps a second apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from launch.execution.guards.facts import Fact, LoggedStep
from launch.execution.guards.guard import Guard, GuardVerdict
from launch.execution.record.metrics import MetricName


def steps(key: MetricName, values: Sequence[float], start: int = 1, seconds: float = 1.0) -> list[Fact]:
    """Steps `start`, ... with `values` under `key`, `seconds` apart."""
    assert key in get_args(MetricName), f"no run logs {key}: {', '.join(get_args(MetricName))}"
    return [LoggedStep((start + at) * seconds, start + at, {key: value}) for at, value in enumerate(values)]


def first(guard: Guard, facts: Sequence[Fact]) -> tuple[int, GuardVerdict] | None:
    """The index of the first fact that gives a verdict, and the verdict."""
    for at, fact in enumerate(facts):
        verdict = guard.observe(fact)
        if verdict is not None:
            return at, verdict
    return None
