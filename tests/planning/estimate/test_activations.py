"""The bytes that a layer saves, by hand; test_saved.py counts those of a real model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.config.recipe_keys import Precision
from launch.config.schema import Mode
from launch.planning.estimate.activations import (
    attention_bytes,
    mask_bytes,
    mlp_bytes,
    norm_bytes,
)
from launch.planning.estimate.setting import Attention, MemorySetting
from launch.planning.estimate.shape import ModelShape, with_parameters

# hidden 128, intermediate 448, 4 heads of 32, 2 of keys
SHAPE = with_parameters(ModelShape(0, 4, 128, 448, 4, 2, 500))
OLMO = replace(SHAPE, model_type="olmo2")
FP32 = {"precision": Precision.fp32}


def setting(shape: ModelShape = SHAPE, **more: Any) -> MemorySetting:
    """Two rows of 30 tokens each."""
    return MemorySetting(shape, Kind.sft, Mode.single, 1, 2, 60, **more)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (setting(), (4 + 2 + 2) * 10 + 4),
        (setting(OLMO), (4 + 4 + 2) * 10 + 4),
        (setting(**FP32), (4 + 4 + 4) * 10 + 4),
        (setting(liger=True), (2 + 2) * 10 + 4),
    ],
)
def test_a_norm_saves_its_input_output_and_root(case: MemorySetting, expected: int) -> None:
    assert norm_bytes(10, case) == expected


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (setting(), 4 * 2 * 448),
        (setting(**FP32), 4 * 4 * 448),
        (setting(liger=True), 3 * 2 * 448),
    ],
)
def test_the_mlp_saves_four_products_or_liger_three(case: MemorySetting, expected: int) -> None:
    assert mlp_bytes(case) == expected


@pytest.mark.parametrize(
    ("attention", "saved", "of_masks"),
    [
        # queries and output of 4 heads, keys and values of 2, a sum per head
        (Attention.flash, 2 * (2 * 128 + 2 * 64) + 4 * 4, 0),
        # keys and values for each of the 4 heads; a boolean mask as numbers of 2 bytes
        (Attention.sdpa, 2 * (2 * 128 + 2 * 128) + 4 * 4, 60 * 30 * 2),
        # no sums; the softmax of each head in fp32 and in bf16
        (Attention.eager, 2 * (2 * 128 + 2 * 128), 60 * 30 * 4 * 6),
    ],
)
def test_attention_saves_heads_sums_and_masks(
    attention: Attention, saved: int, of_masks: int
) -> None:
    case = setting(attention=attention)
    assert (attention_bytes(case), mask_bytes(case)) == (saved, of_masks)
