"""The verdict of a bench: speed as a paired ratio with its interval, loss, data and memory of B
against A.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from launch.trials.measurement import Figures, median

CONFIDENCE = 0.95
# Student's t: the 97.5% quantile of 1, 2, ... degrees of freedom, of 30 to 59, and of more
_STUDENT_T = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
)
_T_30, _NORMAL = 2.042, 1.96

RATE_PRECISION = 0.05  # relative: how well the rate of a run should be known


@dataclass(frozen=True)
class Ratio:
    """B over A, pair by pair."""

    values: tuple[float, ...]
    median: float
    least: float
    most: float
    low: float | None  # bounds of the 95% interval of the mean ratio, None for one pair
    high: float | None
    confidence: float = CONFIDENCE

    @property
    def speed(self) -> str:
        """`faster` or `slower` where the whole interval is above or below 1, else `undecided`."""
        if self.low is None or self.high is None:
            return "undecided"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "undecided"


def student_t(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t, rounded up between the tabulated ones."""
    if freedom < 30:
        return _STUDENT_T[min(freedom, len(_STUDENT_T)) - 1]
    return _T_30 if freedom < 60 else _NORMAL


def paired_ratio(values: Sequence[float]) -> Ratio | None:
    """Summarise the ratios of the pairs, each above 0; None without any.

    The interval is Student's t over the logarithms of the ratios: whatever slows down both runs of
    a pair cancels out. Two pairs have one degree of freedom, so the interval is 13 times as wide as
    their distance: a large difference still lies outside of it, a small one is not mistaken for
    one.
    """
    if not values or min(values) <= 0 or not all(math.isfinite(value) for value in values):
        return None
    low = high = None
    if len(values) > 1:
        logs = [math.log(value) for value in values]
        half = student_t(len(values) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        centre = statistics.fmean(logs)
        low, high = math.exp(centre - half), math.exp(centre + half)
    return Ratio(tuple(values), statistics.median(values), min(values), max(values), low, high)


def count_steps_needed(runs: Sequence[Sequence[float]]) -> int | None:
    """Return how many counted steps a run needs until its rate is known to RATE_PRECISION, with 95%
    confidence.

    `runs`: the rate of each counted step of each run of one setting. The spread is that within the
    runs. None where no run has two steps.
    """
    squares, freedom = 0.0, 0
    for rates in runs:
        logs = [math.log(rate) for rate in rates]
        squares += sum((log - statistics.fmean(logs)) ** 2 for log in logs)
        freedom += max(len(logs) - 1, 0)
    if freedom == 0:
        return None
    variance, count = squares / freedom, 2
    while student_t(count - 1) ** 2 * variance / count > math.log1p(RATE_PRECISION) ** 2:
        count += 1
    return count


_SAME_MEMORY = 0.01  # relative difference of the peaks below which they count as the same
_SAME_TOKENS = 1e-6  # relative: tokens are counted exactly
Pair = tuple[Figures, Figures]  # A's run and B's run of one repeat


@dataclass(frozen=True)
class BenchVerdict:
    """B against A."""

    speed: str  # faster, slower or undecided
    loss: str  # same, differs or unknown
    data: str  # same, differs or unknown
    memory: str  # less, more, same or unknown
    speed_ratio: Ratio
    loss_difference: float | None  # relative, after the last step; median of the pairs
    largest_loss_difference: float | None  # relative, at any step of any pair
    loss_progress: float | None  # relative change of A's own loss from the first step to the last
    memory_ratio: float | None
    summary: tuple[str, ...]


def judge_pairs(
    pairs: Sequence[Pair], tolerance: float, same_setting: bool = False
) -> BenchVerdict | None:
    """The verdict over the pairs of A and B; None without a pair."""
    ratio = paired_ratio([b.per_second / a.per_second for a, b in pairs if a.unit == b.unit])
    if ratio is None:
        return None
    difference = median(relative_change(a.loss, b.loss) for a, b in pairs)
    steps = [step for a, b in pairs for step in zip(a.losses, b.losses, strict=False)]
    progress = median(relative_change(a.first_loss, a.loss) for a, _ in pairs)
    loss, loss_sentence = _judge_loss(pairs, difference, tolerance, progress)
    data, data_sentence = _judge_data(pairs)
    memory_ratio = median(
        b.memory_gib / a.memory_gib for a, b in pairs if a.memory_gib and b.memory_gib
    )
    memory, memory_sentence = _judge_memory(pairs, memory_ratio)
    if loss == "differs" and ratio.speed == "faster":
        loss_sentence += ", so its speed-up is not one of the same training"
    return BenchVerdict(
        speed=ratio.speed,
        loss=loss,
        data=data,
        memory=memory,
        speed_ratio=ratio,
        loss_difference=difference,
        largest_loss_difference=max((relative_difference(*step) for step in steps), default=None),
        loss_progress=progress,
        memory_ratio=memory_ratio,
        summary=tuple(
            filter(
                None,
                (
                    _describe_speed(ratio, same_setting),
                    loss_sentence,
                    data_sentence,
                    memory_sentence,
                ),
            )
        ),
    )


def relative_difference(a: float, b: float) -> float:
    """The difference of two losses relative to `a`; infinite when one of them is not finite."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(b - a) / abs(a) if a else (0.0 if a == b else math.inf)


def relative_change(before: float | None, after: float | None) -> float | None:
    """The same, where both losses are known."""
    return None if before is None or after is None else relative_difference(before, after)


def format_ratio(ratio: float) -> str:
    """`5.62 x`; three decimals near 1, where a difference of one percent has to be visible."""
    return (
        f"{ratio:.3g} x"
        if ratio >= 10
        else f"{ratio:.3f} x"
        if abs(ratio - 1) < 0.1
        else f"{ratio:.2f} x"
    )


def _describe_speed(ratio: Ratio, same_setting: bool) -> str:
    count = len(ratio.values)
    pairs = (
        "one pair"
        if count == 1
        else f"{count} pairs, {format_ratio(ratio.least)} to {format_ratio(ratio.most)}"
    )
    interval = ""
    if ratio.low is not None and ratio.high is not None:
        interval = (
            f"; {CONFIDENCE:.0%} interval {format_ratio(ratio.low)} to {format_ratio(ratio.high)}"
        )
    if same_setting:
        unsteady = "this machine is not steady, and a difference of this size means nothing"
        noise = "the difference is noise" if ratio.speed == "undecided" else unsteady
        conclusion = f"A and B are the same setting: {noise}"
    elif count == 1:
        conclusion = "one pair has no spread: undecided"
    else:
        conclusion = (
            "the interval includes 1: undecided"
            if ratio.speed == "undecided"
            else f"B is {ratio.speed}"
        )
    return f"B runs at {format_ratio(ratio.median)} A's speed ({pairs}{interval}): {conclusion}"


def _judge_loss(
    pairs: Sequence[Pair], difference: float | None, tolerance: float, progress: float | None
) -> tuple[str, str]:
    """The verdict on the loss after the last step, and its sentence."""
    if difference is None:
        return "unknown", "no losses were logged: whether B trains the same is unknown"
    distance = (
        "not a number in one of them" if math.isinf(difference) else f"{difference:.2%} apart"
    )
    numbers = (
        f"loss after {len(pairs[0][0].losses)} equal steps: {distance} ({tolerance:.0%} is allowed)"
    )
    if difference > tolerance:
        return "differs", f"{numbers}: B changes the loss"
    hardly_moved = progress is not None and progress < tolerance
    hint = (
        f"; the loss moved by only {progress:.2%}, so this shows little about learning"
        if hardly_moved
        else ""
    )
    return "same", f"{numbers}: the same{hint}"


def _judge_data(pairs: Sequence[Pair]) -> tuple[str, str]:
    """Whether each step has the same number of tokens without padding in both; and if not, a
    sentence.
    """
    counted = [(a.tokens, b.tokens) for a, b in pairs if a.tokens and b.tokens]
    if not counted:
        return (
            "unknown",
            "tokens are not counted: only the plans show that A and B use the same data",
        )
    steps = [step for tokens in counted for step in itertools.zip_longest(*tokens, fillvalue=0.0)]
    if any(relative_difference(*step) > _SAME_TOKENS for step in steps):
        return (
            "differs",
            "the same steps of A and B have different token counts: they trained on different data",
        )
    return "same", ""


def _judge_memory(pairs: Sequence[Pair], ratio: float | None) -> tuple[str, str]:
    """The verdict on the peak memory, and its sentence."""
    a, b = pairs[-1][0].memory_gib, pairs[-1][1].memory_gib
    if ratio is None or a is None or b is None:
        return "unknown", "peak memory: unknown; it is measured on GPUs only"
    memory = "same" if abs(ratio - 1) <= _SAME_MEMORY else "less" if ratio < 1 else "more"
    shown = "the same" if memory == "same" else memory
    return memory, f"peak memory of a rank: {a:.1f} GiB in A, {b:.1f} GiB in B: {shown}"
