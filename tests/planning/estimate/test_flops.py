from __future__ import annotations

import pytest

from launch.planning.estimate.shape import ModelShape, token_flops

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
