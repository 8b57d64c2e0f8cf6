"""The peak memory of a card in training: the largest moment of a step, each moment the sum of what is alive then.

The peak is less than the sum of everything: the logits are freed before the optimizer steps, and the gradients of a
first micro batch do not exist yet while the logits do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch.config.schema import Mode, Precision
from launch.planning.estimate.activations import (
    layer_bytes,
    layers_bytes,
    mlp_backward_bytes,
    residual_bytes,
    saved_bytes,
    shared_bytes,
)
from launch.planning.estimate.allocator import cached_bytes
from launch.planning.estimate.logits import head_bytes, loss_bytes
from launch.planning.estimate.setting import MemorySetting
from launch.planning.estimate.states import (
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

GIB = 1 << 30
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
    context: float  # the CUDA context and NCCL, which torch does not count
    moment: str  # of the peak: loss, output matrix, last layer, first layer, embedding or step
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
        """What the card cannot do without: torch gives cached blocks back before it runs out of memory."""
        return self.allocated + self.context

    def parts(self) -> dict[str, float]:
        """Return the parts by name, in the order of a table; they add up to `total`."""
        names = ("parameters", "gradients", "optimizer", "activations", "logits", "buffers", "fragmentation", "context")
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
    parameters, optimizer, moments = _adapter_state(setting) if setting.adapter else _full_state(setting)
    moments = (*moments, *_reference_pass(setting))
    peak = max(moments, key=lambda moment: moment.size)
    context = CONTEXT + (COMMUNICATION if setting.ranks > 1 else 0.0)
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

    It saves nothing: alive are the hidden states and the MLP of one layer, then the head's tile and each token's fp32
    sums (trl/trainer/dpo_trainer.py:1240-1275). No gradients and no optimizer exist yet, which is left out.
    """
    if not setting.reference_factor:
        return ()
    tokens, shape = setting.tokens * setting.reference_factor, setting.shape
    layer = setting.element * tokens * (3 * shape.intermediate + 2 * shape.hidden)
    mask = tokens**2 / (setting.rows * setting.reference_factor) * setting.element if setting.masked else 0.0
    return (_Moment("reference pass", 0.0, layer + mask, 0.0, gathered_bytes(setting, math.inf)),)


def _full_state(setting: MemorySetting) -> tuple[float, float, tuple[_Moment, ...]]:
    """Return the bytes of weights and optimizer, and the moments, when all weights are trained."""
    size = setting.shape.parameters
    state = bytes_per_parameter(setting.mode, setting.ranks, Precision.fp32 if setting.autocast else setting.precision)
    weights = state.weights * size * (2 if setting.reference else 1)
    return weights, state.optimizer * size, _moments(setting, state.gradients * size)


def _adapter_state(setting: MemorySetting) -> tuple[float, float, tuple[_Moment, ...]]:
    """Return the same when an adapter is trained: its gradients and AdamW's moments are in fp32, as a bound.

    The gradients of frozen weights don't exist; a 4-bit matrix is unpacked when its layer needs it.
    """
    adapter, shape = setting.adapter, setting.shape
    if adapter is None:
        raise ValueError("no adapter is trained")
    own = 4 * adapter.parameters
    saved, mlp_backward = saved_bytes(setting), mlp_backward_bytes(setting)
    recomputed = layer_bytes(setting) if setting.checkpointing else 0.0
    unpacked = float(setting.element * shape.hidden * shape.intermediate) if adapter.quantized else 0.0
    live, moving = gathered_bytes(setting, math.inf), bucket_bytes(setting)
    moments = (
        _Moment("loss", own, saved, loss_bytes(setting), initial_bucket_bytes(setting) + live),
        _Moment("last layer", own, layers_bytes(setting) + recomputed + mlp_backward, unpacked, moving + live),
        _Moment("step", own),
    )
    return frozen_bytes(setting, adapter) + own, 2 * own, moments


def _moments(setting: MemorySetting, gradients: float) -> tuple[_Moment, ...]:
    """Return the moments that can be the peak.

    Without DeepSpeed and without accumulation no gradients exist when backward starts (zero_grad sets them to None),
    and all of them when it ends: each layer adds its own as backward leaves it. With accumulation, and in ZeRO's own
    buffers, they always exist, and a new one is added to them and freed. The gradient of a tied output matrix waits
    through all of backward for the embedding's, and their sum is a third tensor.
    """
    shape, element = setting.shape, setting.weight_element
    fresh = setting.mode in (Mode.single, Mode.ddp, Mode.zero1) and setting.accumulation == 1
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
            "first layer", gradients - missing if fresh else waiting, first_layer + mlp_backward, 0.0, moving_down + few
        ),
        _Moment("embedding", gradients + second, residual_bytes(setting), 0.0, moving_head + embedding_extra),
        _Moment("step", step_gradient_bytes(setting, gradients), 0.0, 0.0, step_temporary_bytes(setting)),
    )
