"""Checks the kernels: whether attention keeps the documents of a row apart, and Liger's modules."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..wording import describe_error
from . import Evidence
from .batches import BINS, FLATTEN, ForwardInputs
from .trainer_objects import TrainerObjects

_DOCUMENT = 8  # tokens of each of the two test documents
_FLASH = "flash"
_TRANSFORMERS_NAMES = {
    "flash_2": "flash_attention_2",
    "flash_3": "flash_attention_3",
    "torch": "sdpa",
}
_COST = "without flash attention a row of T tokens costs T x T, masked or not"


def check_attention(
    objects: TrainerObjects, first: ForwardInputs | None, packing: str | None, requested: str | None
) -> list[Evidence]:
    """Return the evidence "attention" and, for packed documents, the evidence "isolation"."""
    kinds = sorted(_find_implementations(objects.model))
    how = "config._attn_implementation, which the attention layers read"
    wanted = _TRANSFORMERS_NAMES.get(str(requested), requested)
    attention = Evidence("attention", ",".join(kinds) or None, how)
    attention = attention.judge(requested, kinds == [wanted] if kinds else None)
    if packing not in (FLATTEN, BINS):
        return [attention]
    return [attention, _test_isolation(objects, first, kinds)]


def _find_implementations(model: Any) -> set[str]:
    """Return the implementations that the attention layers have in their configurations.

    If no layer has a configuration, that of the model counts.
    """
    layers = [module for module in model.modules() if type(module).__name__.endswith("Attention")]
    configs = [layer.config for layer in layers if hasattr(layer, "config")]
    kinds = set()
    for config in configs or [model.config]:
        kind = getattr(config, "_attn_implementation", None)
        if kind:
            kinds.add(str(kind))
    return kinds


def _test_isolation(
    objects: TrainerObjects, first: ForwardInputs | None, kinds: list[str]
) -> Evidence:
    how = (
        "two documents through a one-layer copy of the model: the first one changed, the second "
        "one compared"
    )
    if first is None:
        unseen = "the inputs of the first micro batch were not seen"
        return Evidence("isolation", None, unseen).compare("true")
    names = first.names
    uses_flash = any(_FLASH in kind for kind in kinds)
    note = None if uses_flash else _COST
    return check_isolation(lambda: leaks(objects.model, names, objects.accelerator), how, note)


def check_isolation(leaks: Callable[[], bool], how: str, note: str | None = None) -> Evidence:
    """Return the evidence "isolation": whether attention keeps the documents of a row apart.

    `leaks` tests it; a test that fails itself proves nothing.
    """
    try:
        has_leak = leaks()
    except Exception as error:  # a model or kernel may refuse to be built or called in this test
        why = f"the test did not run ({describe_error(error)})"
        return Evidence("isolation", None, how, note=why).compare("true")
    value = "attention leaks across documents" if has_leak else "no attention across documents"
    return Evidence("isolation", value, how, note=note).judge("true", not has_leak)


def leaks(model: Any, names: frozenset[str], accelerator: Any = None) -> bool:
    """Test whether a document changes the output for the next document in its row.

    Uses a new one-layer backbone of `model`'s class with its attention, called with the arguments
    `names` that the trainer passes. The real model's parameters may be partitioned over ranks and
    are not touched; the random number generators keep their state. Device and dtype are those of
    `accelerator`, else those of the parameters (offloaded parameters are on another device, and
    under autocast of another dtype).
    """
    import torch

    backbone = getattr(model, model.base_model_prefix, model)
    parameter = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
    device = getattr(accelerator, "device", parameter.device)
    uses_bf16 = getattr(accelerator, "mixed_precision", "no") == "bf16"
    dtype = torch.bfloat16 if uses_bf16 else parameter.dtype
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(0)
        small = type(backbone)(_shrink_config(backbone.config)).to(device, dtype).eval()
        for weight in small.parameters():
            # The weights must be large enough for a leak to exceed rounding errors.
            weight.normal_(0.0, 0.5) if weight.dim() > 1 else weight.fill_(1.0)
        ids = torch.arange(2 * _DOCUMENT, device=device)[None] % 16 + 1
        changed = ids.clone()
        changed[:, :_DOCUMENT] = 33 - ids[:, :_DOCUMENT]
        original = _second_document(small, ids, names)
        other = _second_document(small, changed, names)
    scale = float(original.float().abs().max())
    return bool((original.float() - other.float()).abs().max() > 1e-5 * scale)


def _second_document(backbone: Any, ids: Any, names: frozenset[str]) -> Any:
    """Return the last hidden states of the second document: (1, tokens, hidden size)."""
    output = backbone(**_build_arguments(ids, names))
    return output.last_hidden_state[:, _DOCUMENT:]


def _build_arguments(ids: Any, names: frozenset[str]) -> dict[str, Any]:
    """Build the arguments for two documents of equal length in one row.

    Of those that mark documents, the arguments in `names` are used.
    """
    import torch

    device = ids.device
    ends = torch.tensor([0, _DOCUMENT, 2 * _DOCUMENT], dtype=torch.int32, device=device)
    positions = torch.arange(2 * _DOCUMENT, device=device)[None] % _DOCUMENT
    available = {
        "attention_mask": torch.ones_like(ids),
        "position_ids": positions,
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": _DOCUMENT,
        "max_length_k": _DOCUMENT,
        "seq_idx": (torch.arange(2 * _DOCUMENT, device=device)[None] // _DOCUMENT).to(torch.int32),
    }
    marks = {name: available[name] for name in names if name in available}
    return {"input_ids": ids, "use_cache": False, **marks}


def _shrink_config(config: Any) -> Any:
    """Return `config` with one layer, two heads and 64 tokens.

    The size of a head stays, because kernels depend on it.
    """
    small = copy.deepcopy(config)
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    grouped = heads > key_value_heads
    wanted = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1 if grouped else 2,
        "hidden_size": 2 * head,
        "intermediate_size": 4 * head,
        "vocab_size": 64,
        "pad_token_id": 0,
    }
    for name, value in wanted.items():
        if hasattr(small, name):
            setattr(small, name, value)
    if getattr(small, "layer_types", None):
        # Where the layers differ, the last one has full attention.
        small.layer_types = list(small.layer_types)[-1:]
    return small


_LAYERS = ("rms_norm", "rope", "swiglu")
LOSSES = ("cross_entropy", "fused_linear_cross_entropy", "dpo_loss")
KERNELS = (*_LAYERS, *LOSSES)
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

        Liger skips OLMo-2's q_norm and k_norm in an existing model (monkey_patch.py,
        apply_liger_kernel_to_olmo2).
        """
        return kernel if self.liger == self.total else f"{kernel} ({self})"


