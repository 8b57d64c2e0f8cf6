"""The verdict of a bench: B's speed, loss, data and memory compared with A's."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from launch.trials.measurement import Figures, median, relative_difference

CONFIDENCE = 0.95
# The 97.5% quantiles of Student's t for 1, 2, ... 15 degrees of freedom.
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
_T_30 = 2.042  # the 97.5% quantile for 30 degrees of freedom
_NORMAL = 1.96  # the 97.5% quantile of the normal distribution, the limit for many degrees

RATE_PRECISION = 0.05  # relative error that the rate of a run should have at most


@dataclass(frozen=True)
class Ratio:
    """The rates of B divided by those of A, over all pairs."""

    values: tuple[float, ...]  # one ratio for each pair
    median: float
    least: float
    most: float
    low: float | None  # lower bound of the 95% interval of the mean ratio; None for one pair
    high: float | None  # upper bound of the same interval
    confidence: float = CONFIDENCE

    @property
    def speed(self) -> str:
        """`faster` or `slower` where the whole interval is above or below 1, else `undecided`."""
        if self.low is None or self.high is None:
            return "undecided"
        if self.low > 1:
            return "faster"
        if self.high < 1:
            return "slower"
        return "undecided"


def student_t(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t for `freedom` degrees of freedom.

    Between two tabulated degrees the larger quantile is returned.
    """
    if freedom < 30:
        return _STUDENT_T[min(freedom, len(_STUDENT_T)) - 1]
    return _T_30 if freedom < 60 else _NORMAL


def paired_ratio(values: Sequence[float]) -> Ratio | None:
    """Summarise the ratios of the pairs, each above 0; None without any.

    The interval is Student's t over the logarithms of the ratios, so that a slowdown of both runs of
    a pair cancels out. Two pairs have one degree of freedom, so the interval is 13 times as wide as
    their distance: it still excludes a large difference, and a small one is not mistaken for it.
    """
    if not values or min(values) <= 0 or not all(math.isfinite(value) for value in values):
        return None
    low = None
    high = None
    if len(values) > 1:
        logs = [math.log(value) for value in values]
        mean = statistics.fmean(logs)
        standard_error = statistics.stdev(logs) / math.sqrt(len(logs))
        half_width = student_t(len(values) - 1) * standard_error
        low = math.exp(mean - half_width)
        high = math.exp(mean + half_width)
    return Ratio(
        values=tuple(values),
        median=statistics.median(values),
        least=min(values),
        most=max(values),
        low=low,
        high=high,
    )


def count_steps_needed(runs: Sequence[Sequence[float]]) -> int | None:
    """Return how many timed steps a run needs until its rate is known to RATE_PRECISION, with 95%
    confidence.

    `runs`: the rate of each timed step of each run of one setting. The variance is that of the
    rates' logarithms within the runs. None is returned if no run has two steps.
    """
    squares = 0.0  # sum of the squared deviations from each run's mean
    freedom = 0  # degrees of freedom
    for rates in runs:
        if not rates:
            continue
        logs = [math.log(rate) for rate in rates]
        mean = statistics.fmean(logs)
        squares += sum((log - mean) ** 2 for log in logs)
        freedom += len(logs) - 1
    if freedom == 0:
        return None
    variance = squares / freedom
    allowed = math.log1p(RATE_PRECISION) ** 2  # square of the interval's half width
    count = 2
    while student_t(count - 1) ** 2 * variance / count > allowed:
        count += 1
    return count


_SAME_MEMORY = 0.01  # relative difference of the peaks up to which they count as the same
_SAME_TOKENS = 1e-6  # relative difference up to which token counts, which are exact, are the same
Pair = tuple[Figures, Figures]  # A's run and B's run of one repeat


@dataclass(frozen=True)
class BenchVerdict:
    """B compared with A."""

    speed: str  # faster, slower or undecided
    loss: str  # same, differs or unknown
    data: str  # same, differs or unknown
    memory: str  # less, more, same or unknown
    speed_ratio: Ratio
    loss_difference: float | None  # relative, after the last step; median of the pairs
    largest_loss_difference: float | None  # relative, at any step of any pair
    loss_progress: float | None  # relative change of A's own loss from the first step to the last
    memory_ratio: float | None  # peak of B over that of A
    summary: tuple[str, ...]  # the verdict in sentences


def judge_pairs(
    pairs: Sequence[Pair], tolerance: float, same_setting: bool = False
) -> BenchVerdict | None:
    """Return the verdict over the pairs of A and B; None without a pair.

    `tolerance`: the relative difference of the last losses up to which they count as the same.
    """
    ratio = paired_ratio([b.per_second / a.per_second for a, b in pairs if a.unit == b.unit])
    if ratio is None:
        return None
    difference = median(relative_change(a.loss, b.loss) for a, b in pairs)
    progress = median(relative_change(a.first_loss, a.loss) for a, _ in pairs)
    loss, loss_sentence = _judge_loss(pairs, difference, tolerance, progress)
    if loss == "differs" and ratio.speed == "faster":
        loss_sentence += ", so its speed-up is not one of the same training"
    data, data_sentence = _judge_data(pairs)
    memory_ratio = median(
        b.memory_gib / a.memory_gib for a, b in pairs if a.memory_gib and b.memory_gib
    )
    memory, memory_sentence = _judge_memory(pairs, memory_ratio)
    speed_sentence = _describe_speed(ratio, same_setting)
    sentences = (speed_sentence, loss_sentence, data_sentence, memory_sentence)
    return BenchVerdict(
        speed=ratio.speed,
        loss=loss,
        data=data,
        memory=memory,
        speed_ratio=ratio,
        loss_difference=difference,
        largest_loss_difference=_largest_loss_difference(pairs),
        loss_progress=progress,
        memory_ratio=memory_ratio,
        summary=tuple(sentence for sentence in sentences if sentence),
    )


