"""Computes what a model's forward pass saves for backward, and what loss and backward add to it.

Derived from transformers modeling_llama.py and liger-kernel's ops;
tests/planning/estimate/test_saved.py counts the bytes of a real model. With a vocabulary of 128k
the logits are the largest tensors of a step.
"""

from __future__ import annotations

import math

from launch.config.kinds import Kind
from launch.config.recipe_keys import Precision
from launch.planning.estimate.setting import Attention, MemorySetting

_INVERSE_RMS = 4  # bytes: the inverse root of a row's mean square, in fp32


def norm_bytes(width: int, setting: MemorySetting) -> int:
    """Return the bytes per token of an RMSNorm over `width`, with its output, which the next
    matrices save.

    transformers (modeling_llama.py:60-65) saves the input in fp32, the normalised input in bf16 (in
    fp32 for OLMo) and the output; Liger (ops/rms_norm.py:674) saves the input as it is, one number
    per row, and the output.
    """
    element = setting.element
    if setting.liger:
        return 2 * element * width + _INVERSE_RMS
    if setting.precision == Precision.fp32:
        return 3 * element * width + _INVERSE_RMS
    normalised = 4 if setting.shape.is_olmo else element
    return (4 + normalised + element) * width + _INVERSE_RMS


def mlp_bytes(setting: MemorySetting) -> int:
    """Return the bytes per token of the gated MLP: gate, up, their product, and the activated gate,
    which Liger recomputes (modeling_llama.py:173; liger ops/swiglu.py:272).
    """
    tensors = 3 if setting.liger else 4
    return tensors * setting.element * setting.shape.intermediate


def attention_bytes(setting: MemorySetting) -> int:
    """Return the bytes per token of attention: queries, keys, values, output, and a softmax sum per
    head in fp32.

    With a mask SDPA does not take grouped heads, so that keys and values are first repeated for
    every head (transformers sdpa_attention.py:62-74); eager always repeats them.
    """
    shape = setting.shape
    repeated = setting.masked_layers > 0 or setting.attention == Attention.eager
    keys = shape.query_width if repeated else shape.key_width
    sums = 0 if setting.attention == Attention.eager else 4 * shape.heads
    heads = 0
    if shape.has_head_norms:
        heads = norm_bytes(shape.query_width, setting) + norm_bytes(shape.key_width, setting)
        # The outputs of these norms are rotated and need not be saved.
        heads -= setting.element * (shape.query_width + shape.key_width)
    return setting.element * (2 * shape.query_width + 2 * keys) + sums + heads


def mask_bytes(setting: MemorySetting) -> float:
    """Return the bytes of a layer's tokens x tokens matrices; of a sliding layer, if only sliding
    layers have a mask.

    SDPA converts the boolean mask to the weights' type in every layer, and saves it (aten
    native/transformers/attention.cpp, convert_boolean_attn_mask). Eager saves the softmax of every
    head in fp32, and in the weights' type (modeling_llama.py:213).
    """
    square = setting.tokens**2 / setting.rows
    if setting.attention == Attention.eager:
        softmax = 4 + setting.element if setting.element == 2 else 4
        return square * setting.shape.heads * softmax
    return square * setting.element if setting.masked_layers else 0.0


def input_copy_bytes(setting: MemorySetting) -> int:
    """Return the bytes per token by which autocast and adapters change what a layer saves.

    Autocast over fp32 weights converts the inputs of q, k, v, gate and up to bf16, each on its own.
    With adapters, frozen matrices save no input, and frozen norms do not save the normalised one;
    but each A saves its input, which is converted to fp32 one by one where the adapter casts, and
    each B saves the low-rank one (peft/tuners/lora/layer.py, Linear.forward).
    """
    shape = setting.shape
    element = setting.element
    adapter = setting.adapter
    if adapter is None:
        return 5 * element * shape.hidden if setting.autocast else 0
    saved = adapter.layers * adapter.rank * element
    if not setting.liger:
        saved -= 2 * element * shape.hidden
    if adapter.casts:
        saved += element * (3 * shape.hidden + shape.query_width)
    # DoRA scales what the layer and what its adapter returns, and backward needs both
    # (peft/tuners/lora/dora.py, DoraLinearLayer.forward).
    return saved + 2 * element * adapter.dora_outputs


