"""Pairs of runs on H200s over the same samples (gpus.md): their longest micro batch was not
recorded, but it was the same one, so that the peak of the first tells its tokens and the estimate
must then say the peak of the second.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.config.kinds import Kind
from launch.config.schema import Mode
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.setting import MemorySetting
from tests.planning.estimate.grid import SHAPES, tokens_at

PADDED = MemorySetting(SHAPES["1b"], Kind.sft, Mode.single, 1, 8, 8, accumulation=2)
PACKED = replace(PADDED, packing=True)
LARGE = replace(PACKED, shape=SHAPES["8b"], mode=Mode.zero3, ranks=8, liger=True, fused_loss=True)


@pytest.mark.parametrize(
    ("first", "measured", "second", "expected"),
    [
        (PADDED, 66, replace(PADDED, liger=True, fused_loss=True), 33),
        (PACKED, 32, replace(PACKED, liger=True, fused_loss=True), 20),
        (LARGE, 78, replace(LARGE, mode=Mode.zero2), 88),
    ],
    ids=["padded, with and without Liger", "packed, with and without Liger", "ZeRO-3 and ZeRO-2"],
)
def test_one_peak_tells_the_other(
    first: MemorySetting, measured: float, second: MemorySetting, expected: float
) -> None:
    tokens = tokens_at(first, measured)
    assert 650 * 8 < tokens < 4096 * 8
    assert estimate_memory(replace(second, tokens=tokens)).allocated == pytest.approx(
        expected, rel=0.05
    )
