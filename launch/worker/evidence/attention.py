"""Checks which attention runs, and tests whether documents that share a row can attend to each other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ..finding import Evidence, unproven
from .batches import BINS, FLATTEN, ForwardInputs
from .trainer_objects import TrainerObjects

_DOCUMENT = 8  # tokens of each of the two test documents
_FLASH = "flash"
_TRANSFORMERS_NAMES = {"flash_2": "flash_attention_2", "flash_3": "flash_attention_3", "torch": "sdpa"}
_COST = "without flash attention a row of T tokens costs T x T, masked or not"


def collect(
    objects: TrainerObjects, first: ForwardInputs | None, packing: str | None, requested: str | None
) -> list[Evidence]:
    """Return the finding "attention" and, for packed documents ("flatten", "bins"), the finding "isolation"."""
    if objects.model is None:
        return unproven("attention", requested, "no model was prepared")
    kinds = sorted(_find_implementations(objects.model))
    how = "the configuration that the attention layers read"
    wanted = _TRANSFORMERS_NAMES.get(str(requested), requested)
    finding = Evidence("attention", ",".join(kinds) or None, how)
    finding = finding.judge(requested, kinds == [wanted] if kinds else None)
    packed = packing in (FLATTEN, BINS)
    return [finding, _test_isolation(objects, first, kinds)] if packed else [finding]


def _find_implementations(model: Any) -> set[str]:
    """Return the implementations of the attention layers, or the model's own if no layer has a configuration."""
    layers = [module for module in model.modules() if type(module).__name__.endswith("Attention")]
    configs = [layer.config for layer in layers if hasattr(layer, "config")] or [model.config]
    return {str(kind) for config in configs if (kind := getattr(config, "_attn_implementation", None))}


def _test_isolation(objects: TrainerObjects, first: ForwardInputs | None, kinds: list[str]) -> Evidence:
    how = "two documents through a one-layer copy of the model: the first one changed, the second one compared"
    note = _COST if not any(_FLASH in kind for kind in kinds) else None
    if first is None:
        return unproven("isolation", "true", "the inputs of the first micro batch were not seen")[0]
    names = first.names
    return check_isolation(lambda: leaks(objects.model, names, objects.accelerator), how, note)


def check_isolation(leaks: Callable[[], bool], how: str, note: str | None = None) -> Evidence:
    """Return the finding "isolation": whether documents that share a row are apart, by a test that may fail itself."""
    try:
        has_leak = leaks()
    except Exception as error:  # any model or kernel may refuse to be built or called like this
        why = f"the test did not run ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
        return Evidence("isolation", None, how, note=why).compare("true")
    value = "attention leaks across documents" if has_leak else "no attention across documents"
    return Evidence("isolation", value, how, note=note).judge("true", not has_leak)


def leaks(model: Any, names: frozenset[str], accelerator: Any = None) -> bool:
    """Test whether a document changes the output for the next document in its row.

    Uses a new one-layer backbone of `model`'s class with its attention, called with the arguments `names` that the
    trainer passes. The real model's parameters may be partitioned over ranks and are not touched; the random number
    generators keep their state. Device and dtype are those of `accelerator`, else those of the parameters (offloaded
    parameters are on another device, and under autocast of another dtype).
    """
    import torch

    backbone = getattr(model, model.base_model_prefix, model)
    parameter = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
    device = getattr(accelerator, "device", parameter.device)
    dtype = torch.bfloat16 if getattr(accelerator, "mixed_precision", "no") == "bf16" else parameter.dtype
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(0)
        small = type(backbone)(_shrink_config(backbone.config)).to(device, dtype).eval()
        for weight in small.parameters():
            # large enough for a leak to exceed rounding errors
            weight.normal_(0.0, 0.5) if weight.dim() > 1 else weight.fill_(1.0)
        ids = torch.arange(2 * _DOCUMENT, device=device)[None] % 16 + 1
        changed = ids.clone()
        changed[:, :_DOCUMENT] = 33 - ids[:, :_DOCUMENT]
        original, other = (
            small(**_build_arguments(row, names)).last_hidden_state[:, _DOCUMENT:] for row in (ids, changed)
        )
    scale = float(original.float().abs().max())
    return bool((original.float() - other.float()).abs().max() > 1e-5 * scale)


def _build_arguments(ids: Any, names: frozenset[str]) -> dict[str, Any]:
    """Build the arguments for two documents of equal length in one row, using those of `names` that mark documents."""
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
    return {"input_ids": ids, "use_cache": False, **{name: available[name] for name in names if name in available}}


def _shrink_config(config: Any) -> Any:
    """Reduce `config` to one layer, two heads and 64 tokens; the head size stays, because kernels depend on it."""
    small = copy.deepcopy(config)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    grouped = config.num_attention_heads > (getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
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
        small.layer_types = list(small.layer_types)[-1:]  # of mixed layers the last one has full attention
    return small