def cast_weight_bytes(setting: MemorySetting) -> float:
    """Return the bytes of the bf16 copies that autocast keeps of trained fp32 weights until
    backward ends.
    """
    if setting.autocast:
        return 2.0 * setting.shape.parameters
    if setting.adapter and setting.adapter.fp32:
        return 2.0 * setting.adapter.parameters
    return 0.0


def summed_weight_bytes(setting: MemorySetting) -> float:
    """Return the bytes that a layer saves of its weights that have an adapter themselves.

    Their sum with B @ A, in their own type, takes part in the forward pass in their place, and the
    gradient of its input needs it (peft/tuners/lora/layer.py, ParamWrapper._activate_lora). The first
    layer's queries, keys and values have no such gradient without checkpointing, and save less.
    """
    weights = setting.adapter.weights if setting.adapter else ()
    return float(setting.element * sum(weights))


def layer_bytes(setting: MemorySetting) -> float:
    """Return the bytes that one layer saves when it is not checkpointed; those of a sliding layer,
    if the others have no mask.

    In a compiled layer, backward recomputes the norms, the rotations' products and the gate. The
    layer saves what matrices and attention need: four hidden states, queries, keys and values before
    and after their norm, and the two halves of the MLP.
    """
    if setting.compiled:
        shape = setting.shape
        attention_width = 3 * (shape.query_width + shape.key_width)
        widths = 4 * shape.hidden + attention_width + 2 * shape.intermediate
        return setting.tokens * (setting.element * widths + 4 * shape.heads) + mask_bytes(setting)
    norms = 2 * norm_bytes(setting.shape.hidden, setting)
    per_token = norms + attention_bytes(setting) + mlp_bytes(setting) + input_copy_bytes(setting)
    of_weights = summed_weight_bytes(setting)
    return setting.tokens * per_token + mask_bytes(setting) + of_weights


def shared_bytes(setting: MemorySetting) -> float:
    """Return the bytes that all layers share: the rotary cosines and sines, and the boolean mask,
    which only checkpointed layers keep until backward.

    Sliding layers have cosines and sines of their own, and a mask of their own beside that of the
    others (transformers modeling_olmo3.py:420-427).
    """
    shape = setting.shape
    head_size = shape.query_width // shape.heads
    kinds = 1
    if 0 < shape.sliding_layers < shape.layers and not setting.compiled:
        kinds = 2
    mask = 0.0
    if setting.masked_layers and setting.checkpointing:
        mask = setting.tokens**2 / setting.rows * (kinds if setting.masked else 1)
    rotation = 4 if shape.is_olmo else setting.element
    return mask + kinds * 2 * rotation * head_size * setting.tokens


def layers_bytes(setting: MemorySetting) -> float:
    """Return the bytes that all layers have saved at the end of forward.

    A checkpointed layer saves only its input, or the inputs of its attention, MLP and their norms.
    """
    layers = setting.shape.layers
    if setting.checkpointing:
        kept = setting.kept_states * residual_bytes(setting)
        return layers * kept + shared_bytes(setting)
    without_mask = 0.0
    if setting.masked_layers and setting.attention != Attention.eager:
        without_mask = (layers - setting.masked_layers) * mask_bytes(setting)
    return layers * layer_bytes(setting) - without_mask + shared_bytes(setting)


def saved_bytes(setting: MemorySetting) -> float:
    """Return the bytes saved at the end of forward: those of the layers and of the last norm."""
    last_norm = norm_bytes(setting.shape.hidden, setting) * setting.tokens
    return layers_bytes(setting) + last_norm + cast_weight_bytes(setting)


def residual_bytes(setting: MemorySetting) -> float:
    """Return the bytes of the hidden states between two layers, or of their gradient."""
    element = 4 if setting.autocast else setting.element
    return float(element * setting.shape.hidden * setting.tokens)


