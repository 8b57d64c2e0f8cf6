"""Checks which of Liger's kernels a model uses, by the functions that its modules actually call.

Liger replaces classes before a model is built (open_instruct/finetune.py:572) or methods of an existing model
(transformers/trainer.py:1494); a kernel counts as engaged if the function that runs is defined in `liger_kernel`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..finding import Evidence, unproven
from .trainer_objects import TrainerObjects

LAYERS = ("rms_norm", "rope", "swiglu")
LOSSES = ("cross_entropy", "fused_linear_cross_entropy", "dpo_loss")
KERNELS = (*LAYERS, *LOSSES)
_GATED = ({"gate_proj", "up_proj", "down_proj"}, {"gate_up_proj", "down_proj"})


@dataclass(frozen=True)
class KernelCount:
    """How many places in a model use a kernel."""

    liger: int  # places that use it
    total: int  # places that could

    def __str__(self) -> str:
        return f"{self.liger} of {self.total}"

    def of(self, kernel: str) -> str:
        """Return the kernel's name, with the count if not all places use it.

        Liger skips OLMo-2's q_norm and k_norm in an existing model (monkey_patch.py, apply_liger_kernel_to_olmo2).
        """
        return kernel if self.liger == self.total else f"{kernel} ({self})"


def collect(objects: TrainerObjects, requested: str | None) -> list[Evidence]:
    """Return the finding "liger" on all `requested` kernels (names with commas), and one finding per kernel.

    A kernel that Liger does not have for this model type does not affect the verdict. A kernel counts as engaged if at
    least one place uses it; the value gives the count.
    """
    model = objects.model
    how = "the functions that the model's modules call"
    if model is None:
        return unproven("liger", requested, "no model was prepared")
    counts = _count_kernels(model, objects.trainer)
    engaged = [counts[name].of(name) for name in KERNELS if counts[name].liger]
    summary = Evidence("liger", ",".join(engaged) or "none", how)
    if requested is None:
        return [summary] if not engaged else [summary, *_kernel_findings(counts, how)]
    offered = _find_offered(str(getattr(model.config, "model_type", "")))
    wanted = [name for name in requested.split(",") if name in offered]
    if not wanted:
        nothing = f"Liger has no kernels for models of type {getattr(model.config, 'model_type', '?')}"
        return [Evidence("liger", "none", how, note=nothing).judge(requested, False)]
    missing_kernels = [name for name in wanted if counts[name].total and not counts[name].liger]
    without_place = [name for name in wanted if not counts[name].total]
    note: str | None = None
    if missing_kernels:
        note = "; ".join(f"{name} is in {counts[name]} places" for name in missing_kernels)
    elif without_place:
        note = f"no place for {' and '.join(without_place)} was found in {type(model).__name__}"
    else:
        note = _describe_unchanged(requested, offered)
    summary = Evidence("liger", ",".join(engaged) or "none", how, note=note)
    holds = False if missing_kernels else None if without_place else True
    return [summary.judge(",".join(wanted), holds), *_kernel_findings(counts, how)]


def _kernel_findings(counts: dict[str, KernelCount], how: str) -> list[Evidence]:
    return [Evidence(f"liger.{name}", str(counts[name]), how) for name in KERNELS]


def _describe_unchanged(requested: str, offered: set[str]) -> str | None:
    losses = {"cross_entropy", "fused_linear_cross_entropy"}
    if losses & set(requested.split(",")):
        return None
    unavailable = [name for name in requested.split(",") if name not in offered]
    layers = "RMSNorm, RoPE and SwiGLU only: the loss and the logits stay the trainer's own"
    return f"{layers}; Liger has no {' and '.join(unavailable)} for this type of model" if unavailable else layers


def is_ligers(function: Any) -> bool:
    """Return whether `function`, without its wrappers, is defined in `liger_kernel`."""
    return str(getattr(_unwrap(function), "__module__", "")).partition(".")[0] == "liger_kernel"


def _unwrap(function: Any) -> Any:
    try:
        return inspect.unwrap(getattr(function, "__func__", function))
    except ValueError:  # a cycle of wrappers
        return function


def _forward(module: Any) -> Any:
    """Return the forward that runs; accelerate keeps the one it wraps for mixed precision as `_original_forward`."""
    return module.__dict__.get("_original_forward") or module.__dict__.get("forward") or type(module).forward


def _count_kernels(model: Any, trainer: Any) -> dict[str, KernelCount]:
    norms, gates, rotations = [], [], []
    for module in model.modules():
        name = type(module).__name__
        children = set(module._modules)
        if "RMSNorm" in name:
            norms.append(_forward(module))
        elif any(gated <= children for gated in _GATED):
            gates.append(_forward(module))
        elif name.endswith("Attention") and (rotate := _rotation(module)) is not None:
            rotations.append(rotate)
    return {
        "rms_norm": _count_liger(norms),
        "swiglu": _count_liger(gates),
        "rope": _count_liger(rotations),
        "cross_entropy": _count_liger([_cross_entropy(model)]),
        "fused_linear_cross_entropy": _count_liger([_forward(model)]),
        "dpo_loss": KernelCount(int(_has_liger_attribute(trainer)), 1),
    }


def _count_liger(functions: Iterable[Any]) -> KernelCount:
    verdicts = [is_ligers(function) for function in functions]
    return KernelCount(sum(verdicts), len(verdicts))


def _rotation(attention: Any) -> Any:
    """Return the rotary function that an attention layer's forward calls, a global of its module."""
    function = _unwrap(_forward(attention))
    return getattr(function, "__globals__", {}).get("apply_rotary_pos_emb")


def _cross_entropy(model: Any) -> Callable[..., Any] | None:
    """Return the model's own loss function, which Liger replaces in torch.nn.functional or the model's module."""
    import torch

    own = getattr(sys.modules.get(type(model).__module__), "CrossEntropyLoss", None)
    return own if is_ligers(own) else torch.nn.functional.cross_entropy


def _has_liger_attribute(trainer: Any) -> bool:
    """Return whether a Trainer holds one of Liger's loss objects, as TRL does for its DPO loss."""
    return any(is_ligers(type(value)) for value in vars(trainer).values()) if trainer is not None else False


def _find_offered(model_type: str) -> set[str]:
    """Return the kernels of the installed Liger for a model type; that of a gated MLP is always named "swiglu"."""
    try:
        from liger_kernel.transformers import monkey_patch
    except ImportError:
        return set(LAYERS) | {"fused_linear_cross_entropy"}  # not installed: every requested kernel is missing
    apply = monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN.get(model_type)
    if apply is None:
        return set()
    parameters = inspect.signature(apply).parameters
    offered = {name for name in KERNELS if name in parameters}
    # some types list a kernel but do not support it: its default is False (qwen3_next's rope)
    offered -= {name for name in LAYERS if name in parameters and parameters[name].default is False}
    return offered | ({"swiglu"} if "geglu" in parameters else set())
