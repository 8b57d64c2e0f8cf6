"""What an optimizer keeps for each weight that it trains, by the flag that chooses it.

An optimizer that is not listed here is unknown, and so is its memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from launch.config.schema import Family, TrainerConfig
from launch.planning.estimate.shape import ModelShape

_BLOCK = 256  # weights of 8-bit states that share a scale (bitsandbytes/optim/optimizer.py:524)
_SCALES = 2 * 4 / _BLOCK  # bytes of the fp32 scales of two states, for each weight
# TRL's default (transformers/training_args.py, optim).
_TRL_DEFAULT = "adamw_torch_fused"
# With these flags of TRL's an optimizer keeps other states than by default.
_CHANGED_STATES = ("optim_args", "optim_target_modules")


@dataclass(frozen=True)
class OptimizerState:
    """The bytes that an optimizer keeps for each weight.

    The states of `paged` lie in memory that the driver moves between GPU and host
    (bitsandbytes/optim/optimizer.py:374-390): torch does not count them, and they need no room on
    the GPU. Their scales do.
    """

    states: float | None = None  # bytes for a weight; None: two numbers of the weight's own type
    scales: float = 0.0  # bytes of the scales, for a weight
    # Bytes for a weight of an embedding. transformers keeps these in fp32 with an 8-bit optimizer
    # (transformers/trainer.py:1328-1338).
    embedding: float | None = None
    paged: bool = False
    # Adafactor: a number for each row and each column of a matrix (transformers/optimization.py:1232).
    factored: bool = False
    fused: bool = True  # a step needs no temporaries of the weights' size
    package: str | None = None  # the package that has it, besides torch and transformers

    def state_bytes(self, weights: float, embedding: float, element: int) -> float:
        """Return the bytes of all states without their scales, on the GPU or on the host.

        `weights` and `embedding` are numbers of weights, the second one part of the first;
        `element` are the bytes of a weight.
        """
        states = 2 * element if self.states is None else self.states
        of_embedding = states if self.embedding is None else self.embedding
        return states * (weights - embedding) + of_embedding * embedding

    def device_bytes(self, weights: float, embedding: float, element: int) -> float:
        """Return the bytes that need room on the GPU; the arguments are those of `state_bytes`."""
        scaled = self.scales * (weights if self.embedding is None else weights - embedding)
        if self.paged:
            return scaled
        return scaled + self.state_bytes(weights, embedding, element)

    def host_bytes(self, weights: float, embedding: float, element: int) -> float:
        """Return the bytes that the host has to have room for."""
        return self.state_bytes(weights, embedding, element) if self.paged else 0.0


ADAMW = OptimizerState()
_FOREACH = OptimizerState(fused=False)
_BITSANDBYTES = "bitsandbytes"
ADAMW_8BIT = OptimizerState(states=2, scales=_SCALES, embedding=8, package=_BITSANDBYTES)
_PAGED_8BIT = replace(ADAMW_8BIT, paged=True)
_PAGED_32BIT = OptimizerState(states=8, paged=True, package=_BITSANDBYTES)
ADAFACTOR = OptimizerState(states=0, factored=True)

# TRL's flag `optim`, which is transformers' (transformers/training_args.py, OptimizerNames).
_BY_NAME: Mapping[str, OptimizerState] = MappingProxyType(
    {
        "adamw_torch": _FOREACH,
        _TRL_DEFAULT: ADAMW,
        "adamw_8bit": ADAMW_8BIT,
        "adamw_bnb_8bit": ADAMW_8BIT,
        "paged_adamw_8bit": _PAGED_8BIT,
        "paged_adamw_32bit": _PAGED_32BIT,
        "adafactor": ADAFACTOR,
    }
)


def find_optimizer(trainer: TrainerConfig, flags: Mapping[str, Any]) -> OptimizerState | None:
    """Return what the optimizer of a run keeps; None if it is unknown. `flags` are all of the run."""
    if trainer.family == Family.trl:
        if any(flags.get(name) for name in _CHANGED_STATES):
            return None
        return _BY_NAME.get(str(flags.get("optim") or _TRL_DEFAULT))
    if flags.get("optimizer_type", "adamw") != "adamw":
        return None
    # Other weights than an adapter's are trained with it by dpo_tune_cache alone (:419-427). It does
    # not keep embeddings in fp32, as transformers does.
    if flags.get("use_qlora") or flags.get("dpo_use_paged_optimizer"):
        if flags.get("use_8bit_optimizer"):
            return replace(_PAGED_8BIT, embedding=None)
        return _PAGED_32BIT
    return ADAMW if flags.get("fused_optimizer", True) else _FOREACH


def factored_bytes(shape: ModelShape) -> float:
    """Return the bytes of Adafactor's rows and columns of all matrices, in fp32."""
    of_block = sum(map(sum, shape.matrices.values()))
    embeddings = 1 if shape.tied else 2
    return 4.0 * (shape.layers * of_block + embeddings * (shape.vocabulary + shape.hidden))


def factored_step_bytes(shape: ModelShape, element: int) -> float:
    """Return the bytes that a step of Adafactor's adds: four fp32 tensors of the size of the largest
    matrix, which are its gradient, its weights, and the new update beside the old one; fp32 weights
    and gradients are not copied (transformers/optimization.py:1219-1292).
    """
    largest = max(
        shape.embedding, *(inputs * outputs for inputs, outputs in shape.matrices.values())
    )
    return 4.0 * largest * (4 if element == 2 else 2)
