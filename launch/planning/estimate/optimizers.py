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
_SCALE = 4 / _BLOCK  # bytes of the fp32 scales of one 8-bit state, for each weight
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


def _of_32_bits(numbers: int) -> OptimizerState:
    """Return what an optimizer of bitsandbytes keeps, with so many numbers for each weight."""
    return OptimizerState(states=4 * numbers, package=_BITSANDBYTES)


def _of_8_bits(numbers: int) -> OptimizerState:
    return OptimizerState(
        states=numbers,
        scales=numbers * _SCALE,
        embedding=4 * numbers,
        package=_BITSANDBYTES,
    )


def _paged(optimizer: OptimizerState) -> OptimizerState:
    return replace(optimizer, paged=True)


ADAMW_8BIT = _of_8_bits(2)
PAGED_8BIT = _paged(ADAMW_8BIT)
_PAGED_32BIT = _paged(_of_32_bits(2))
_SGD = OptimizerState(states=0)
ADAFACTOR = OptimizerState(states=0, factored=True)

# TRL's flag `optim`, which is transformers' (transformers/training_args.py, OptimizerNames).
_BY_NAME: Mapping[str, OptimizerState] = MappingProxyType(
    {
        "adamw_torch": _FOREACH,
        _TRL_DEFAULT: ADAMW,
        "adamw_8bit": ADAMW_8BIT,
        "adamw_bnb_8bit": ADAMW_8BIT,
        "paged_adamw_8bit": PAGED_8BIT,
        "paged_adamw_32bit": _PAGED_32BIT,
        "adafactor": ADAFACTOR,
        "sgd": _SGD,
        "lion_32bit": _of_32_bits(1),
        "lion_8bit": _of_8_bits(1),
        "paged_lion_32bit": _paged(_of_32_bits(1)),
        "paged_lion_8bit": _paged(_of_8_bits(1)),
        "rmsprop_bnb": _of_32_bits(1),
        "rmsprop_bnb_32bit": _of_32_bits(1),
        "rmsprop_bnb_8bit": _of_8_bits(1),
        # AdEMAMix keeps a second mean of the gradients.
        "ademamix": _of_32_bits(3),
        "ademamix_8bit": _of_8_bits(3),
        "paged_ademamix_32bit": _paged(_of_32_bits(3)),
        "paged_ademamix_8bit": _paged(_of_8_bits(3)),
    }
)

# Values of recipe.optimizer that keep less than AdamW, in the order in which a plan tries them.
SMALLER: Mapping[str, OptimizerState] = MappingProxyType(
    {"adamw_8bit": ADAMW_8BIT, "paged_adamw_8bit": PAGED_8BIT}
)


def find_optimizer(trainer: TrainerConfig, flags: Mapping[str, Any]) -> OptimizerState | None:
    """Return what the optimizer of a run keeps; None if it is unknown. `flags` are all of the run."""
    if trainer.family == Family.trl:
        return _find_of_trl(flags)
    if flags.get("optimizer_type", "adamw") != "adamw":
        return None
    # Other weights than an adapter's are trained with it by dpo_tune_cache alone (:419-427). It does
    # not keep embeddings in fp32, as transformers does.
    if flags.get("use_qlora") or flags.get("dpo_use_paged_optimizer"):
        if flags.get("use_8bit_optimizer"):
            return replace(PAGED_8BIT, embedding=None)
        return _PAGED_32BIT
    return ADAMW if flags.get("fused_optimizer", True) else _FOREACH


def _find_of_trl(flags: Mapping[str, Any]) -> OptimizerState | None:
    if any(flags.get(name) for name in _CHANGED_STATES):
        return None
    found = _BY_NAME.get(str(flags.get("optim") or _TRL_DEFAULT))
    # torch's SGD adds the decay to a copy of the gradients.
    has_copy = found == _SGD and flags.get("weight_decay")
    return replace(_SGD, fused=False) if has_copy else found


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
