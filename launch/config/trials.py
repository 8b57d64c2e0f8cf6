"""The settings of `bench`, `rollout` and `tune`, the thresholds of rollout's gates, the record in a
tune's overlay.

None is part of a plan's identity. `allow=[id]` turns a gate into a warning; the ids are the keys of
GatesConfig, and those of gates without a threshold.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from launch.config.ranges import (
    BELOW_ONE,
    COUNT,
    COUNT_OR_ZERO,
    FRACTION,
    FRACTION_OR_ZERO,
    NOT_NEGATIVE,
    POSITIVE,
)


class Order(StrEnum):
    """How the two settings take turns; `abba` alternates which goes first, so that a drift cancels
    out.
    """

    abba = "abba"
    abab = "abab"


class Then(StrEnum):
    """What follows once every width has passed."""

    run = "run"
    stop = "stop"


@dataclass
class BenchConfig:
    """Settings of `bench`; steps=, warmup=, repeats=, order=, max_minutes=, loss_tolerance= are
    short for its keys.
    """

    steps: int = COUNT.of(10)  # optimizer steps of each run
    warmup: int = COUNT_OR_ZERO.of(2)  # first steps that are not measured: compilation, caches
    repeats: int = COUNT.of(3)  # runs of each setting
    order: Order = Order.abba
    max_minutes: float | None = POSITIVE.of(None)  # no run starts that would not end within them
    loss_tolerance: float = FRACTION.of(0.05)  # relative difference after equal steps


@dataclass
class RolloutConfig:
    """Settings of `rollout`; steps=, then=, price_per_gpu_hour= and parallel_at_one= are short for
    its keys.
    """

    steps: int = COUNT.of(100)  # optimizer steps of each width
    then: Then = Then.stop
    price_per_gpu_hour: float | None = NOT_NEGATIVE.of(None)  # in any currency
    # parallel= of the width of one rank, if it differs from the others
    parallel_at_one: str | None = None


@dataclass
class TuneConfig:
    """Settings of `tune`; steps=, probes=, minutes=, dry_run= and compare_full= are short for its
    keys.
    """

    steps: int = COUNT.of(8)  # optimizer steps of each probe
    probes: int = COUNT.of(8)  # maximum number of short runs
    minutes: float = POSITIVE.of(10.0)  # for all probes together; the first one runs to its end
    skip: int = COUNT_OR_ZERO.of(2)  # first steps that are not measured
    # fraction of a GPU's memory that the chosen setting leaves free
    room: float = BELOW_ONE.of(0.05)
    dry_run: bool = False  # only predict
    # of a LoRA stage: also probe full fine-tuning once, where memory allows
    compare_full: bool = False


@dataclass
class TunedConfig:
    """The conditions and results with which an overlay (`+tuned=NAME`) was measured."""

    name: str = ""
    date: str = ""
    stage: str = ""
    trainer: str = ""
    model: str = ""
    width: str = ""  # as in a run's name: gpu8
    global_batch_size: int = 0
    max_seq_length: int = 0
    machine: str = ""  # the host's name
    card: str | None = None  # name in nvidia-smi; null on a CPU
    versions: dict[str, str] = field(default_factory=dict)
    tokens_per_second: float | None = None
    step_seconds: float | None = None
    reserved_gib: float | None = None
    record: str = ""  # folder of the search


@dataclass
class LossFallsGate:
    short: int = COUNT.of(8)  # steps; with fewer, no trend is tested
    long: int = COUNT.of(50)  # steps; from here on, the loss must have fallen by `share`
    share: float = FRACTION_OR_ZERO.of(0.01)  # fraction of the initial loss
    # -z of the Mann-Kendall test for a significant fall: one-sided, 95 %
    trend: float = NOT_NEGATIVE.of(1.64)
    # z for a significant rise: 99.5 %, so that noise rarely fails a gate
    rise: float = NOT_NEGATIVE.of(2.58)


@dataclass
class GradNormGate:
    limit: float = POSITIVE.of(100.0)  # maximum of the norms' median
    spike: float = POSITIVE.of(10.0)  # x the median: a higher norm is a spike
    spikes: float = FRACTION_OR_ZERO.of(0.1)  # maximum fraction of steps that are spikes


@dataclass
class MemoryGate:
    # fraction of the GPU's memory; a peak that leaves less free is a warning
    room: float = BELOW_ONE.of(0.05)


@dataclass
class ThroughputGate:
    skip: int = COUNT_OR_ZERO.of(2)  # first steps that are not measured: compilation, caches
    steps: int = COUNT.of(10)  # measured steps from which steadiness is judged
    slower: float = FRACTION_OR_ZERO.of(0.7)  # second half / first half; lower is a warning
    collapsed: float = FRACTION_OR_ZERO.of(0.25)  # lower is a failure


@dataclass
class PaddingGate:
    much: float = FRACTION_OR_ZERO.of(0.5)  # fraction of all tokens; higher is a warning
    most: float = FRACTION_OR_ZERO.of(0.95)  # higher is a failure


@dataclass
class ScalingGate:
    """Tokens per second and rank, relative to the previous width."""

    # above 1, too: a rank of the wider run may be the faster one
    low: float = NOT_NEGATIVE.of(0.7)  # lower is a warning
    least: float = NOT_NEGATIVE.of(0.4)  # lower is a failure


@dataclass
class LossParityGate:
    """Relative differences from the losses of the previous width, step by step."""

    steps: int = COUNT.of(10)  # compared steps; rounding differences grow with them
    first_fp32: float = POSITIVE.of(1e-4)  # at the first step, before any update
    first_bf16: float = POSITIVE.of(2e-3)
    fp32: float = POSITIVE.of(1e-4)  # the median of the compared steps
    bf16: float = POSITIVE.of(5e-3)
    masters: float = POSITIVE.of(2e-2)  # the median if one of the two has no fp32 master weights


@dataclass
class SameScheduleGate:
    differs: float = NOT_NEGATIVE.of(0.01)  # of the peak learning rate; higher is a warning
    wrong: float = NOT_NEGATIVE.of(0.25)  # higher is a failure


@dataclass
class FirstLossGate:
    tolerance: float = POSITIVE.of(0.02)  # absolute, around ln 2


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