def mlp_backward_bytes(setting: MemorySetting) -> float:
    """Return the bytes that backward adds to a layer's own at its peak, in the gated MLP.

    Three gradients of its width are alive and the product is already freed; Liger overwrites saved
    tensors with two of the three (ops/swiglu.py:60-64). The gradient of the hidden states comes on
    top.
    """
    gradients = 1 if setting.liger else 2
    mlp = gradients * setting.element * setting.shape.intermediate * setting.tokens
    return mlp + residual_bytes(setting)


# Bytes per logit: the saved log-softmax, its gradient and the gradient of its input, all in fp32.
_LOGITS_BACKWARD = 12
# Bytes per logit of OLMo-core's compiled trainers: bf16 logits and their fp32 gradient; DPO's
# log-probs have a log-softmax as well. Both numbers are fitted to benchmarks/h200_memory_olmo.json.
_COMPILED_LOGITS = {Kind.sft: 6, Kind.dpo: 10}
_TILE_TOKENS = 4096  # TOKEN_CHUNK_SIZE (trl/kernels/chunked_logprob.py:31)
_TILE_WORDS = 32768  # _CHUNKED_LOGPROB_CHUNK_SIZE (trl/trainer/utils.py:1506)


def loss_bytes(setting: MemorySetting) -> float:
    """Return the bytes at the peak of the loss.

    Whole logits: backward of cross-entropy, and of a gather from log_softmax, holds three fp32
    tensors of tokens x vocabulary at once (transformers loss_utils.py:57, upstream
    padding_free_collator.py:15-17): more than the forward pass with the bf16 logits, their fp32
    copy and the log-softmax. Fused: one chunk of logits, the gradient of the matrix, and the
    gradient of the hidden states (liger ops/fused_linear_cross_entropy.py).
    """
    if setting.chunked_head:
        return _chunked_bytes(setting)
    shape = setting.shape
    tokens = setting.tokens
    if not setting.fused_loss:
        bytes_per_logit = _LOGITS_BACKWARD
        if setting.compiled:
            bytes_per_logit = _COMPILED_LOGITS.get(setting.kind, _LOGITS_BACKWARD)
        return float(bytes_per_logit * tokens * shape.vocabulary)
    chunk = float(chunk_tokens(tokens, shape.vocabulary, shape.hidden))
    elements = chunk * shape.vocabulary + shape.embedding + tokens * shape.hidden
    return setting.element * elements


def head_bytes(setting: MemorySetting) -> float:
    """Return the bytes while the output matrix' gradient is computed: the gradient itself, and that
    of the logits in the weights' type, which the fused loss never holds.
    """
    if setting.chunked_head:
        return _chunked_bytes(setting)
    shape = setting.shape
    logits = 0 if setting.fused_loss else setting.tokens * shape.vocabulary
    elements = logits + shape.embedding + setting.tokens * shape.hidden
    return float(setting.element * elements)


def _chunked_bytes(setting: MemorySetting) -> float:
    """Return the bytes of TRL's head: a tile of logits, and the gradients of the hidden states and
    of a trained output matrix in fp32 (trl/kernels/chunked_logprob.py:310-457).
    """
    shape = setting.shape
    tile_tokens = min(setting.tokens, _TILE_TOKENS)
    tile_words = min(shape.vocabulary, _TILE_WORDS)
    tile = setting.element * tile_tokens * tile_words
    matrix_gradient = 0 if setting.adapter else shape.embedding
    return float(tile + 4 * (setting.tokens * shape.hidden + matrix_gradient))


def chunk_tokens(tokens: int, vocabulary: int, hidden: int) -> int:
    """Return the tokens of one chunk: as many logits as there are hidden states, up to the next
    power of two (liger ops/fused_linear_cross_entropy.py, inc_factor and chunk_size).
    """
    chunks = math.ceil(vocabulary / hidden)
    share = math.ceil(tokens / chunks)
    power_of_two = 1 << max(0, share - 1).bit_length()
    return min(power_of_two, tokens)
