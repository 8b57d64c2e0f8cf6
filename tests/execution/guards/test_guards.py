"""The guards at their borders, a line each: when a guard has its first finding, and what it
reports.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from launch import resources
from launch.config import guards as limits
from launch.execution.facts import (
    DiskUsage,
    Fact,
    Guard,
    GuardContext,
    GuardFinding,
    LoggedStep,
    NewOutput,
    PhaseStarted,
    RankError,
    RankExited,
    Tick,
    TotalSteps,
)
from launch.execution.guards import (
    Continuity,
    Divergence,
    GradNorm,
    MemoryCreep,
    NonFinite,
    Throughput,
    build_guards,
)
from launch.execution.process_guards import DeadRank, DiskSpace, Stall
from launch.execution.reward_guards import (
    EntropyCollapse,
    KLDivergence,
    LengthLimit,
    RewardCollapse,
    RewardVariance,
    SamplerMismatch,
    Verifier,
)
from launch.execution.supervise.watch import Watch, WatchConfig
from tests.execution.guards.facts import first, steps

NAN, INF = math.nan, math.inf
GIB = 2**30
Make = Callable[[], Guard]  # a guard counts: each case has one of its own


class Case(NamedTuple):
    name: str
    guard: Make
    facts: Sequence[Fact]
    at: float | None  # the time of the fact that gives the first finding; None: there is none
    message: str = ""  # a part of it
    reports: Mapping[str, Any] = {}  # attributes and numbers of the finding


# ---- the numbers of a step: a step a second, so the time is the step


def non_finite(**more: Any) -> Make:
    return lambda: NonFinite(limits.NonFiniteLimits(**more))


def divergence(**more: Any) -> Make:
    return lambda: Divergence(limits.DivergenceLimits(**more))


def grad_norm(**more: Any) -> Make:
    return lambda: GradNorm(limits.GradNormLimits(**more))


def creep() -> Guard:
    return MemoryCreep(limits.MemoryCreepLimits(window=10, windows=3, share=0.25))


def throughput(**more: Any) -> Make:
    return lambda: Throughput(limits.ThroughputLimits(share=0.25, **more))


def rates(values: Sequence[float], seconds: float = 1.0) -> list[Fact]:
    """50 steps a second apart with 1000 tokens a second, and then `values`, `seconds` apart."""
    later = [
        LoggedStep(50 + seconds * at, 50 + at, {"tokens_per_second": rate})
        for at, rate in enumerate(values, 1)
    ]
    return [*steps("tokens_per_second", [1000.0] * 50), *later]


def noisy() -> list[float]:
    draw = random.Random(0)
    return [0.8 + 2 * math.exp(-step / 200) + draw.gauss(0, 0.35) for step in range(5000)]


NORMAL = [1.0] * 20
SPIKES = [1000.0 if step > 9 and step % 6 == 4 else 2.0 for step in range(200)]
HARDER = [1.0 + 0.05 * step for step in range(200)]  # a curriculum that gets harder, slowly
WAS = "(it was 2.25 at step 2)"
GOOD = {"stops": True, "good_until": 2.0, "last_good_step": 2}
BEST = {"best": 2.0, "limit": 4.0, "good_until": 3.0}  # the limit is max(2 x 2, 2 + 1)
SLOWER = [LoggedStep(float(at), at, {"seconds": 1.0}) for at in range(40)] + [
    LoggedStep(40 + 5.0 * at, 40 + at, {"seconds": 5.0}) for at in range(9)
]
STRICT, BORDER = (
    grad_norm(factor=20, floor=10, steps=3),
    divergence(factor=2.0, margin=1.0, window=3),
)
SLOW = throughput(steps=5, seconds=60)
NUMBERS = (
    Case(
        "loss is nan",
        non_finite(),
        steps("loss", [2.5, 2.25, NAN, 2.0]),
        3,
        f"is nan at step 3 {WAS}",
        GOOD,
    ),
    Case(
        "norm is infinite",
        non_finite(),
        steps("grad_norm", [2.5, 2.25, -INF]),
        3,
        f"is -inf at step 3 {WAS}",
        GOOD,
    ),
    Case("nan from the start", non_finite(), steps("loss", [NAN]), 1, reports={"good_until": -INF}),
    Case("nan, two in a row", non_finite(steps=2), steps("loss", [2.0, NAN, 2.0, NAN, NAN]), 5),
    Case("no loss", non_finite(), [LoggedStep(1.0, 1, {"lr": 1e-5})], None),
    Case("loss at the limit", BORDER, steps("loss", [2.0] * 5 + [4.0] * 10), None),
    # two of the last three are high
    Case("loss above the limit", BORDER, steps("loss", [2.0] * 5 + [4.001] * 10), 7, reports=BEST),
    Case("small loss within the margin", BORDER, steps("loss", [0.01] * 5 + [1.0] * 10), None),
    Case("small loss above the margin", BORDER, steps("loss", [0.01] * 5 + [1.02] * 10), 7),
    Case("single spikes", divergence(), steps("loss", SPIKES), None),
    Case("a noisy run that learns", divergence(), steps("loss", noisy()), None),
    Case("the best is a recent one", divergence(window=3, memory=5), steps("loss", HARDER), None),
    Case("the best is an old one", divergence(window=3, memory=1000), steps("loss", HARDER), 25),
    Case(
        "norms, two in a row", STRICT, steps("grad_norm", [*NORMAL, 500, 500, 1, 500, 500, 1]), None
    ),
    Case("norms at the limit", STRICT, steps("grad_norm", [*NORMAL, *[20.0] * 9]), None),
    Case(
        "norms above it",
        STRICT,
        steps("grad_norm", [*NORMAL, *[20.1] * 9]),
        23,
        reports={"good_until": 20.0},
    ),
    Case("norms that are always large", STRICT, steps("grad_norm", [1e6] * 100), None),
    Case("norms below the floor", grad_norm(), steps("grad_norm", [0.01] * 50 + [9.9] * 50), None),
    # the fourth window's end: three that grew since the first
    Case(
        "memory grows",
        creep,
        steps("memory_gib", [40 + 0.5 * at for at in range(200)]),
        40,
        reports={"to_gib": 59.5},
    ),
    Case(
        "memory grows a little",
        creep,
        steps("memory_gib", [40 + 0.01 * at for at in range(500)]),
        None,
    ),
    Case(
        "memory rests",
        creep,
        steps("memory_gib", [40.0 + 8 * (at // 25) for at in range(100)]),
        None,
    ),
    Case("slow for 60 s", SLOW, rates([249.0] * 19, 10.0), 110.0),  # over with the sixth step
    Case("a quarter of the rate", SLOW, rates([250.0] * 19, 10.0), None),
    Case("slow for 58 s", SLOW, rates([1.0] * 58), None),
    Case("without tokens", throughput(steps=3, seconds=0), SLOWER, 50.0, "steps/s"),
)

# ---- the first loss after a resume, by step


def resumed(
    name: str,
    before: dict[int, float],
    loss: float,
    *,
    stops: bool,
    step: int | None = None,
    repeats: bool = True,
) -> Case:
    """The first step after the resume is 21; `step` is the one of the checkpoint."""
    facts = steps("loss", [loss, 99.0], start=21)
    at, message = (21.0, "the weights or the data differ") if stops else (None, "")
    return Case(
        name,
        lambda: Continuity(
            limits.ContinuityLimits(),
            GuardContext(losses=before, resumed_step=step, repeats=repeats),
        ),
        facts,
        at,
        message,
    )


RESUMED = (
    resumed("not resumed", {}, 9.0, stops=False),
    resumed("the step again, the same loss", {20: 3.0, 21: 2.5}, 2.51, stops=False),
    resumed("the step again, another loss", {20: 3.0, 21: 2.5}, 3.0, stops=True),
    resumed("the step again, a small loss", {20: 3.0, 21: 0.0001}, 0.02, stops=False),
    resumed("the same batch, rounded otherwise", {20: 3.0, 21: 2.5}, 2.51, stops=False, step=20),
    resumed("the same batch, other weights", {20: 3.0, 21: 2.5}, 2.53, stops=True, step=20),
    resumed("the same batch, slightly less", {20: 3.0, 21: 2.5}, 2.48, stops=True, step=20),
    resumed("a small loss, rounded otherwise", {20: 0.01, 21: 0.002}, 0.006, stops=False, step=20),
    resumed("a small loss, other weights", {20: 0.01, 21: 0.002}, 0.02, stops=True, step=20),
    resumed("a mean over other steps", {16: 3.0, 21: 2.5}, 2.6, stops=False, step=18),
    resumed("of an epoch's checkpoint", {20: 3.0, 21: 2.5}, 2.6, stops=False, step=None),
    resumed(
        "samples that are drawn anew",
        {20: 0.03, 21: 0.01},
        0.04,
        stops=False,
        step=20,
        repeats=False,
    ),
    resumed("from the checkpoint, a little more", {19: 3.2, 20: 3.0}, 3.4, stops=False),
    resumed("from the checkpoint, a little less", {19: 3.2, 20: 3.0}, 2.6, stops=False),
    resumed("the base's weights", {19: 3.2, 20: 3.0}, 7.6, stops=True),
    resumed("far less", {19: 3.2, 20: 3.0}, 0.7, stops=True),
    resumed("one loss has no spread", {20: 3.0}, 7.0, stops=False),
    resumed("another guard's", {20: 3.0, 21: 2.5}, NAN, stops=False),
)

# ---- time and processes: a tick a second


def ticks(end: float, *others: Fact, start: float = 0) -> list[Fact]:
    """A tick a second from `start` to `end`, `others` between them in the order of time."""
    facts: list[Fact] = [Tick(float(at)) for at in range(int(start), int(end) + 1)]
    return sorted([*facts, *others], key=lambda fact: (fact.time, isinstance(fact, Tick)))


def stall(ranks: tuple[int, ...] = (0,), **more: Any) -> Make:
    return lambda: Stall(limits.StallLimits(**more), GuardContext(ranks=ranks))


def dead_rank(ranks: int = 2, **more: Any) -> Make:
    return lambda: DeadRank(limits.DeadRankLimits(**more), GuardContext(ranks=tuple(range(ranks))))


def stalled(phase: str, key: str) -> Case:
    """Ten seconds are not too long, eleven are."""
    facts = ticks(100, PhaseStarted(0.0, phase))
    patience: dict[str, Any] = {key: 10}
    return Case(f"{phase} stalls", stall(**patience), facts, 11, f"no progress for 11 s in {phase}")


OUTPUT = [NewOutput(at + 0.5) for at in range(0, 100, 5)]
TRAINING = PhaseStarted(0.0, "training")
SLOW_STEPS = [LoggedStep(20.0 * at, at, {}) for at in range(1, 4)]
ASLEEP = [*ticks(5, PhaseStarted(0.0, "load")), *ticks(5009, start=5000)]
ERRORS = (RankError(5.0, 1), RankError(9.0, 0))
GONE = RankExited(5.0, 1)
LAST_STEP = (TotalSteps(0.5, 7), LoggedStep(1.0, 7, {}))
VANISHED = "rank 1 exited without an error while ranks 0, 2 waited"
GOES_ON = [NewOutput(float(at)) for at in range(0, 60, 4)]
LIFE = (
    stalled("import", "importing"),
    *(
        stalled(phase, phase)
        for phase in ("tokenize", "load", "reference_logprobs", "checkpoint", "save", "push")
    ),
    stalled("training", "first_step"),
    Case(
        "output while it loads",
        stall(load=10),
        ticks(100, PhaseStarted(0.0, "load"), *OUTPUT),
        None,
    ),
    Case(
        "output without steps",
        stall(training=10),
        ticks(100, LoggedStep(2.0, 7, {}), *OUTPUT),
        13,
        "step was 7",
    ),
    # 60 + 3 x 20, and no longer
    Case(
        "slow steps earn patience",
        stall(training=10, factor=3),
        ticks(200, TRAINING, *SLOW_STEPS),
        121,
    ),
    Case("the machine slept", stall(load=10), ASLEEP, None),
    Case(
        "a node without rank 0", stall((8, 9), first_step=5, training=5), ticks(100, TRAINING), None
    ),
    # 11 s after the first error
    Case(
        "an error that ends nothing",
        dead_rank(),
        ticks(60, *ERRORS),
        16,
        reports={"failed": True, "rank": 1, "is_quiet": False},
    ),
    Case(
        "a rank that stops itself",
        dead_rank(),
        ticks(60, RankError(5.0, 1, is_stop=True)),
        16,
        reports={"failed": True, "rank": 1, "is_quiet": True},
    ),
    Case(
        "a rank vanished",
        dead_rank(3, silent=20),
        ticks(60, TRAINING, GONE),
        26,
        VANISHED,
        {"failed": False},
    ),
    Case("the others go on", dead_rank(3), ticks(60, TRAINING, GONE, *GOES_ON), None),
    Case(
        "a rank leaves as the model is saved",
        dead_rank(),
        ticks(500, PhaseStarted(1.0, "save"), GONE),
        None,
    ),
    Case("a rank leaves after the last step", dead_rank(), ticks(500, *LAST_STEP, GONE), None),
    Case("every rank is gone", dead_rank(), ticks(500, RankExited(5.0, 0), GONE), None),
)

# ---- the disk: checkpoints of 10 GiB and a model of 1


def disk(every: int = 10, total: int = 100, **more: Any) -> Make:
    return lambda: DiskSpace(
        limits.DiskLimits(**more), GuardContext(checkpoint_every=every, total_steps=total)
    )


def free(time: float, gib: float) -> DiskUsage:
    return DiskUsage(time, int(gib * GIB), 10 * GIB, GIB)


def half_written(phase: str) -> list[Fact]:
    """Of 25 GiB two checkpoints of 10 fit, and the older one goes when the newer one is
    complete.
    """
    before = [*steps("loss", [1.0] * 10), free(10.0, 15), PhaseStarted(10.5, phase), free(11.0, 9)]
    return [*before, PhaseStarted(12.0, "training"), free(12.5, 15), *steps("loss", [1.0] * 9, 11)]


NEXT = "10 GiB free and the next checkpoint needs 10 GiB (at step 1000)"
AHEAD = disk(margin=1.1, ahead=120)
DISK = (
    Case(
        "full, long before",
        disk(1000, 5000, margin=1.1, ahead=120),
        [free(0.0, 10)],
        0.0,
        NEXT,
        {"stops": False},
    ),
    Case("just enough", disk(margin=1.5), [free(0.0, 15), *steps("loss", [1.0] * 99)], None),
    Case(
        "a byte less",
        disk(margin=1.5),
        [DiskUsage(0.0, 15 * GIB - 1, 10 * GIB, GIB)],
        0.0,
        reports={"stops": False},
    ),
    Case("while a checkpoint is written", AHEAD, half_written("checkpoint"), None),
    Case("while the model is saved", AHEAD, half_written("save"), None),
    Case("while it trains", AHEAD, half_written("training"), 11.0),
    # the model is what is written
    Case(
        "after the last checkpoint",
        disk(total=25),
        [*steps("loss", [1.0] * 6, 20), free(26.0, 2)],
        None,
    ),
    Case("unknown sizes", disk(), [DiskUsage(0.0, 0), *steps("loss", [1.0] * 99)], None),
)

# ---- RLVR


def verifier() -> Guard:
    return Verifier(limits.VerifierLimits())


def variance() -> Guard:
    return RewardVariance(limits.RewardVarianceLimits())


def collapse() -> Guard:
    return RewardCollapse(limits.RewardCollapseLimits())


def kl() -> Guard:
    return KLDivergence(limits.KLLimits())


def entropy() -> Guard:
    return EntropyCollapse(limits.EntropyCollapseLimits())


def length() -> Guard:
    return LengthLimit(limits.LengthLimits())


def sampler() -> Guard:
    return SamplerMismatch(limits.SamplerMismatchLimits())


def course(*values: dict[str, float]) -> list[Fact]:
    return [LoggedStep(float(step), step, dict(row)) for step, row in enumerate(values, 1)]


def answers(key: str, *values: float, **more: float) -> list[Fact]:
    return course(*({key: value, **more} for value in values))


SAMPLER = json.loads((resources.ROOT / "benchmarks" / "sampler.json").read_text())
FRESH, STALE = (
    answers("sampling/sampling_logp_difference/mean", *SAMPLER[name]) for name in ("fresh", "stale")
)
STUCK = {"frac_reward_zero_std": 1.0, "reward": 0.0}
ALMOST = course(*[*[STUCK] * 9, {**STUCK, "frac_reward_zero_std": 0.9}] * 3)
REWARDS = (
    Case(
        "verifier fails",
        verifier,
        answers("verifier_failures", 1.0),
        1,
        "failed on 100.00% of the answers",
    ),
    Case(
        "verifier fails at times",
        verifier,
        answers("verifier_failures", *[0.016] * 20),
        13,
        "failed on 1.60% of the",
    ),
    Case("verifier fails once", verifier, answers("verifier_failures", 0.016, *[0.0] * 60), None),
    Case("all rewards are 0", variance, course(*[STUCK] * 10), 10, "mean reward is 0 at step 10"),
    Case("all rewards are 1", variance, course(*[{**STUCK, "reward": 1.0}] * 30), None),
    Case("nearly all rewards are 0", variance, ALMOST, None),
    Case("rewards collapse", collapse, answers("reward", *[0.8] * 10, *[0.0] * 10), 16, "was 0.8"),
    Case(
        "rewards fall slowly",
        collapse,
        answers("reward", *(0.8 - at / 50 for at in range(15))),
        None,
    ),
    Case("KL grows", kl, answers("kl", *[0.1] * 3, *[50.0] * 5), 8, "50 a token at step 8"),
    Case("KL is steady", kl, answers("kl", *[0.5] * 30), None),
    Case(
        "entropy collapses",
        entropy,
        answers("entropy", 4.0, *[0.1] * 10, reward=0.5),
        11,
        "below 5%",
    ),
    Case("entropy falls", entropy, answers("entropy", 4.0, *[0.9] * 30, reward=0.5), None),
    Case(
        "entropy of SFT, which learns by heart", entropy, answers("entropy", 4.0, *[0.1] * 30), None
    ),
    Case(
        "all answers are cut",
        length,
        answers("completions/clipped_ratio", *[1.0] * 50),
        50,
        "100% of the answers",
    ),
    Case("many answers are cut", length, answers("completions/clipped_ratio", *[0.9] * 80), None),
    Case("a stale sampler", sampler, STALE, 4, "1.58 nats a token at step 4"),
    Case("a fresh sampler", sampler, FRESH, None),
)


@pytest.mark.parametrize(
    "case", (*NUMBERS, *RESUMED, *LIFE, *DISK, *REWARDS), ids=lambda case: case.name
)
def test_guard(case: Case) -> None:
    index, finding = first(case.guard(), case.facts) or (None, None)
    assert (None if index is None else case.facts[index].time) == case.at, finding
    if finding is not None:
        reported = {
            "stops": finding.stops,
            "failed": finding.failed,
            "is_quiet": finding.is_quiet,
            "good_until": finding.good_until,
        }
        reported |= finding.numbers
        expected = {"stops": True, **case.reports}
        assert {name: reported.get(name) for name in expected} == pytest.approx(expected)
        assert case.message in finding.message


@pytest.mark.parametrize("make", [verifier, variance, collapse, kl, entropy, length, sampler])
def test_a_guard_of_rlvr_leaves_other_trainers_alone(make: Make) -> None:
    assert first(make(), course(*[{"loss": 0.0, "grad_norm": 1.0}] * 99)) is None


def test_peaks_of_batches_that_differ_in_length_are_no_creep() -> None:
    for seed in range(50):
        draw = random.Random(seed)
        peak, peaks = 0.0, []
        for _ in range(5000):
            peak = max(peak, 20 + draw.lognormvariate(1.5, 0.8))
            peaks.append(peak)
        assert first(MemoryCreep(limits.MemoryCreepLimits()), steps("memory_gib", peaks)) is None, (
            seed
        )


def test_the_disk_stops_the_run_when_the_checkpoint_is_near() -> None:
    guard = disk(1000, 5000, margin=1.1, ahead=120)()
    facts = [free(0.0, 10), *steps("loss", [1.0] * 1000)]
    stop = next(finding for fact in facts if (finding := guard.judge(fact)) and finding.stops)
    # steps of a second
    assert stop.numbers["step"] == 880 and "at step 1000, 120 steps from now" in stop.message


def test_every_guard_is_on_by_default_and_each_can_be_switched_off() -> None:
    names = [guard.id for guard in build_guards(limits.GuardsConfig(), GuardContext())]
    assert names == list(limits.GuardsConfig.__dataclass_fields__)
    for name in names:
        left = build_guards(limits.GuardsConfig(**{name: None}), GuardContext())
        assert [guard.id for guard in left] == [other for other in names if other != name]
    assert build_guards(None, GuardContext()) == []


def test_a_guard_stops_once_and_allow_makes_it_a_warning(tmp_path: Path) -> None:
    def judge(*allow: str) -> list[GuardFinding]:
        config = limits.GuardsConfig(non_finite=limits.NonFiniteLimits())
        watch = Watch(WatchConfig(config, allow), tmp_path, lambda: True)
        watch.start()
        for fact in steps("loss", [float("nan")] * 3):
            watch.put(fact)
        watch.close()
        return list(watch.findings)

    assert [finding.stops for finding in judge()] == [True]
    [finding] = judge("non_finite")
    assert not finding.stops and str(finding).endswith("[non_finite], allowed")