def _largest_loss_difference(pairs: Sequence[Pair]) -> float | None:
    """Return the largest relative difference of the losses at any step of any pair."""
    differences = []
    for a, b in pairs:
        differences += [
            relative_difference(loss_a, loss_b)
            for loss_a, loss_b in zip(a.losses, b.losses, strict=False)
        ]
    return max(differences, default=None)


def relative_change(before: float | None, after: float | None) -> float | None:
    """Return the relative difference of two losses; None where one of them is unknown."""
    if before is None or after is None:
        return None
    return relative_difference(before, after)


def format_ratio(ratio: float) -> str:
    """Format a ratio like `5.62 x`.

    Near 1 it has three decimals, because a difference of one percent has to be visible there.
    """
    if ratio >= 10:
        return f"{ratio:.3g} x"
    if abs(ratio - 1) < 0.1:
        return f"{ratio:.3f} x"
    return f"{ratio:.2f} x"


def _describe_speed(ratio: Ratio, same_setting: bool) -> str:
    """Return the sentence about the speed."""
    count = len(ratio.values)
    basis = "one pair"
    if count > 1:
        basis = f"{count} pairs, {format_ratio(ratio.least)} to {format_ratio(ratio.most)}"
    if ratio.low is not None and ratio.high is not None:
        bounds = f"{format_ratio(ratio.low)} to {format_ratio(ratio.high)}"
        basis += f"; {CONFIDENCE:.0%} interval {bounds}"
    conclusion = _conclude_speed(ratio, same_setting)
    return f"B runs at {format_ratio(ratio.median)} A's speed ({basis}): {conclusion}"


def _conclude_speed(ratio: Ratio, same_setting: bool) -> str:
    """Return the end of the sentence about the speed: what the ratio means."""
    is_undecided = ratio.speed == "undecided"
    if same_setting and is_undecided:
        return "A and B are the same setting: the difference is noise"
    if same_setting:
        unsteady = "this machine is not steady, and a difference of this size means nothing"
        return f"A and B are the same setting: {unsteady}"
    if len(ratio.values) == 1:
        return "one pair has no spread: undecided"
    if is_undecided:
        return "the interval includes 1: undecided"
    return f"B is {ratio.speed}"


def _judge_loss(
    pairs: Sequence[Pair], difference: float | None, tolerance: float, progress: float | None
) -> tuple[str, str]:
    """Return the verdict on the loss after the last step, and its sentence.

    `difference` and `progress`: loss_difference and loss_progress of BenchVerdict.
    """
    if difference is None:
        return "unknown", "no losses were logged: whether B trains the same is unknown"
    distance = f"{difference:.2%} apart"
    if math.isinf(difference):
        distance = "not a number in one of them"
    a, _ = pairs[0]
    numbers = f"loss after {len(a.losses)} equal steps: {distance} ({tolerance:.0%} is allowed)"
    if difference > tolerance:
        return "differs", f"{numbers}: B changes the loss"
    sentence = f"{numbers}: the same"
    if progress is not None and progress < tolerance:
        sentence += f"; the loss moved by only {progress:.2%}, so this shows little about learning"
    return "same", sentence


def _judge_data(pairs: Sequence[Pair]) -> tuple[str, str]:
    """Return the verdict on whether each step has equally many tokens without padding in both, and
    a sentence if not.
    """
    counted = [(a.tokens, b.tokens) for a, b in pairs if a.tokens and b.tokens]
    if not counted:
        sentence = "tokens are not counted: only the plans show that A and B use the same data"
        return "unknown", sentence
    for tokens_of_a, tokens_of_b in counted:
        # A step that only one of them has differs from 0 tokens.
        for a, b in itertools.zip_longest(tokens_of_a, tokens_of_b, fillvalue=0.0):
            if relative_difference(a, b) > _SAME_TOKENS:
                cause = "they trained on different data"
                return "differs", f"the same steps of A and B have different token counts: {cause}"
    return "same", ""


def _judge_memory(pairs: Sequence[Pair], ratio: float | None) -> tuple[str, str]:
    """Return the verdict on the peak memory, and its sentence. `ratio`: B's peak over A's."""
    last_a, last_b = pairs[-1]
    if ratio is None or last_a.memory_gib is None or last_b.memory_gib is None:
        return "unknown", "peak memory: unknown; it is measured on GPUs only"
    peaks = f"{last_a.memory_gib:.1f} GiB in A, {last_b.memory_gib:.1f} GiB in B"
    if abs(ratio - 1) <= _SAME_MEMORY:
        return "same", f"peak memory of a rank: {peaks}: the same"
    memory = "less" if ratio < 1 else "more"
    return memory, f"peak memory of a rank: {peaks}: {memory}"
