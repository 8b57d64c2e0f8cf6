from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launch.planning.estimate.shape import ModelShape, shape_from_hf_config, token_flops

LLAMA_8B = ModelShape(8.03e9, 32, 4096, 14336, 32, 8, 128256)
MATRICES = 7.504e9  # all parameters but the embedding and the norms


def test_six_operations_an_element_of_a_matrix() -> None:
    assert token_flops(LLAMA_8B) == pytest.approx(6 * MATRICES, rel=1e-3)
    assert token_flops(LLAMA_8B) < 6 * LLAMA_8B.parameters  # the embedding is looked up


def test_attention_grows_with_the_document() -> None:
    per_token = token_flops(LLAMA_8B, 650) - token_flops(LLAMA_8B)
    assert per_token == 12 * 32 * 4096 * 650
    assert per_token / token_flops(LLAMA_8B) == pytest.approx(0.0227, rel=0.01)


def test_frozen_weights_have_no_gradients_and_a_reference_is_evaluated() -> None:
    assert token_flops(LLAMA_8B, frozen=True) == pytest.approx(4 * MATRICES, rel=1e-3)
    assert token_flops(LLAMA_8B, reference=True) == pytest.approx(8 * MATRICES, rel=1e-3)
    both = token_flops(LLAMA_8B, 300, reference=True) - token_flops(LLAMA_8B, reference=True)
    assert both == pytest.approx(16 * 32 * 4096 * 300)


def test_a_reward_model_has_no_output_matrix() -> None:
    assert token_flops(LLAMA_8B) - token_flops(LLAMA_8B, headless=True) == 6 * LLAMA_8B.embedding


OLMO3_7B = ModelShape(
    7.3e9, 32, 4096, 11008, 32, 32, 100278, model_type="olmo3", window=4096, sliding_layers=24
)


@pytest.mark.parametrize("tokens", [1, 100, 4096, 4097, 32768])
def test_a_sliding_layer_attends_to_what_its_mask_leaves(tokens: int) -> None:
    """Twice the pairs of the mask, as the square of a causal layer is; counted key by key."""
    pairs = sum(min(position + 1, 4096) for position in range(tokens))
    full = tokens * (tokens + 1) // 2
    expected = 2 * (24 * pairs + 8 * full) / 32
    assert OLMO3_7B.attended_square(tokens) == pytest.approx(expected, rel=1e-3, abs=tokens)


def test_a_window_spares_operations_beyond_its_length_only() -> None:
    plain = replace(OLMO3_7B, window=None)
    assert token_flops(OLMO3_7B, 4096) == token_flops(plain, 4096)
    assert token_flops(OLMO3_7B, 32768) < 0.8 * token_flops(plain, 32768)


@pytest.mark.parametrize(
    ("changed", "window", "sliding"),
    [
        ({}, 4096, 6),
        ({"layer_types": ["sliding_attention", *["full_attention"] * 7]}, 4096, 1),
        ({"model_type": "mistral"}, 4096, 8),
        ({"model_type": "mistral", "sliding_window": None}, None, 0),
        ({"model_type": "qwen2"}, None, 0),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 5}, 4096, 3),
        ({"model_type": "smollm3", "use_sliding_window": False}, None, 0),
        ({"model_type": "seed_oss", "sliding_window": None}, None, 0),
    ],
)
def test_the_window_of_a_configuration(
    changed: dict[str, Any], window: int | None, sliding: int
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    config = {"model_type": "olmo3", "num_hidden_layers": 8, "vocab_size": 99, **sizes}
    shape = shape_from_hf_config({**config, "sliding_window": 4096, **changed})
    assert shape is not None
    assert (shape.window, shape.sliding_layers) == (window, sliding)
