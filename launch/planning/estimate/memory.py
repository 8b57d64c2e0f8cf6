"""The peak memory of a card in training: the largest moment of a step, each moment the sum of what
is alive then.

The peak is less than the sum of everything: the logits are freed before the optimizer steps, and
the gradients of a first micro batch do not exist yet while the logits do. What torch's caching
allocator reserves beyond it is fitted to runs on H200s: cached blocks that fit no request, those of
the logits, whose tensors differ in size; those of DeepSpeed, which allocates on several streams,
each with blocks of its own; and, when packed rows vary in length, those of shorter rows. Blocks
that lie idle for one reason serve another, so that the larger counts, not the sum. With
`expandable_segments:True` a stream's blocks share one range of addresses, and rows of any length
fit into it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from launch.config.schema import Kind, Mode, Precision
from launch.planning.estimate.activations import (
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
from launch.planning.estimate.setting import AdapterSetting, MemorySetting

GIB = 1 << 30
GENERATION = "generation"  # the moment
# Usual sizes, which no source gives and torch's counters cannot show.
CONTEXT = 0.6 * GIB  # the CUDA context with its kernels: on the card, not counted by torch
COMMUNICATION = 1.2 * GIB  # NCCL's own buffers, with several ranks


@dataclass(frozen=True)
class MemoryEstimate:
    """GiB on each card at the peak of a step."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    buffers: float
    fragmentation: float  # reserved beyond the allocated peak
    # the CUDA context, NCCL and vLLM in the same process, which the trainer does not count
    context: float
    # of the peak: generation, loss, output matrix, last layer, first layer, embedding or step
    moment: str
    moments: Mapping[str, float]  # what is allocated at each moment

    @property
    def allocated(self) -> float:
        """What torch.cuda.max_memory_allocated() would return."""
        state = self.parameters + self.gradients + self.optimizer
        return state + self.activations + self.logits + self.buffers

    @property
    def reserved(self) -> float:
        """What torch.cuda.max_memory_reserved() would return."""
        return self.allocated + self.fragmentation

    @property
    def total(self) -> float:
        """What the card needs to have."""
        return self.reserved + self.context

    @property
    def required(self) -> float:
        """What the card cannot do without: torch gives cached blocks back before it runs out of
        memory.
        """
        return self.allocated + self.context

    def parts(self) -> dict[str, float]:
        """Return the parts by name, in the order of a table; they add up to `total`."""
        names = (
            "parameters",
            "gradients",
            "optimizer",
            "activations",
            "logits",
            "buffers",
            "fragmentation",
            "context",
        )
        return {name: getattr(self, name) for name in names}

    def as_json(self) -> dict[str, Any]:
        return {
            "total_gib": round(self.total, 2),
            "reserved_gib": round(self.reserved, 2),
            "allocated_gib": round(self.allocated, 2),
            "parts_gib": {name: round(size, 2) for name, size in self.parts().items()},
            "moment": self.moment,
        }


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
    parameters, optimizer, moments = (
        _adapter_state(setting) if setting.adapter else _full_state(setting)
    )
    moments = (*moments, *_reference_pass(setting), *_generation(setting, parameters + optimizer))
    peak = max(moments, key=lambda moment: moment.size)
    context = CONTEXT + (COMMUNICATION if setting.ranks > 1 else 0.0) + setting.vllm_gib * GIB
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

    It saves nothing: alive are the hidden states and the MLP of one layer, then the head's tile and
    each token's fp32 sums (trl/trainer/dpo_trainer.py:1240-1275). No gradients and no optimizer
    exist yet, which is left out.
    """
    if not setting.reference_factor:
        return ()
    tokens, shape = setting.tokens * setting.reference_factor, setting.shape
    layer = setting.element * tokens * (3 * shape.intermediate + 2 * shape.hidden)
    mask = (
        tokens**2 / (setting.rows * setting.reference_factor) * setting.element
        if setting.masked
        else 0.0
    )
    return (_Moment("reference pass", 0.0, layer + mask, 0.0, gathered_bytes(setting, math.inf)),)


def _generation(setting: MemorySetting, state: float) -> tuple[_Moment, ...]:
    """Return the moment of generation, on top of `state` bytes; none without it. ZeRO-3 gathers all
    weights for it.
    """
    sampled = setting.generation
    if sampled is None:
        return ()
    if sampled.card_gib is not None:
        sampled = replace(sampled, card_gib=max(0.0, sampled.card_gib - state / GIB))
    live = (
        setting.element * setting.shape.parameters
        if setting.mode in STAGE_3 and setting.ranks > 1
        else 0.0
    )
    return (_Moment(GENERATION, 0.0, generation_bytes(setting, sampled), 0.0, live),)


def _full_state(setting: MemorySetting) -> tuple[float, float, tuple[_Moment, ...]]:
    """Return the bytes of weights and optimizer, and the moments, when all weights are trained."""
    size = setting.shape.parameters
    state = bytes_per_parameter(
        setting.mode, setting.ranks, Precision.fp32 if setting.autocast else setting.precision
    )
    weights = state.weights * size * (2 if setting.reference else 1)
    return weights, state.optimizer * size, _moments(setting, state.gradients * size)


def _adapter_state(setting: MemorySetting) -> tuple[float, float, tuple[_Moment, ...]]:
    """Return the same when an adapter is trained: its gradients and AdamW's moments are in fp32, as
    a bound.

    The gradients of frozen weights don't exist; a 4-bit matrix is unpacked when its layer needs it.
    """
    adapter, shape = setting.adapter, setting.shape
    if adapter is None:
        raise ValueError("no adapter is trained")
    own = 4 * adapter.parameters
    saved, mlp_backward = saved_bytes(setting), mlp_backward_bytes(setting)
    recomputed = layer_bytes(setting) if setting.checkpointing else 0.0
    unpacked = (
        float(setting.element * shape.hidden * shape.intermediate) if adapter.quantized else 0.0
    )
    live, moving = gathered_bytes(setting, math.inf), bucket_bytes(setting)
    moments = (
        _Moment("loss", own, saved, loss_bytes(setting), initial_bucket_bytes(setting) + live),
        _Moment(
            "last layer",
            own,
            layers_bytes(setting) + recomputed + mlp_backward,
            unpacked,
            moving + live,
        ),
        _Moment("step", own),
    )
    return frozen_bytes(setting, adapter) + own, 2 * own, moments


def _moments(setting: MemorySetting, gradients: float) -> tuple[_Moment, ...]:
    """Return the moments that can be the peak.

    Without DeepSpeed and without accumulation no gradients exist when backward starts (zero_grad
    sets them to None), and all of them when it ends: each layer adds its own as backward leaves it.
    With accumulation, and in ZeRO's own buffers, they always exist, and a new one is added to them
    and freed. The gradient of a tied output matrix waits through all of backward for the
    embedding's, and their sum is a third tensor.
    """
    shape, element = setting.shape, setting.weight_element
    fresh = (
        setting.mode in (Mode.single, Mode.ddp, Mode.zero1, Mode.fsdp) and setting.accumulation == 1
    )
    held = 0.0 if fresh else gradients
    second = second_gradient_bytes(setting, gradients)
    saved, mlp_backward = saved_bytes(setting), mlp_backward_bytes(setting)
    head = float(element * shape.embedding)
    down_projection = float(element * shape.hidden * shape.intermediate)
    waiting = held + second + (head if shape.tied else 0.0)
    recomputed = layer_bytes(setting) if setting.checkpointing else 0.0
    kept_input = residual_bytes(setting) if setting.checkpointing else 0.0
    first_layer = layer_bytes(setting) + kept_input + shared_bytes(setting)
    missing = element * (shape.layer + (0 if shape.tied else shape.embedding)) - down_projection
    embedding_extra = head * ((0 if fresh else 1) + (2 if shape.tied else 0))
    live, moving = gathered_bytes(setting, math.inf), bucket_bytes(setting)
    moving_head = moving + scattering_bytes(setting, head)
    moving_down = moving + scattering_bytes(setting, down_projection)
    few = gathered_bytes(setting, 2 * shape.layer)
    return (
        _Moment("loss", held, saved, loss_bytes(setting), initial_bucket_bytes(setting) + live),
        _Moment("output matrix", held, saved, head_bytes(setting), moving_head + live),
        _Moment(
            "last layer",
            head + down_projection if fresh else waiting,
            layers_bytes(setting) + recomputed + mlp_backward,
            0.0,
            moving_down + live,
        ),
        _Moment(
            "first layer",
            gradients - missing if fresh else waiting,
            first_layer + mlp_backward,
            0.0,
            moving_down + few,
        ),
        _Moment(
            "embedding",
            gradients + second,
            residual_bytes(setting),
            0.0,
            moving_head + embedding_extra,
        ),
        _Moment(
            "step", step_gradient_bytes(setting, gradients), 0.0, 0.0, step_temporary_bytes(setting)
        ),
    )


# elements: reduce_bucket_size of accelerate_configs/deepspeed/zero1.json and zero2.json
ZERO_BUCKET = 500_000_000
SUB_GROUP = 1_000_000_000  # elements: sub_group_size of zero3.json
MAX_LIVE_PARAMETERS = 1_000_000_000  # elements: stage3_max_live_parameters of zero3.json


@dataclass(frozen=True)
class BytesPerParameter:
    """Bytes of the training state for each parameter."""

    weights: float  # on each rank's device, as are gradients and optimizer
    gradients: float
    optimizer: float
    host: float = 0.0  # in the memory of the whole machine

    @property
    def rank(self) -> float:
        """Bytes on each rank's device."""
        return self.weights + self.gradients + self.optimizer


