"""Builds the guards of one run and passes every fact to each of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from launch.config.guards import GuardsConfig
from launch.execution.guards.dead_rank import DeadRank
from launch.execution.guards.disk import DiskSpace
from launch.execution.guards.divergence import Divergence
from launch.execution.guards.facts import Fact
from launch.execution.guards.grad_norm import GradNorm
from launch.execution.guards.guard import Guard, GuardContext, GuardVerdict
from launch.execution.guards.memory_creep import MemoryCreep
from launch.execution.guards.non_finite import NonFinite
from launch.execution.guards.stall import Stall
from launch.execution.guards.throughput import Throughput

# each is a file here, and a field of `GuardsConfig` that has its id as name
GUARDS: tuple[type[Guard], ...] = (
    NonFinite,
    Divergence,
    GradNorm,
    Stall,
    DeadRank,
    MemoryCreep,
    DiskSpace,
    Throughput,
)


def build_guards(config: GuardsConfig | None, context: GuardContext) -> list[Guard]:
    """Build the guards that the configuration enables."""
    limits = {guard: getattr(config, guard.id) for guard in GUARDS} if config else {}
    return [guard(limit, context) for guard, limit in limits.items() if limit is not None]


class GuardPanel:
    """Passes every fact to every guard. Each guard warns once and stops once; guards in `allow` only warn."""

    def __init__(self, config: GuardsConfig | None, context: GuardContext, allow: Collection[str] = ()) -> None:
        self._guards = build_guards(config, context)
        self._allow = frozenset(allow)
        self._issued: set[tuple[str, bool]] = set()

    def observe(self, fact: Fact) -> list[GuardVerdict]:
        """Return the new verdicts on `fact`."""
        verdicts: list[GuardVerdict] = []
        for guard in self._guards:
            verdict = guard.observe(fact)
            if verdict is None:
                continue
            if verdict.stop and guard.id in self._allow:
                verdict = replace(
                    verdict, stop=False, message=f"{verdict.message}; the run continues because of allow=[{guard.id}]"
                )
            if (guard.id, verdict.stop) not in self._issued:
                self._issued.add((guard.id, verdict.stop))
                verdicts.append(verdict)
        return verdicts
