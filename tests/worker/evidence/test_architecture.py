"""What OLMo-core's preset builds is compared with the config.json that the saved model gets."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("olmo_core", reason="the `open-instruct` dependencies are not installed")

from olmo_core.nn.attention import AttentionBackendName
from olmo_core.nn.rope import YaRNRoPEScalingConfig
from olmo_core.nn.transformer import TransformerConfig
from transformers import Olmo2Config, Olmo3Config, PretrainedConfig, Qwen3Config

from launch.worker.evidence import PROVEN, REFUTED, Evidence
from launch.worker.evidence.architecture import check_architecture

VOCABULARY = 400
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
FACTOR = {"attention_factor": 1.2079441541679836}


def build(preset: str, factor: int | None = None) -> Any:
    """A preset without weights; `factor` is that of `rope_scaling_factor`."""
    made = getattr(TransformerConfig, preset)(VOCABULARY, attn_backend=AttentionBackendName.torch)
    if factor is not None:
        scaling = YaRNRoPEScalingConfig(
            factor=factor, beta_fast=32, beta_slow=1, old_context_len=8192
        )
        made = made.with_rope_scaling(scaling)
    return made.build(init_device="meta")


def olmo3(**changed: Any) -> PretrainedConfig:
    """The config.json of the preset olmo3_14M, but for what is `changed`."""
    facts: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500_000.0,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
    }
    return Olmo3Config(**{**facts, **changed})


def judge(config: PretrainedConfig, factor: int | None = None) -> Evidence:
    return check_architecture(build("olmo3_14M", factor), config)


@pytest.mark.parametrize(
    ("config", "factor"),
    [
        (olmo3(), None),
        (olmo3(rope_scaling={**YARN, **FACTOR, "beta_fast": 32, "beta_slow": 1}), 8),
        (olmo3(rope_scaling=YARN), 8),  # its other values are transformers' defaults
    ],
)
def test_a_preset_that_computes_what_the_folder_says_is_proven(
    config: PretrainedConfig, factor: int | None
) -> None:
    assert judge(config, factor).verdict == PROVEN


@pytest.mark.parametrize(
    ("changed", "factor", "found"),
    [
        ({"rms_norm_eps": 1e-5}, None, "rms_norm_eps 1e-06 for 1e-05"),
        ({"rope_theta": 10_000.0}, None, "rope_theta 500000 for 10000 in layer 3"),
        ({"num_attention_heads": 4}, None, "num_attention_heads 8 for 4"),
        ({"num_key_value_heads": 4}, None, "num_key_value_heads 8 for 4"),
        ({"sliding_window": 1024}, None, "sliding_window 4096 for 1024 in layer 0"),
        (
            {"layer_types": ["sliding_attention"] * 4},
            None,
            "sliding_window none for 4096 in layer 3",
        ),
        ({}, 8, "rope_scaling yarn x8 for none in layer 3"),
        ({"rope_scaling": YARN}, None, "rope_scaling none for yarn x8 in layer 3"),
        ({"rope_scaling": YARN}, 4, "rope_scaling yarn x4 for yarn x8 in layer 3"),
    ],
)
def test_what_differs_is_named(changed: dict[str, Any], factor: int | None, found: str) -> None:
    evidence = judge(olmo3(**changed), factor)
    assert evidence.verdict == REFUTED
    assert evidence.value == found


def test_models_of_other_kinds_are_compared_too() -> None:
    smallest = build("olmo2_30M")
    layer = next(iter(smallest.blocks.values()))
    same = {
        "num_hidden_layers": len(smallest.blocks),
        "num_attention_heads": layer.attention.n_heads,
        "num_key_value_heads": layer.attention.n_kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500_000.0,
    }
    assert check_architecture(smallest, Olmo2Config(**same)).verdict == PROVEN
    refuted = check_architecture(smallest, Olmo2Config(**{**same, "rope_theta": 10_000.0}))
    assert refuted.value == "rope_theta 500000 for 10000 in layer 0"
    qwen = Qwen3Config(
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        rms_norm_eps=1e-6,
        rope_theta=1_000_000.0,
    )
    assert check_architecture(build("qwen3_0_6B"), qwen).verdict == PROVEN
