"""Finds the traits that failed probes share, and the settings that have them too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from launch.trials.tune.candidate import Candidate
from launch.trials.tune.probe import Probe, ProbeVerdict

Trait = tuple[str, Any]  # an attribute of a setting and its value
_SAME_FAILURES = 2  # probes with the same cause: the next one like them is expected to fail, too
_FAILED = (ProbeVerdict.failed, ProbeVerdict.refused, ProbeVerdict.host_memory)
_RAN = (ProbeVerdict.measured, ProbeVerdict.out_of_memory)
_RANK = re.compile(r"\branks? [\d, ]+")  # which rank reports the cause first is chance


def find_failure_traits(probes: Sequence[Probe], space: Iterable[Candidate]) -> list[frozenset[Trait]]:
    """For each cause that made several probes fail, the traits that those probes share.

    Traits that the whole space has are left out, and so are those of a probe that ran, unless the failure needs several
    traits together. An empty set means that the setting is not the reason.
    """
    failures_by_cause: dict[str, list[frozenset[Trait]]] = {}
    for probe in probes:
        if probe.verdict in _FAILED:
            failures_by_cause.setdefault(_RANK.sub("rank", probe.why or ""), []).append(_probe_traits(probe))
    repeated = [failures for failures in failures_by_cause.values() if len(failures) >= _SAME_FAILURES]
    if not repeated:
        return []
    common = _common_traits(space)
    ran = [_probe_traits(probe) for probe in probes if probe.verdict in _RAN]
    return [_without_cleared(frozenset.intersection(*failures) - common, ran) for failures in repeated]


def _without_cleared(shared: frozenset[Trait], ran: Sequence[frozenset[Trait]]) -> frozenset[Trait]:
    """The shared traits that no probe that ran has; all of them where only their combination can be the reason."""
    remaining = shared.difference(*ran)
    return remaining if remaining or any(shared <= traits for traits in ran) else shared


def shares_failure_traits(candidate: Candidate, failure_traits: Iterable[frozenset[Trait]]) -> bool:
    """Whether a setting has all the traits that some failed probes share."""
    return any(traits and traits <= traits_of(candidate) for traits in failure_traits)


def no_probe_ran(probes: Sequence[Probe]) -> bool:
    return not any(probe.verdict in _RAN for probe in probes)


def count_shared_traits(candidate: Candidate, probes: Sequence[Probe], space: Iterable[Candidate]) -> int:
    """How many traits a setting shares with all failed probes: the fewer, the more its probe reveals of the cause."""
    failed = [_probe_traits(probe) for probe in probes if probe.verdict in _FAILED]
    if not failed:
        return 0
    return len(traits_of(candidate) & frozenset.intersection(*failed) - _common_traits(space))


def traits_of(candidate: Candidate) -> frozenset[Trait]:
    """The traits that may keep a setting from running: its mode, its packing, and every option that is not default."""
    default = Candidate(candidate.per_device, candidate.mode, candidate.packing)
    names = ("checkpointing", "liger", "attention", "balanced", "averaging", "extra")
    changed = {(name, getattr(candidate, name)) for name in names if getattr(candidate, name) != getattr(default, name)}
    return frozenset({("mode", candidate.mode), ("packing", candidate.packing)} | changed)


def _probe_traits(probe: Probe) -> frozenset[Trait]:
    return traits_of(probe.prediction.candidate)


def _common_traits(space: Iterable[Candidate]) -> frozenset[Trait]:
    return frozenset.intersection(*(traits_of(candidate) for candidate in space))
