"""Detects a NaN or infinite loss or gradient norm, after which every later step and checkpoint is lost."""

from __future__ import annotations

import math

from launch.config.guards import NonFiniteGuard
from launch.execution.guards.facts import Fact, LoggedStep
from launch.execution.guards.guard import Guard, GuardContext, GuardVerdict
from launch.execution.record.metrics import MetricName

_METRICS: dict[MetricName, str] = {"loss": "loss", "grad_norm": "gradient norm"}


class NonFinite(Guard):
    """Stops the run before the next checkpoint can rotate the last good one away."""

    id = "non_finite"

    def __init__(self, config: NonFiniteGuard, _: GuardContext | None = None) -> None:
        self._config = config
        self._streak = 0
        self._last_good: LoggedStep | None = None

    def observe(self, fact: Fact) -> GuardVerdict | None:
        if not isinstance(fact, LoggedStep):
            return None
        bad = {name: value for name in _METRICS if (value := fact.value(name)) is not None and not math.isfinite(value)}
        if not bad:
            self._streak, self._last_good = 0, fact
            return None
        self._streak += 1
        if self._streak < self._config.steps:
            return None
        name, value = next(iter(bad.items()))
        message = f"the {_METRICS[name]} is {value} at step {fact.number}"
        numbers: dict[str, float | int | str] = {"step": fact.number, name: str(value)}
        if self._last_good is None:
            return GuardVerdict(self.id, f"{message}, the first logged step", numbers, good_until=-math.inf)
        last = self._last_good.value(name)
        if last is not None:
            message += f" (it was {last:.4g} at step {self._last_good.number})"
            numbers |= {f"last_{name}": last}
        return GuardVerdict(
            self.id, message, numbers | {"last_good_step": self._last_good.number}, good_until=self._last_good.time
        )
