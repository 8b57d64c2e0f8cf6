"""Estimates the memory and the time that sampling completions with transformers adds to an RL step.

The rank generates all its completions of an optimizer step at once
(trl/trainer/grpo_trainer.py:1537-1545), between two steps, when no gradients exist without
DeepSpeed.
"""

from __future__ import annotations

from launch.planning.estimate.activations import cast_weight_bytes
from launch.planning.estimate.setting import Generation, MemorySetting

# The share of the free memory that continuous batching takes (trl/trainer/grpo_trainer.py:806).
CACHE_SHARE = 0.5
# The number of fp32 copies of a token's logits: for temperature, softmax, its sum and the draw.
_SAMPLING = 5
# Seconds that the host takes to issue one layer for one token of all completions. The numbers are
# the fastest steps of benchmarks/h200_rlvr_*.json; other steps on the same hosts took three times as
# long.
_ADAPTED = 2.9e-3  # adapters are called
_CAST = 1.9e-3  # weights are cast by autocast
_PLAIN = 1.5e-3
_BATCHED_ADAPTED = 1.9e-3  # adapters are called, and completions are batched continuously
_BATCHED = 1.35e-3


def cache_bytes(setting: MemorySetting, rows: int, tokens: int) -> float:
    """Return the bytes of keys and values of `rows` sequences of `tokens`."""
    return 2.0 * setting.element * setting.shape.layers * setting.shape.key_width * rows * tokens


def prefill_bytes(setting: MemorySetting, sampled: Generation) -> float:
    """Return the bytes while all prompts pass through the last layer: their cache, and its MLP.

    Outside of autocast an adapter's output, its scaled copy and their sum are in fp32
    (peft/tuners/lora/layer.py, Linear.forward), each of the MLP's width; the logits are those of
    the last token only.
    """
    shape = setting.shape
    tokens = sampled.rows * sampled.prompt
    widths = setting.element * (3 * shape.intermediate + 3 * shape.hidden)
    if setting.adapter:
        widths = (
            2 * setting.element * shape.intermediate
            + 4 * 2 * shape.intermediate
            + 3 * setting.element * shape.hidden
        )
    return cache_bytes(setting, sampled.rows, sampled.prompt) + float(tokens * widths)


def decoding_bytes(setting: MemorySetting, sampled: Generation) -> float:
    """Return the bytes at the last token: the cache, a second copy of one layer's part of it while a
    token is appended, and the logits.
    """
    cache = cache_bytes(setting, sampled.rows, sampled.prompt + sampled.response)
    logits = 4.0 * _SAMPLING * sampled.rows * setting.shape.vocabulary
    return cache * (1 + 1 / setting.shape.layers) + logits


def generation_bytes(setting: MemorySetting, sampled: Generation) -> float:
    """Return the bytes at the peak of generation, without the trainer's own weights and states."""
    if sampled.card_gib is not None:
        return CACHE_SHARE * sampled.card_gib * (1 << 30)
    prefill = prefill_bytes(setting, sampled)
    decoding = decoding_bytes(setting, sampled)
    return max(prefill, decoding) + cast_weight_bytes(setting)


def generation_seconds(setting: MemorySetting, sampled: Generation, memory_rate: float) -> float:
    """Return the seconds of a step's generation.

    For each token the host issues all layers, and the GPU reads the weights and the cache at
    `memory_rate` bytes per second; whichever takes longer counts.
    """
    if sampled.card_gib is not None:
        layer_seconds = _BATCHED_ADAPTED if setting.adapter else _BATCHED
    elif setting.adapter:
        layer_seconds = _ADAPTED
    else:
        layer_seconds = _CAST if setting.autocast else _PLAIN
    host_seconds = setting.shape.layers * layer_seconds
    mean_length = sampled.prompt + sampled.response // 2
    weights = setting.weight_element * setting.shape.parameters
    bytes_read = weights + cache_bytes(setting, sampled.rows, mean_length)
    return sampled.response * max(host_seconds, bytes_read / memory_rate)
