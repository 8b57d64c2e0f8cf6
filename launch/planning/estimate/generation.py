"""What sampling completions with transformers adds to an RL step: the key-value cache, the passes
over it, and time.

The rank generates all its completions of an optimizer step at once
(trl/trainer/grpo_trainer.py:1537-1545), between two steps, when no gradients exist without
DeepSpeed.
"""

from __future__ import annotations

from launch.planning.estimate.activations import cast_weight_bytes
from launch.planning.estimate.setting import Generation, MemorySetting

# of the free memory, which continuous batching takes (trl/trainer/grpo_trainer.py:806)
CACHE_SHARE = 0.5
_SAMPLING = 5  # copies of a token's logits in fp32: of temperature, softmax, its sum and the draw
# seconds of the host to issue one layer for one token of all completions, by whether adapters are
# called, weights are cast, or completions are batched continuously: the fastest steps of
# benchmarks/h200_rlvr_*.json; the same hosts had others that took three times as long
_ADAPTED, _CAST, _PLAIN, _BATCHED_ADAPTED, _BATCHED = 2.9e-3, 1.9e-3, 1.5e-3, 1.9e-3, 1.35e-3


def cache_bytes(setting: MemorySetting, rows: int, tokens: int) -> float:
    """Return the bytes of keys and values of `rows` sequences of `tokens`."""
    return 2.0 * setting.element * setting.shape.layers * setting.shape.key_width * rows * tokens


def prefill_bytes(setting: MemorySetting, sampled: Generation) -> float:
    """Return the bytes while all prompts pass through the last layer: their cache, and its MLP.

    Outside of autocast an adapter's output, its scaled copy and their sum are in fp32
    (peft/tuners/lora/layer.py, Linear.forward), each of the MLP's width; the logits are those of
    the last token only.
    """
    shape, tokens = setting.shape, sampled.rows * sampled.prompt
    widths = setting.element * (3 * shape.intermediate + 3 * shape.hidden)
    if setting.adapter:
        widths = (
            2 * setting.element * shape.intermediate
            + 4 * 2 * shape.intermediate
            + 3 * setting.element * shape.hidden
        )
    return cache_bytes(setting, sampled.rows, sampled.prompt) + float(tokens * widths)


def decoding_bytes(setting: MemorySetting, sampled: Generation) -> float:
    """Return the bytes at the last token: the cache, a layer's keys and values while one more is
    appended, logits.
    """
    cache = cache_bytes(setting, sampled.rows, sampled.prompt + sampled.response)
    logits = 4.0 * _SAMPLING * sampled.rows * setting.shape.vocabulary
    return cache * (1 + 1 / setting.shape.layers) + logits


def generation_bytes(setting: MemorySetting, sampled: Generation) -> float:
    """Return the bytes at the peak of generation, without the trainer's own weights and states."""
    if sampled.card_gib is not None:
        return CACHE_SHARE * sampled.card_gib * (1 << 30)
    return max(
        prefill_bytes(setting, sampled), decoding_bytes(setting, sampled)
    ) + cast_weight_bytes(setting)


def generation_seconds(setting: MemorySetting, sampled: Generation, memory_rate: float) -> float:
    """Return the seconds of a step's generation: the host issues each layer for each token, or the
    card reads weights and cache, whichever takes longer.
    """
    layer = _ADAPTED if setting.adapter else _CAST if setting.autocast else _PLAIN
    if sampled.card_gib is not None:
        layer = _BATCHED_ADAPTED if setting.adapter else _BATCHED
    read = setting.weight_element * setting.shape.parameters
    read += cache_bytes(setting, sampled.rows, sampled.prompt + sampled.response // 2)
    return sampled.response * max(setting.shape.layers * layer, read / memory_rate)