def check_liger(objects: TrainerObjects, requested: str | None) -> list[Evidence]:
    """Return the evidence "liger" of all `requested` kernels (names with commas), and evidence of
    each kernel.

    A kernel that Liger does not have for this model type does not affect the verdict. A kernel
    counts as engaged if at least one place uses it; the value gives the count.
    """
    model = objects.model
    how = "the functions that the model's modules call"
    counts = _count_kernels(model, objects.trainer)
    engaged = [counts[name].of(name) for name in KERNELS if counts[name].liger]
    summary = Evidence("liger", ",".join(engaged) or "none", how)
    kernels = [Evidence(f"liger.{name}", str(counts[name]), how) for name in KERNELS]
    if requested is None:
        return [summary, *(kernels if engaged else [])]
    offered = _find_offered(str(getattr(model.config, "model_type", "")))
    wanted = [name for name in requested.split(",") if name in offered]
    missing_kernels = [name for name in wanted if counts[name].total and not counts[name].liger]
    without_place = [name for name in wanted if not counts[name].total]
    holds: bool | None
    if not wanted:
        holds = False
        model_type = getattr(model.config, "model_type", "?")
        note = f"Liger has no kernels for models of type {model_type}"
    elif missing_kernels:
        holds = False
        note = "; ".join(f"{name} is in {counts[name]} places" for name in missing_kernels)
    elif without_place:
        holds = None
        note = f"no place for {' and '.join(without_place)} was found in {type(model).__name__}"
    else:
        holds = True
        note = _describe_unchanged(requested, offered)
    return [replace(summary, note=note).judge(",".join(wanted) or requested, holds), *kernels]


