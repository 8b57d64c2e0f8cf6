"""The bytes of the training state by hand; test_grid.py compares with what was measured."""

from __future__ import annotations

import pytest

from launch.config.recipe_keys import Precision
from launch.config.schema import Mode
from launch.planning.estimate.model_state import bytes_per_parameter

BF16, FP32 = Precision.bf16, Precision.fp32


@pytest.mark.parametrize(
    ("mode", "precision", "on_rank", "on_host"),
    [
        (Mode.single, BF16, 2 + 2 + 4, 0),
        (Mode.ddp, FP32, 4 + 4 + 8, 0),
        (Mode.zero1, BF16, 2 + 2 + 12 / 8, 0),
        (Mode.zero2, BF16, 2 + (2 + 12) / 8, 0),
        (Mode.zero3, BF16, (2 + 2 + 12) / 8, 0),
        (Mode.zero3, FP32, (4 + 4 + 12) / 8, 0),
        (Mode.zero3_offload, BF16, 0, 12 + 4),
        (Mode.fsdp, BF16, (4 + 4 + 8) / 8, 0),
    ],
)
def test_eight_ranks_share_what_the_mode_shards(
    mode: Mode, precision: Precision, on_rank: float, on_host: float
) -> None:
    state = bytes_per_parameter(mode, 8, precision)
    assert (state.rank, state.host) == (on_rank, on_host)
