"""Builds the guards of one run and passes every fact to each of them."""

from __future__ import annotations

from collections.abc import Collection

from launch.config.guards import GuardsConfig
from launch.execution.guards.facts import Fact
from launch.execution.guards.guard import Guard, GuardContext, GuardFinding
from launch.execution.guards.life import DeadRank, DiskSpace, Stall
from launch.execution.guards.steps import Divergence, GradNorm, MemoryCreep, NonFinite, Throughput

# each is a field of `GuardsConfig` that has its id as name
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

    def observe(self, fact: Fact) -> list[GuardFinding]:
        """Return the new findings on `fact`."""
        findings: list[GuardFinding] = []
        for guard in self._guards:
            finding = guard.observe(fact)
            if finding is None:
                continue
            finding = finding.apply_allow(self._allow)
            if (guard.id, finding.stops) not in self._issued:
                self._issued.add((guard.id, finding.stops))
                findings.append(finding)
        return findings
