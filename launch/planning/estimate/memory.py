"""Estimates the peak memory of a GPU in training, as the largest of several moments of a step.

The size of a moment is the sum of what is allocated then. The peak is less than the sum of
everything: the logits are freed before the optimizer steps, and the gradients of a first micro batch
do not exist yet while the logits do.

What torch's caching allocator reserves beyond the peak is fitted to runs on H200s. It consists of
cached blocks that fit no request: those of the logits, whose tensors differ in size; those of
DeepSpeed, which allocates on several streams, each with blocks of its own; and, when packed rows
vary in length, those of shorter rows. A block that is idle for one reason serves another, so that
the larger number counts, not the sum. With `expandable_segments:True` the blocks of a stream share
one range of addresses, and rows of any length fit into it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from launch.config.recipe_keys import Precision
from launch.config.schema import Mode
from launch.planning.estimate.activations import (
    cast_weight_bytes,
    head_bytes,
    layer_bytes,
    layers_bytes,
    loss_bytes,
    mlp_backward_bytes,
    residual_bytes,
    saved_bytes,
    shared_bytes,
)
from launch.planning.estimate.allocator import STAGE_3, cached_bytes
from launch.planning.estimate.generation import generation_bytes
from launch.planning.estimate.memory_estimate import EVALUATION, GENERATION, GIB, MemoryEstimate
from launch.planning.estimate.model_state import (
    bucket_bytes,
    bytes_per_parameter,
    frozen_bytes,
    gathered_bytes,
    initial_bucket_bytes,
    scattering_bytes,
    second_gradient_bytes,
    step_gradient_bytes,
    step_temporary_bytes,
)
from launch.planning.estimate.optimizers import factored_bytes
from launch.planning.estimate.setting import AdapterSetting, MemorySetting

# Bytes of the CUDA context with its kernels, and of NCCL's buffers with several ranks. They are usual
# sizes, which no source gives and torch's counters do not show.
_CONTEXT = 0.6 * GIB
COMMUNICATION = 1.2 * GIB


@dataclass(frozen=True)
class _Moment:
    """Bytes alive at one moment of a step, without weights and the optimizer's states."""

    name: str
    gradients: float
    activations: float = 0.0
    logits: float = 0.0
    buffers: float = 0.0

    @property
    def size(self) -> float:
        return self.gradients + self.activations + self.logits + self.buffers


def estimate_memory(setting: MemorySetting) -> MemoryEstimate:
    """Estimate the peak memory of a GPU in training at `setting`."""
    state = _adapter_state if setting.adapter else _full_state
    parameters, optimizer, training = state(setting)
    passes = (*_reference_pass(setting), *_evaluation(setting))
    generation = _generation(setting, parameters + optimizer)
    moments = (*training, *passes, *generation)
    peak = max(moments, key=lambda moment: moment.size)
    context = _CONTEXT + setting.vllm_gib * GIB
    if setting.ranks > 1:
        context += COMMUNICATION
    return MemoryEstimate(
        parameters=parameters / GIB,
        gradients=peak.gradients / GIB,
        optimizer=optimizer / GIB,
        activations=peak.activations / GIB,
        logits=peak.logits / GIB,
        buffers=peak.buffers / GIB,
        fragmentation=cached_bytes(setting) / GIB,
        context=context / GIB,
        moment=peak.name,
        moments={moment.name: (parameters + optimizer + moment.size) / GIB for moment in moments},
    )


def _reference_pass(setting: MemorySetting) -> tuple[_Moment, ...]:
    """Return the moment of the pass that precomputes the reference's log-probs; none without one.

    It saves no activations. It allocates the hidden states and the MLP of one layer, then the head's
    tile and each token's fp32 sums (trl/trainer/dpo_trainer.py:1240-1275). The estimate ignores that
    gradients and optimizer states do not exist yet.
    """
    if not setting.reference_factor:
        return ()
    activations = _bytes_without_saving(setting, setting.reference_factor)
    buffers = gathered_bytes(setting, math.inf)
    return (_Moment("reference pass", gradients=0.0, activations=activations, buffers=buffers),)


def _evaluation(setting: MemorySetting) -> tuple[_Moment, ...]:
    """Return the moment of an evaluation on validation data; none without it.

    It saves no activations, and computes only the loss (transformers trainer.py, evaluate): it
    allocates one layer's hidden states and MLP, and the loss's copies of the logits, for which those
    of backward are an upper bound. It comes after the optimizer's step, whose gradients are freed
    without DeepSpeed, while ZeRO keeps those of the rank.
    """
    if not setting.evaluation_factor:
        return ()
    tokens = math.ceil(setting.tokens * setting.evaluation_factor)
    gradients = 0.0
    if setting.mode not in (Mode.single, Mode.ddp) and not setting.adapter:
        state = bytes_per_parameter(setting.mode, setting.ranks, setting.precision)
        all_gradients = state.gradients * setting.shape.parameters
        gradients = step_gradient_bytes(setting, all_gradients)
    moment = _Moment(
        EVALUATION,
        gradients=gradients,
        activations=_bytes_without_saving(setting, setting.evaluation_factor),
        logits=loss_bytes(replace(setting, tokens=tokens)),
        buffers=cast_weight_bytes(setting) + gathered_bytes(setting, math.inf),
    )
    return (moment,)