def bytes_per_parameter(mode: Mode, ranks: int, precision: Precision) -> BytesPerParameter:
    """Return the bytes for each parameter, by the mode in which the ranks share the model.

    DeepSpeed keeps bf16 weights and gradients (by default its gradients accumulate in the weights'
    type, deepspeed engine.py:1799-1810) and fp32 master weights and moments: 2 + 2 + 12 bytes, of
    which stage 1 shards the 12, stage 2 the gradients too, stage 3 all; offloading moves the 12,
    and gradients and weights, into the host's memory. FSDP in OLMo-core: fp32 weights, gradients
    and moments, sharded. Without either everything has the weights' type: AdamW's moments are
    created like the parameter (torch/optim/adamw.py, zeros_like).
    """
    width = 2 if precision == Precision.bf16 else 4
    by_mode = {
        Mode.zero1: BytesPerParameter(width, width, 12 / ranks),
        Mode.zero2: BytesPerParameter(width, width / ranks, 12 / ranks),
        Mode.zero3: BytesPerParameter(width / ranks, width / ranks, 12 / ranks),
        Mode.zero3_offload: BytesPerParameter(0.0, 0.0, 0.0, 12 + 2 * width),
        Mode.fsdp: BytesPerParameter(4 / ranks, 4 / ranks, 8 / ranks),
    }
    return by_mode.get(mode, BytesPerParameter(width, width, 2 * width))


