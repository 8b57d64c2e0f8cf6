"""The limits of the guards, which stop a live run."""

from dataclasses import dataclass, field

from launch.config.ranges import COUNT, FRACTION, NOT_NEGATIVE, POSITIVE


@dataclass
class NonFiniteLimits:
    # consecutive logged steps with a NaN or infinite loss or gradient norm
    steps: int = COUNT.of(1)


@dataclass
class DivergenceLimits:
    """The median of the last `window` losses is above `factor` x and `margin` + the best such
    median.
    """

    factor: float = POSITIVE.of(2.0)
    # absolute: lets a small loss, such as DPO's, rise beyond the factor
    margin: float = NOT_NEGATIVE.of(1.0)
    # logged steps; a spike shorter than half of it is never a divergence
    window: int = COUNT.of(10)
    memory: int = COUNT.of(1000)  # logged steps that the best median is searched in


@dataclass
class GradNormLimits:
    """The gradient norm is above `factor` x its own median for `steps` consecutive logged steps."""

    factor: float = POSITIVE.of(20.0)
    floor: float = NOT_NEGATIVE.of(10.0)  # a norm below this is never an explosion
    steps: int = COUNT.of(5)
    window: int = COUNT.of(100)  # logged steps of the median


@dataclass
class StallLimits:
    """Seconds without progress in a phase: a new line of output; in training, after the first step,
    a logged step.
    """

    importing: float = POSITIVE.of(900)
    tokenize: float = POSITIVE.of(3600)
    load: float = POSITIVE.of(1800)
    reference_logprobs: float = POSITIVE.of(1800)
    first_step: float = POSITIVE.of(1800)
    # or `factor` x the longest logged step so far, if that is more
    training: float = POSITIVE.of(900)
    factor: float = POSITIVE.of(3.0)
    evaluate: float = POSITIVE.of(1800)
    checkpoint: float = POSITIVE.of(1800)
    save: float = POSITIVE.of(3600)
    push: float = POSITIVE.of(7200)


@dataclass
class DeadRankLimits:
    # seconds that a run may continue after a rank reported a fatal error
    after_error: float = NOT_NEGATIVE.of(10.0)
    # seconds without progress once a rank's process has exited while others live
    silent: float = NOT_NEGATIVE.of(20.0)


@dataclass
class MemoryCreepLimits:
    """Peak GPU memory grew in each of the last `windows` windows, and by the fraction `share` since
    the first.
    """

    window: int = COUNT.of(100)  # logged steps
    windows: int = COUNT.of(6)
    # above 1, too: memory may more than double
    share: float = POSITIVE.of(0.25)


@dataclass
class DiskLimits:
    margin: float = POSITIVE.of(1.1)  # factor on the size of the next write
    # seconds before the write when the run is stopped; earlier it is a warning
    ahead: float = NOT_NEGATIVE.of(120.0)


@dataclass
class ContinuityLimits:
    """The first loss after a resume is not that of the earlier attempt at the same step, or of its
    last steps.
    """

    # of the loss of a step that is repeated; the same batch on GPUs repeats to some 0.001
    repeat: float = FRACTION.of(0.005)
    share: float = FRACTION.of(0.1)  # of the last losses, for a step that is new
    margin: float = NOT_NEGATIVE.of(0.05)  # absolute, for a step that is new


@dataclass
class ThroughputLimits:
    """The rate is below `share` of the run's own median for `steps` consecutive logged steps and
    `seconds`.
    """

    share: float = FRACTION.of(0.25)
    steps: int = COUNT.of(20)
    seconds: float = NOT_NEGATIVE.of(900.0)
    window: int = COUNT.of(200)


@dataclass
class VerifierLimits:
    """Of RLVR: verifiers failed on the share `share` of the answers of the last `window` steps,
    taken as full.
    """

    # of one call; over it the answer scores 0 and the verifier is started again
    seconds: float = POSITIVE.of(10.0)
    share: float = FRACTION.of(0.01)
    window: int = COUNT.of(20)  # logged steps


@dataclass
class RewardVarianceLimits:
    """Of RLVR: in every group all completions earned the same for `steps` logged steps, and less
    than `reward`.
    """

    steps: int = COUNT.of(10)  # consecutive logged steps
    reward: float = POSITIVE.of(0.95)  # mean reward from which that is success


@dataclass
class RewardCollapseLimits:
    """Of RLVR: the mean reward of the last `window` logged steps is below `share` x the run's best
    such mean.
    """

    share: float = FRACTION.of(0.5)
    window: int = COUNT.of(10)  # logged steps


@dataclass
class KLLimits:
    """Of RLVR with kl_beta: the KL divergence from the starting model is above `most` for `steps`
    logged steps.
    """

    most: float = POSITIVE.of(10.0)  # nats a token, by TRL's estimator
    steps: int = COUNT.of(5)


@dataclass
class EntropyCollapseLimits:
    """Of RLVR: the entropy of a token is below `share` x that of the first step for `steps` logged
    steps.
    """

    share: float = FRACTION.of(0.05)
    steps: int = COUNT.of(10)


@dataclass
class LengthLimits:
    """Of RLVR: the share `share` of the answers reaches the length limit without an end for `steps`
    logged steps.
    """

    share: float = FRACTION.of(0.95)
    steps: int = COUNT.of(50)


@dataclass
class SamplerMismatchLimits:
    """Of RLVR with vLLM: sampler's and trainer's log-probs differ by over `most` for `steps` logged
    steps, as those of a sampler that keeps old weights do. On one H200 they differed by 0.018 to
    0.023 with a 1b shape, and by 0.070 with an 8b one (benchmarks/h200_rlvr_vllm.json).
    """

    most: float = POSITIVE.of(0.2)  # nats a token, the mean of absolute differences
    steps: int = COUNT.of(3)


@dataclass
class GuardsConfig:
    """Conditions that stop a live run. A guard that is null is off; `allow=[its id]` makes it a
    warning.
    """

    non_finite: NonFiniteLimits | None = field(default_factory=NonFiniteLimits)
    divergence: DivergenceLimits | None = field(default_factory=DivergenceLimits)
    grad_norm: GradNormLimits | None = field(default_factory=GradNormLimits)
    stall: StallLimits | None = field(default_factory=StallLimits)
    dead_rank: DeadRankLimits | None = field(default_factory=DeadRankLimits)
    memory_creep: MemoryCreepLimits | None = field(default_factory=MemoryCreepLimits)
    disk: DiskLimits | None = field(default_factory=DiskLimits)
    continuity: ContinuityLimits | None = field(default_factory=ContinuityLimits)
    throughput: ThroughputLimits | None = field(default_factory=ThroughputLimits)
    verifier: VerifierLimits | None = field(default_factory=VerifierLimits)
    reward_variance: RewardVarianceLimits | None = field(default_factory=RewardVarianceLimits)
    reward_collapse: RewardCollapseLimits | None = field(default_factory=RewardCollapseLimits)
    kl: KLLimits | None = field(default_factory=KLLimits)
    entropy_collapse: EntropyCollapseLimits | None = field(default_factory=EntropyCollapseLimits)
    length_limit: LengthLimits | None = field(default_factory=LengthLimits)
    sampler_mismatch: SamplerMismatchLimits | None = field(default_factory=SamplerMismatchLimits)