def _bytes_without_saving(setting: MemorySetting, factor: float) -> float:
    """Return the bytes of a forward pass without gradients: the hidden states and the MLP of one
    layer. `factor`: its samples over those of a training one.
    """
    shape = setting.shape
    tokens = setting.tokens * factor
    activations = setting.element * tokens * (3 * shape.intermediate + 2 * shape.hidden)
    micro_batch = max(1, math.ceil(setting.micro_batch * factor))
    if replace(setting, micro_batch=micro_batch).masked_layers:
        activations += tokens**2 / (setting.rows * factor) * setting.element
    return activations


def _generation(setting: MemorySetting, state: float) -> tuple[_Moment, ...]:
    """Return the moment of generation; none without it.

    `state` are the bytes of weights and optimizer, which are allocated then too. ZeRO-3 gathers all
    weights for it.
    """
    sampled = setting.generation
    if sampled is None:
        return ()
    if sampled.card_gib is not None:
        free = max(0.0, sampled.card_gib - state / GIB)
        sampled = replace(sampled, card_gib=free)
    gathered = 0.0
    if setting.mode in STAGE_3 and setting.ranks > 1:
        gathered = setting.element * setting.shape.parameters
    activations = generation_bytes(setting, sampled)
    return (_Moment(GENERATION, gradients=0.0, activations=activations, buffers=gathered),)


def _full_state(setting: MemorySetting) -> tuple[float, float, tuple[_Moment, ...]]:
    """Return the bytes of weights and optimizer, and the moments, when all weights are trained."""
    size = setting.shape.parameters
    precision = Precision.fp32 if setting.autocast else setting.precision
    state = bytes_per_parameter(setting.mode, setting.sharing_ranks, precision)
    models = 2 if setting.reference else 1
    weights = state.weights * size * models
    return weights, _optimizer_bytes(setting), _moments(setting, state.gradients * size)


def _adapter_state(setting: MemorySetting) -> tuple[float, float, tuple[_Moment, ...]]:
    """Return the bytes of weights and optimizer, and the moments, when an adapter is trained.

    The adapter's gradients and AdamW's moments are taken as fp32, which is an upper bound, as is
    taking no matrix of an adapter as paged: bitsandbytes pages those of 100,000 weights and more.
    Frozen weights have no gradients. A 4-bit matrix is unpacked when its layer needs it.
    """
    adapter = setting.adapter
    if adapter is None:
        raise ValueError("no adapter is trained")
    shape = setting.shape
    # Bytes of what is trained, and as many of its gradients. Whole modules keep the type of the
    # frozen weights, which stay beside their trained copies.
    trained = 4 * adapter.parameters + setting.element * adapter.whole
    recomputed = layer_bytes(setting) if setting.checkpointing else 0.0
    unpacked = 0.0
    if adapter.quantized:
        unpacked = float(setting.element * shape.hidden * shape.intermediate)
    gathered = gathered_bytes(setting, math.inf)
    loss = _loss_moment(setting, trained)
    last_layer = _Moment(
        "last layer",
        gradients=trained,
        activations=layers_bytes(setting) + recomputed + mlp_backward_bytes(setting),
        logits=unpacked + dora_bytes(setting, adapter) + summing_bytes(setting, adapter),
        buffers=bucket_bytes(setting) + gathered,
    )
    step = _Moment("step", gradients=trained)
    weights = frozen_bytes(setting, adapter) + trained
    return weights, _adapter_optimizer_bytes(setting, adapter), (loss, last_layer, step)


def _optimizer_bytes(setting: MemorySetting) -> float:
    """Return the bytes that the optimizer keeps on each GPU when all weights are trained.

    Where ranks share it, it is AdamW (see `planned_optimizer` in forecast.py).
    """
    shape = setting.shape
    optimizer = setting.optimizer
    if setting.mode not in (Mode.single, Mode.ddp):
        precision = Precision.fp32 if setting.autocast else setting.precision
        state = bytes_per_parameter(setting.mode, setting.sharing_ranks, precision)
        return state.optimizer * shape.parameters
    if optimizer.factored:
        return factored_bytes(shape)
    return optimizer.device_bytes(shape.parameters, shape.embedding, setting.weight_element)


def _adapter_optimizer_bytes(setting: MemorySetting, adapter: AdapterSetting) -> float:
    """Return the bytes that the optimizer keeps for an adapter, whose embeddings are not trained."""
    optimizer = setting.optimizer
    if optimizer.factored:
        return 4.0 * adapter.parameters / adapter.rank
    scales = optimizer.scales * adapter.parameters
    of_adapter = scales + optimizer.state_bytes(adapter.parameters, 0, element=4)
    if setting.mode not in (Mode.single, Mode.ddp):
        state = bytes_per_parameter(setting.mode, setting.ranks, setting.precision)
        return of_adapter + state.optimizer * adapter.whole
    whole = optimizer.device_bytes(adapter.whole, adapter.whole_embedding, setting.element)
    return of_adapter + whole


