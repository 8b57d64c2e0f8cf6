"""Computes how many tokens a run's average and longest micro batches have."""

from __future__ import annotations

import math

from launch.planning.estimate.setting import MemorySetting
from launch.planning.lengths import Lengths

# How many standard deviations above the mean the longest of some 100,000 packed micro batches is.
TAIL = 5.0


def average_micro_batch(lengths: Lengths | None, setting: MemorySetting) -> int:
    """Return the number of tokens of a micro batch of average samples without padding: the least to
    expect of a run's first micro batch.

    Without the data's lengths each sequence counts as one token, so that the estimate covers only
    the memory that does not depend on the data.
    """
    if lengths is None:
        return setting.sequences
    return max(setting.sequences, round(setting.micro_batch * lengths.tokens.mean))


def longest_micro_batch(lengths: Lengths, setting: MemorySetting) -> int:
    """Return the number of tokens, with padding, of the longest micro batch of a whole run.

    With padding its rows are as long as the longest sample of the data, which is in some micro
    batch. With packing it is the sum of its samples' lengths: TAIL standard deviations above the
    mean, but at most the longest sample times the micro batch size.
    """
    # OLMo-core's packed rows are always as long as the limit.
    if setting.compiled and setting.packing:
        return setting.tokens
    if not setting.packing:
        row_lengths = lengths.longer or lengths.tokens
        return setting.sequences * row_lengths.longest
    tokens = lengths.tokens
    size = setting.micro_batch
    deviation = tokens.deviation * math.sqrt(size)
    likely_longest = math.ceil(size * tokens.mean + TAIL * deviation)
    return max(tokens.longest, min(likely_longest, size * tokens.longest))