def _describe_unchanged(requested: str, offered: set[str]) -> str:
    losses = {"cross_entropy", "fused_linear_cross_entropy"}
    if losses & set(requested.split(",")):
        return ""
    unavailable = [name for name in requested.split(",") if name not in offered]
    layers = "RMSNorm, RoPE and SwiGLU only: the loss and the logits stay the trainer's own"
    if not unavailable:
        return layers
    return f"{layers}; Liger has no {' and '.join(unavailable)} for this type of model"


def is_ligers(function: Any) -> bool:
    """Return whether `function`, without its wrappers, is defined in `liger_kernel`."""
    return str(getattr(_unwrap(function), "__module__", "")).partition(".")[0] == "liger_kernel"


def _unwrap(function: Any) -> Any:
    try:
        return inspect.unwrap(getattr(function, "__func__", function))
    except ValueError:  # a cycle of wrappers
        return function


def _forward(module: Any) -> Any:
    """Return the forward that a module runs.

    For mixed precision accelerate wraps it, and keeps it as `_original_forward`.
    """
    for name in ("_original_forward", "forward"):
        if name in vars(module):
            return vars(module)[name]
    return type(module).forward


def _count_kernels(model: Any, trainer: Any) -> dict[str, KernelCount]:
    norms: list[Any] = []
    gates: list[Any] = []
    rotations: list[Any] = []
    for module in model.modules():
        name = type(module).__name__
        children = set(module._modules)
        if "RMSNorm" in name:
            norms.append(_forward(module))
        elif any(gated <= children for gated in _GATED):
            gates.append(_forward(module))
        elif name.endswith("Attention"):
            rotation = _rotation(module)
            if rotation is not None:
                rotations.append(rotation)
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
    """Return the rotary function that an attention layer's forward calls.

    It is a global of the forward's Python module.
    """
    function = _unwrap(_forward(attention))
    return getattr(function, "__globals__", {}).get("apply_rotary_pos_emb")


def _cross_entropy(model: Any) -> Callable[..., Any] | None:
    """Return the model's own loss function.

    Liger replaces it in torch.nn.functional, or in the Python module of the model.
    """
    import torch

    own = getattr(sys.modules.get(type(model).__module__), "CrossEntropyLoss", None)
    return own if is_ligers(own) else torch.nn.functional.cross_entropy


def _has_liger_attribute(trainer: Any) -> bool:
    """Return whether a Trainer holds one of Liger's loss objects, as TRL does for its DPO loss."""
    if trainer is None:
        return False
    return any(is_ligers(type(value)) for value in vars(trainer).values())


def _find_offered(model_type: str) -> set[str]:
    """Return the kernels that the installed Liger has for a model type.

    That of a gated MLP is always named "swiglu".
    """
    try:
        from liger_kernel.transformers import monkey_patch
    except ImportError:
        # Liger is not installed, so that every requested kernel is missing.
        return set(_LAYERS) | {"fused_linear_cross_entropy"}
    apply = monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN.get(model_type)
    if apply is None:
        return set()
    parameters = inspect.signature(apply).parameters
    offered = {name for name in KERNELS if name in parameters}
    for name in _LAYERS:
        # Some types list a kernel but do not support it: its default is False (qwen3_next's rope).
        if name in offered and parameters[name].default is False:
            offered.remove(name)
    if "geglu" in parameters:
        offered.add("swiglu")
    return offered