def dora_bytes(setting: MemorySetting, adapter: AdapterSetting) -> float:
    """Return the bytes of DoRA's temporaries in the forward pass of the matrix that has most.

    It multiplies A and B with a unit matrix of its inputs, in the adapter's type, and adds the
    product to a copy of the weights (peft/tuners/lora/dora.py, get_lora_weight and forward).
    """
    if not adapter.dora_outputs:
        return 0.0
    width = 4 if adapter.fp32 else 2
    sizes = []
    for inputs, outputs in setting.shape.matrices.values():
        sizes.append(width * inputs * (inputs + outputs) + 2 * setting.element * inputs * outputs)
    return float(max(sizes))


def summing_bytes(setting: MemorySetting, adapter: AdapterSetting) -> float:
    """Return the bytes of backward's temporaries for the largest weight that has an adapter itself:
    the gradient of its sum with B @ A, and that of the product before it is scaled, in fp32 where
    autocast does not turn A and B into bf16.
    """
    width = 4 if adapter.casts else setting.element
    return float(2 * width * max(adapter.weights, default=0))


def _moments(setting: MemorySetting, gradients: float) -> tuple[_Moment, ...]:
    """Return the moments that can be the peak.

    Without DeepSpeed and without accumulation no gradients exist when backward starts (zero_grad
    sets them to None), and all of them when it ends: each layer adds its own as backward leaves it.
    With accumulation, and in ZeRO's own buffers, they always exist, and a new one is added to them
    and freed. The gradient of a tied output matrix waits through all of backward for the
    embedding's, and their sum is a third tensor.
    """
    shape = setting.shape
    element = setting.weight_element
    mlp_backward = mlp_backward_bytes(setting)
    recomputed = layer_bytes(setting) if setting.checkpointing else 0.0
    kept_input = residual_bytes(setting) if setting.checkpointing else 0.0

    head = float(element * shape.embedding)
    down_projection = float(element * shape.hidden * shape.intermediate)
    held, at_last_layer, at_first_layer = _backward_gradients(setting, gradients)
    embedding_extra = 0.0 if _starts_without_gradients(setting) else head
    if shape.tied:
        embedding_extra += 2 * head
    gathered = gathered_bytes(setting, math.inf)
    gathered_two_layers = gathered_bytes(setting, 2 * shape.layer)
    buckets = bucket_bytes(setting)
    head_buckets = buckets + scattering_bytes(setting, head)
    layer_buckets = buckets + scattering_bytes(setting, down_projection)

    return (
        _loss_moment(setting, held),
        _Moment(
            "output matrix",
            gradients=held,
            activations=saved_bytes(setting),
            logits=head_bytes(setting),
            buffers=head_buckets + gathered,
        ),
        _Moment(
            "last layer",
            gradients=at_last_layer,
            activations=layers_bytes(setting) + recomputed + mlp_backward,
            buffers=layer_buckets + gathered,
        ),
        _Moment(
            "first layer",
            gradients=at_first_layer,
            activations=layer_bytes(setting) + kept_input + shared_bytes(setting) + mlp_backward,
            buffers=layer_buckets + gathered_two_layers,
        ),
        _Moment(
            "embedding",
            gradients=gradients + second_gradient_bytes(setting, gradients),
            activations=residual_bytes(setting),
            buffers=head_buckets + embedding_extra,
        ),
        _Moment(
            "step",
            gradients=step_gradient_bytes(setting, gradients),
            buffers=step_temporary_bytes(setting),
        ),
    )


def _loss_moment(setting: MemorySetting, gradients: float) -> _Moment:
    """Return the moment of the loss, before the first of its own gradients exists."""
    return _Moment(
        "loss",
        gradients=gradients,
        activations=saved_bytes(setting),
        logits=loss_bytes(setting),
        buffers=initial_bucket_bytes(setting) + gathered_bytes(setting, math.inf),
    )


def _starts_without_gradients(setting: MemorySetting) -> bool:
    """Return whether no gradients exist when backward starts: see `_moments`."""
    is_unsharded = setting.mode in (Mode.single, Mode.ddp, Mode.zero1, Mode.fsdp)
    return is_unsharded and setting.accumulation == 1


def _backward_gradients(setting: MemorySetting, gradients: float) -> tuple[float, float, float]:
    """Return the bytes of gradients when backward starts, in the last layer, which comes first, and
    in the first layer.

    `gradients` are the bytes of all gradients.
    """
    shape = setting.shape
    element = setting.weight_element
    head = float(element * shape.embedding)
    if not _starts_without_gradients(setting):
        waiting = gradients + second_gradient_bytes(setting, gradients)
        if shape.tied:
            waiting += head
        return gradients, waiting, waiting
    down_projection = float(element * shape.hidden * shape.intermediate)
    embedding_weights = 0 if shape.tied else shape.embedding
    missing = element * (shape.layer + embedding_weights) - down_projection
    return 0.0, head + down_projection, gradients - missing