def frozen_bytes(setting: MemorySetting, adapter: AdapterSetting) -> float:
    """Return the bytes of the weights under an adapter on each rank.

    4-bit weights with double quantisation take half a byte, and one byte for each 64 of them and
    four for each 64 x 256 (bitsandbytes, quantize_4bit with compress_statistics).
    """
    shape = setting.shape
    if adapter.quantized:
        packed = float(shape.layers * shape.layer)
        return packed * (0.5 + 1 / 64 + 4 / (64 * 256)) + adapter.other_bytes * (
            shape.parameters - packed
        )
    return setting.element * shape.parameters / (setting.ranks if setting.mode in STAGE_3 else 1)


def bucket_bytes(setting: MemorySetting) -> float:
    """Return the bytes of communication buffers while gradients are computed.

    DDP: buckets of the size of all gradients (gradient_as_bucket_view is off). ZeRO 1 and 2: two
    buckets, as overlap_comm is on (deepspeed stage_1_and_2.py:3256-3283), allocated when the first
    gradient arrives. ZeRO 3: one of hidden x hidden (accelerate accelerator.py:2323).
    """
    shape, element = setting.shape, setting.element
    if setting.mode == Mode.ddp:
        return (
            4 * setting.adapter.parameters
            if setting.adapter
            else setting.weight_element * shape.parameters
        )
    if setting.mode in (Mode.zero1, Mode.zero2):
        return 2.0 * ZERO_BUCKET * element
    return float(element * shape.hidden**2) if setting.mode in STAGE_3 else 0.0


