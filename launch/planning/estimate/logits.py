"""Memory of the output matrix and the loss: with a vocabulary of 128k, the largest tensors of a step."""

from __future__ import annotations

import math

from launch.planning.estimate.setting import MemorySetting

# bytes per element: the saved log-softmax, its gradient and the gradient of its input, all in fp32
_LOGITS_BACKWARD = 12
# TOKEN_CHUNK_SIZE (trl/kernels/chunked_logprob.py:31) and _CHUNKED_LOGPROB_CHUNK_SIZE (trl/trainer/utils.py:1506)
_TILE_TOKENS, _TILE_WORDS = 4096, 32768


def loss_bytes(setting: MemorySetting) -> float:
    """Return the bytes at the peak of the loss.

    Whole logits: backward of cross-entropy, and of a gather from log_softmax, holds three fp32 tensors of tokens x
    vocabulary at once (transformers loss_utils.py:57, upstream padding_free_collator.py:15-17): more than the forward
    pass with the bf16 logits, their fp32 copy and the log-softmax. Fused: one chunk of logits, the gradient of the
    matrix, and the gradient of the hidden states (liger ops/fused_linear_cross_entropy.py).
    """
    shape, tokens, element = setting.shape, setting.tokens, setting.element
    if setting.chunked_head:
        return _chunked_bytes(setting)
    if not setting.fused_loss:
        return float(_LOGITS_BACKWARD * tokens * shape.vocabulary)
    chunk = chunk_tokens(tokens, shape.vocabulary, shape.hidden)
    return element * (float(chunk) * shape.vocabulary + shape.embedding + tokens * shape.hidden)


def head_bytes(setting: MemorySetting) -> float:
    """Return the bytes while the output matrix' gradient is computed: the gradient itself, and that of the logits in
    the weights' type, which the fused loss never holds."""
    if setting.chunked_head:
        return _chunked_bytes(setting)
    shape, element = setting.shape, setting.element
    logits = 0 if setting.fused_loss else setting.tokens * shape.vocabulary
    return float(element * (logits + shape.embedding + setting.tokens * shape.hidden))


def _chunked_bytes(setting: MemorySetting) -> float:
    """Return the bytes of TRL's head: a tile of logits, and the gradients of the hidden states and of a trained output
    matrix in fp32 (trl/kernels/chunked_logprob.py:310-457)."""
    shape = setting.shape
    tile = setting.element * min(setting.tokens, _TILE_TOKENS) * min(shape.vocabulary, _TILE_WORDS)
    gradient = 0 if setting.adapter else shape.embedding
    return float(tile + 4 * (setting.tokens * shape.hidden + gradient))


def chunk_tokens(tokens: int, vocabulary: int, hidden: int) -> int:
    """Return the tokens of one chunk: as many logits as there are hidden states, up to the next power of two
    (liger ops/fused_linear_cross_entropy.py, inc_factor and chunk_size)."""
    share = math.ceil(tokens / math.ceil(vocabulary / hidden))
    return int(min(1 << max(0, share - 1).bit_length(), tokens))
