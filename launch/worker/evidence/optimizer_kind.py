"""Checks which optimizer trains, by its class and by the states that its first step has made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import Evidence

KIND = "optimizer"
# torch's, OLMo-core's (olmo_core/optim/adamw.py), and what accelerate puts in place of torch's where
# DeepSpeed keeps the states on the host (accelerate/accelerator.py:2300).
_ADAMW = ("AdamW", "SkipStepAdamW", "DeepSpeedCPUAdam", "FusedAdam")
_LIBRARY_8BIT = "bitsandbytes"


def check_optimizer(optimizer: Any, requested: str | None) -> list[Evidence]:
    """Return the evidence "optimizer": its name in `recipe.optimizer`.

    Call it after a step, because most states are made by the first one. `requested` is the name;
    without it there is no evidence.
    """
    if requested is None:
        return []
    kept = _innermost(optimizer)
    states = [state for state in getattr(kept, "state", {}).values() if state]
    how = f"{type(kept).__module__}.{type(kept).__qualname__}, and its states after a step"
    if not states:
        return [Evidence(KIND, None, how).judge(requested, None)]
    name = _name_optimizer(kept, states)
    return [Evidence(KIND, name, how, note=_describe(states)).judge(requested, name == requested)]


def _innermost(optimizer: Any) -> Any:
    """Return torch's optimizer below that of DeepSpeed."""
    inner = getattr(optimizer, "optimizer", None)
    return optimizer if inner is None else _innermost(inner)


def _name_optimizer(optimizer: Any, states: Sequence[Mapping[str, Any]]) -> str:
    name = type(optimizer).__name__
    if type(optimizer).__module__.startswith(_LIBRARY_8BIT):
        return _name_of_bitsandbytes(optimizer, states)
    if name in _ADAMW and any("exp_avg" in state for state in states):
        return "adamw"
    if name == "Adafactor" and any("exp_avg_sq_row" in state for state in states):
        return "adafactor"
    return name.lower()


def _name_of_bitsandbytes(optimizer: Any, states: Sequence[Mapping[str, Any]]) -> str:
    """Return `adamw`, with the prefix `paged_` and the suffix `_8bit` of what it is.

    A state of 8 bits is stored in bytes. Small weights and embeddings have states in fp32 besides; where
    all weights are small, as those of a small adapter, the optimizer's own setting counts.
    """
    import torch

    name = "adamw" if "adamw" in type(optimizer).__name__.lower() else type(optimizer).__name__
    firsts = [state["state1"] for state in states if "state1" in state]
    settings = optimizer.args
    if all(first.numel() < settings.min_8bit_size for first in firsts):
        has_8_bits = settings.optim_bits == 8
    else:
        has_8_bits = any(first.dtype == torch.uint8 for first in firsts)
    suffix = "_8bit" if has_8_bits else ""
    prefix = "paged_" if getattr(optimizer, "is_paged", False) else ""
    return f"{prefix}{name}{suffix}"


def _describe(states: Sequence[Mapping[str, Any]]) -> str:
    """Return the bytes of all states on this rank, and the types that they are stored in."""
    tensors = []
    for state in states:
        # The tables of 8-bit numbers are the same tensors in every state.
        tensors += [v for k, v in state.items() if hasattr(v, "dtype") and "qmap" not in k]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    types = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})
    return f"{size:,} bytes of states on this rank, in {', '.join(types)}"
