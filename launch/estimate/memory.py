"""The peak memory of a card in training: the largest of the moments of a step, each the sum of its parts.

It is no sum of everything: the logits are gone when the optimizer steps, and the gradients of a first micro batch are
not there yet when the logits are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch.config.schema import Device, Mode
from launch.estimate.activations import backward_bytes, saved_bytes
from launch.estimate.logits import loss_bytes
from launch.estimate.setting import MemorySetting
from launch.estimate.states import buffers, largest_matrix, reduced_gradient, state_of, step_temporaries

GIB = 1 << 30
SCHEMA_VERSION = 1
# Shares and sizes that no source tells; docs/memory.md has the measurements behind them.
FRAGMENTATION = 0.05  # reserved above allocated, of what is allocated beyond the lasting state
CONTEXT = 0.6 * GIB  # of the CUDA context with its kernels: not torch's, and on the card
COMMUNICATION = 1.2 * GIB  # of NCCL's own buffers, with several ranks


@dataclass(frozen=True)
class MemoryEstimate:
    """GiB on each card at the peak. `moment`: when that is (`loss`, `last layer`, `first layer`, `step`); `moments`:
    what is allocated at each. `context`: the CUDA context and NCCL, which torch does not count."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    buffers: float
    fragmentation: float
    context: float
    moment: str
    moments: Mapping[str, float]

    @property
    def allocated(self) -> float:
        """What torch.cuda.max_memory_allocated() would say."""
        state = self.parameters + self.gradients + self.optimizer
        return state + self.activations + self.logits + self.buffers

    @property
    def reserved(self) -> float:
        """What torch.cuda.max_memory_reserved() would say."""
        return self.allocated + self.fragmentation

    @property
    def total(self) -> float:
        """What the card must have."""
        return self.reserved + self.context

    def parts(self) -> dict[str, float]:
        """The parts by name, in the order of a table; they add up to `total`."""
        names = ("parameters", "gradients", "optimizer", "activations", "logits", "buffers", "fragmentation", "context")
        return {name: getattr(self, name) for name in names}

    def as_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "total_gib": round(self.total, 2),
            "reserved_gib": round(self.reserved, 2),
            "allocated_gib": round(self.allocated, 2),
            "parts_gib": {name: round(size, 2) for name, size in self.parts().items()},
            "moment": self.moment,
        }


@dataclass(frozen=True)
class _Moment:
    """Bytes alive at one moment of a step."""

    name: str
    gradients: float
    activations: float = 0.0
    logits: float = 0.0
    buffers: float = 0.0


def estimate_memory(setting: MemorySetting) -> MemoryEstimate:
    """The peak of a GPU in training at `setting`, in GiB. Pure."""
    shape = setting.shape
    state = state_of(setting.mode, setting.ranks, setting.precision)
    parameters, optimizer = state.weights * shape.parameters, state.optimizer * shape.parameters
    moments = _moments(setting, state.gradients * shape.parameters)
    peak = max(moments, key=_size)
    loose = peak.activations + peak.logits + peak.buffers
    context = CONTEXT + (COMMUNICATION if setting.ranks > 1 else 0.0)
    return MemoryEstimate(
        parameters=parameters / GIB,
        gradients=peak.gradients / GIB,
        optimizer=optimizer / GIB,
        activations=peak.activations / GIB,
        logits=peak.logits / GIB,
        buffers=peak.buffers / GIB,
        fragmentation=FRAGMENTATION * loose / GIB,
        context=context / GIB,
        moment=peak.name,
        moments={moment.name: (parameters + optimizer + _size(moment)) / GIB for moment in moments},
    )


def _size(moment: _Moment) -> float:
    return moment.gradients + moment.activations + moment.logits + moment.buffers


def _moments(setting: MemorySetting, gradients: float) -> tuple[_Moment, ...]:
    """The moments that can be the peak.

    Without DeepSpeed and without accumulation there are no gradients when backward starts (zero_grad sets them to
    None), and all of them when it ends; with accumulation, and in ZeRO's own buffers, they are always there.
    """
    shape, element = setting.shape, setting.element
    plain = setting.mode in (Mode.single, Mode.ddp)
    held = gradients if setting.accumulation > 1 or not plain else 0.0
    saved, moving = saved_bytes(setting), buffers(setting)
    head = reduced_gradient(setting)
    one_layer = backward_bytes(setting)
    late = held + head if plain or setting.mode == Mode.zero1 else held
    scattered = 0.0 if plain else head
    matrix = element * largest_matrix(shape)
    return (
        _Moment("loss", held, saved, loss_bytes(setting), moving),
        _Moment("last layer", max(late, held) + matrix, saved + one_layer, 0.0, moving + scattered),
        _Moment("first layer", gradients + matrix, saved / shape.layers + one_layer, 0.0, moving + head),
        _Moment("step", gradients, 0.0, 0.0, step_temporaries(setting)),
    )


def is_estimated(device: Device) -> bool:
    """Only cards are: a CPU's memory is the machine's, and its kernels save other tensors."""
    return device == Device.cuda
