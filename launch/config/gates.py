"""The numbers of the gates of a rollout, and what a rollout does besides. Not part of any plan's identity.

A gate is overridden by `allow=[its id]`; the ids are the keys here, and those of gates that have no number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Then(StrEnum):
    """What follows when every width has passed."""

    run = "run"
    stop = "stop"


@dataclass
class RolloutConfig:
    """`rollout` alone reads it; steps=, then=, price_per_gpu_hour= and parallel_at_one= are short for its keys."""

    steps: int = 100  # optimizer steps of each width
    then: Then = Then.stop
    price_per_gpu_hour: float | None = None  # in any currency
    parallel_at_one: str | None = None  # parallel= of the width of one rank, when it is not that of the others


@dataclass
class LossFallsGate:
    short: int = 8  # steps; of fewer no trend is told
    long: int = 50  # steps; from here on the loss must have fallen by `share`
    share: float = 0.01  # of the loss at the start
    trend: float = 1.64  # Mann-Kendall's -z of a fall that is no accident: one-sided, 95 %
    rise: float = 2.58  # z of a rise that is none: 99.5 %, for a red gate must not be an accident


@dataclass
class GradNormGate:
    limit: float = 100.0  # that the median of the norms may reach
    spike: float = 10.0  # x the median: a norm above is a spike
    spikes: float = 0.1  # share of the steps that may be spikes


@dataclass
class MemoryGate:
    room: float = 0.05  # of the card's memory; a peak that leaves less is a warning


@dataclass
class ThroughputGate:
    skip: int = 2  # first steps that do not count: compilation, caches
    steps: int = 10  # counted steps from which steadiness is judged
    slower: float = 0.7  # second half / first half; below is a warning
    collapsed: float = 0.25  # below is a failure


@dataclass
class PaddingGate:
    much: float = 0.5  # share of all tokens; above is a warning
    most: float = 0.95  # above is a failure


@dataclass
class ScalingGate:
    """Tokens a second and rank, over those of the width before."""

    low: float = 0.7  # below is a warning
    least: float = 0.4  # below is a failure


@dataclass
class LossParityGate:
    """Relative differences to the losses of the width before, step by step."""

    steps: int = 10  # compared steps; rounding grows with them
    first_fp32: float = 1e-4  # at the first step, before any update
    first_bf16: float = 2e-3
    fp32: float = 1e-4  # the median of the compared steps
    bf16: float = 5e-3
    masters: float = 2e-2  # the median, where one of the two has no fp32 master weights


@dataclass
class SameScheduleGate:
    differs: float = 0.01  # of the highest learning rate; above is a warning
    wrong: float = 0.25  # above is a failure


@dataclass
class FirstLossGate:
    tolerance: float = 0.02  # around ln 2


@dataclass
class GatesConfig:
    loss_falls: LossFallsGate = field(default_factory=LossFallsGate)
    grad_norm_sane: GradNormGate = field(default_factory=GradNormGate)
    memory_room: MemoryGate = field(default_factory=MemoryGate)
    throughput_steady: ThroughputGate = field(default_factory=ThroughputGate)
    padding: PaddingGate = field(default_factory=PaddingGate)
    scaling: ScalingGate = field(default_factory=ScalingGate)
    loss_parity: LossParityGate = field(default_factory=LossParityGate)
    same_schedule: SameScheduleGate = field(default_factory=SameScheduleGate)
    first_dpo_loss: FirstLossGate = field(default_factory=FirstLossGate)