def initial_bucket_bytes(setting: MemorySetting) -> float:
    """Return the bytes of buffers that exist before the first gradient: stage 2 frees its own after
    each micro batch, stage 1 after the last (stage_1_and_2.py:1061, :924).
    """
    if setting.mode == Mode.zero2 or (setting.mode == Mode.zero1 and setting.accumulation == 1):
        return 0.0
    return bucket_bytes(setting)


def gathered_bytes(setting: MemorySetting, at_most: float) -> float:
    """Return the bytes of the weights that ZeRO-3 has gathered, `at_most` elements of them.

    It prefetches: every module that is entered, containers included, fetches at least one more
    weight, up to stage3_max_live_parameters (deepspeed partitioned_param_coordinator.py:447-474);
    these stay gathered through the turn from forward to backward. A single rank already has its
    weights (partition_parameters.py, NoGatherHandle).
    """
    if setting.mode not in STAGE_3 or (setting.ranks == 1 and setting.mode == Mode.zero3):
        return 0.0
    return setting.element * min(setting.shape.parameters, MAX_LIVE_PARAMETERS, at_most)


def scattering_bytes(setting: MemorySetting, gradient: float) -> float:
    """Return the bytes, on top of a new gradient of `gradient` bytes, while it is sent to its
    owners.

    ZeRO keeps a gradient that is larger than the bucket until the next arrives (deepspeed
    stage_1_and_2.py:1443, stage3.py:1583), and stage 3 copies it to scatter it
    (coalesced_collectives.py, reduce_scatter_coalesced).
    """
    if setting.mode in STAGE_3:
        return 2 * gradient
    if setting.mode in (Mode.zero1, Mode.zero2):
        return gradient if gradient > ZERO_BUCKET * setting.element else 0.0
    return 0.0


def second_gradient_bytes(setting: MemorySetting, gradients: float) -> float:
    """Return the bytes of ZeRO-2's second buffer: each micro batch is reduced into a new buffer of
    the rank's shard, which is then added to the first (deepspeed stage_1_and_2.py:1033-1044,
    :2184-2196).
    """
    return gradients if setting.mode == Mode.zero2 and setting.accumulation > 1 else 0.0


def step_gradient_bytes(setting: MemorySetting, gradients: float) -> float:
    """Return the bytes of gradients at the optimizer's step: by then stage 1 has freed those of
    other ranks (deepspeed stage_1_and_2.py:1005-1012).
    """
    return gradients / setting.ranks if setting.mode == Mode.zero1 else gradients


def step_temporary_bytes(setting: MemorySetting) -> float:
    """Return the bytes that the optimizer's step adds.

    ZeRO makes a flat copy of the rank's gradients and converts it to fp32 (deepspeed
    stage_1_and_2.py:3114-3118, stage3.py:2683-2690), all at once at stages 1 and 2 and one
    sub-group at a time at stage 3. The fused AdamW needs nothing more; the foreach one holds a copy
    of the parameters' size (torch/optim/adamw.py). OLMo-core's in olmo_core_finetune holds three at
    once, of all weights (olmo_core/optim/adamw.py:82-99), in dpo of one (:1-48).
    """
    shape, ranks = setting.shape, setting.ranks
    shard = shape.parameters / ranks
    if setting.mode in (Mode.zero1, Mode.zero2):
        return (setting.element + 4) * shard
    if setting.mode == Mode.zero3:
        return (setting.element + 4) * min(shard, SUB_GROUP)
    if setting.mode == Mode.zero3_offload:
        return setting.element * min(shard, SUB_GROUP)
    if setting.mode == Mode.fsdp:
        return 3 * 4 * shard if setting.kind == Kind.sft else 4 * shape.embedding / ranks
    return 0.0 if setting.fused_optimizer else setting.element * shape.parameters
