"""Estimates what torch's caching allocator reserves beyond the allocated peak, from runs on H200s."""

from __future__ import annotations

from dataclasses import dataclass

from launch.config.schema import Mode
from launch.planning.estimate.activations import saved_bytes
from launch.planning.estimate.setting import MemorySetting

_STAGE_1_AND_2 = (Mode.zero1, Mode.zero2)
STAGE_3 = (Mode.zero3, Mode.zero3_offload)


@dataclass(frozen=True)
class AllocatorShares:
    """The memory that is reserved beyond the allocated peak."""

    plain: float  # the number of output matrices without ZeRO
    stage_1_and_2: float  # their number under ZeRO 1 and 2
    stage_3: float  # their number under ZeRO 3
    logits: float  # a share of the logits in fp32, where they exist for all tokens
    varying: float  # a share of the saved activations, where packed rows vary in length

    def head_multiple(self, mode: Mode) -> float:
        """Return how many output matrices are reserved in a mode."""
        if mode in _STAGE_1_AND_2:
            return self.stage_1_and_2
        if mode in STAGE_3:
            return self.stage_3
        return self.plain


# The values minimise the squared relative error over benchmarks/h200_memory_grid.json and, for
# `varying`, h200_steps_8b.json; tests/planning/estimate/test_grid.py fits them again without each
# setting in turn.
SEGMENTS = AllocatorShares(plain=1.06, stage_1_and_2=12.6, stage_3=6.05, logits=0.68, varying=0.61)
# The values of ZeRO 1 to 3 are fitted to benchmarks/h200x4_sft_8b_region.json. `plain` and `logits`
# are not measured yet, and those above are an upper bound.
EXPANDABLE_SEGMENTS = AllocatorShares(
    plain=1.06, stage_1_and_2=5.28, stage_3=1.62, logits=0.68, varying=0.0
)


def cached_bytes(setting: MemorySetting) -> float:
    """Return the bytes that torch reserves beyond its allocated peak."""
    shares = EXPANDABLE_SEGMENTS if setting.expandable_segments else SEGMENTS
    head = shares.head_multiple(setting.mode) * head_matrix_bytes(setting)
    logits = shares.logits * whole_logits_bytes(setting)
    varying_rows = shares.varying * varying_bytes(setting)
    return max(head + logits, varying_rows)


def head_matrix_bytes(setting: MemorySetting) -> float:
    """Return the bytes of the output matrix."""
    return float(setting.element * setting.shape.embedding)


def whole_logits_bytes(setting: MemorySetting) -> float:
    """Return the bytes of all tokens' logits in fp32; 0 where the loss takes them in chunks."""
    if setting.fused_loss or setting.chunked_head:
        return 0.0
    return 4.0 * setting.tokens * setting.shape.vocabulary


def varying_bytes(setting: MemorySetting) -> float:
    """Return the bytes saved for backward if packed rows vary in length and all weights are trained;
    0 otherwise.

    The measured runs of adapters reserve no more for such rows than for rows of equal length.
    """
    if setting.packing and setting.padding and setting.adapter is None:
        return saved_bytes(setting)
    return 0.0
