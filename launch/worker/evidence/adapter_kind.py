"""Checks the kind of a LoRA adapter: DoRA, rsLoRA, how its matrices start, and what is trained beside
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from . import Evidence
from .tensors import stored

DORA = "lora_dora"
RSLORA = "lora_rslora"
INIT = "lora_init"
MODULES = "lora_modules"
PARAMETERS = "lora_parameters"

# The share by which the Gram matrices of a start may differ: bf16 keeps eight bits of a number.
_TOLERANCE = 0.05


def check_adapter_kind(model: Any, requested: Mapping[str, str], step: int) -> list[Evidence]:
    """Return the evidence on the kind of an adapter, of what is requested.

    `step`: the optimizer steps that were done before this process.
    """
    layers = list(_adapted_layers(model))
    evidence = []
    if DORA in requested:
        how = "LoraLayer.lora_magnitude_vector"
        evidence.append(Evidence(DORA, _find_dora(layers), how))
    if RSLORA in requested:
        how = "LoraLayer.scaling against lora_alpha and r"
        evidence.append(Evidence(RSLORA, _find_rslora(layers), how))
    if MODULES in requested:
        how = "the trained copies of whole modules"
        evidence.append(Evidence(MODULES, _find_modules(model), how))
    if PARAMETERS in requested:
        how = "the parameters that an adapter is put around"
        evidence.append(Evidence(PARAMETERS, _find_parameters(model, requested[PARAMETERS]), how))
    evidence = [item.compare(requested[item.what]) for item in evidence]
    if INIT in requested:
        evidence.append(_check_init(layers, requested[INIT], step))
    return evidence


def is_whole_module(name: str) -> bool:
    """Return whether a parameter is that of a module which is trained as a whole."""
    return ".modules_to_save." in name


def _adapted_layers(model: Any) -> Iterator[Any]:
    """Yield the linear layers that have an adapter."""
    for module in model.modules():
        is_adapted = hasattr(module, "base_layer") and getattr(module, "lora_A", None)
        if is_adapted and not hasattr(module, "parameter_name"):
            yield module


def _find_dora(layers: list[Any]) -> str:
    with_vector = sum(bool(getattr(layer, "lora_magnitude_vector", None)) for layer in layers)
    if with_vector in (0, len(layers)):
        return str(with_vector > 0).lower()
    return f"{with_vector} of {len(layers)} layers"


def _find_rslora(layers: list[Any]) -> str:
    """Return whether the adapters' outputs are multiplied by alpha / sqrt(rank)
    (peft/tuners/lora/layer.py, update_layer).
    """
    rooted = 0
    for layer in layers:
        for name, scaling in layer.scaling.items():
            expected = layer.lora_alpha[name] / math.sqrt(layer.r[name])
            rooted += math.isclose(scaling, expected, rel_tol=1e-6)
    if rooted in (0, len(layers)):
        return str(rooted > 0).lower()
    return f"{rooted} of {len(layers)} layers"


def _find_modules(model: Any) -> str:
    names = set()
    for path, module in model.named_modules():
        copies = getattr(module, "modules_to_save", None)
        if copies is None or not hasattr(module, "original_module"):
            continue
        trained = [p.requires_grad for copy in copies.values() for p in copy.parameters()]
        if trained and all(trained):
            names.add(path.rpartition(".")[2])
    return ",".join(sorted(names)) or "none"


def _find_parameters(model: Any, requested: str) -> str:
    """Return those of the requested names that an adapter is put around. PEFT matches the end of a
    parameter's name.
    """
    adapted: set[str] = set()
    for path, module in model.named_modules():
        if hasattr(module, "parameter_name") and getattr(module, "lora_A", None):
            plain = path.replace(".base_layer", "")
            adapted.add(f".{plain}.{module.parameter_name}")
    names = requested.split(",")
    present = [name for name in names if _ends_a_path(name, adapted)]
    return ",".join(present) or "none"


def _ends_a_path(name: str, paths: set[str]) -> bool:
    return any(path.endswith(f".{name}") for path in paths)


def _check_init(layers: list[Any], requested: str, step: int) -> Evidence:
    """Return the evidence "lora_init" by the first matrices.

    PiSSA's are the roots of singular values times orthogonal vectors, so that both products with
    their own transposes are the same diagonal matrix. OLoRA's B has orthonormal columns
    (peft/tuners/lora/layer.py, pissa_init and olora_init). A run that is resumed shows only that.
    """
    if step:
        resumed = Evidence(INIT, "resumed", f"its checkpoint of step {step}")
        return resumed.judge(requested, True)
    found = {_name_init(layer) for layer in layers}
    value = ",".join(sorted(found)) or "none"
    how = "the products of lora_A and lora_B with their transposes, before the first step"
    return Evidence(INIT, value, how).judge(requested, found == {requested})


def _name_init(layer: Any) -> str:
    import torch

    (name,) = layer.lora_A
    first = stored(layer.lora_A[name].weight).float()
    second = stored(layer.lora_B[name].weight).float()
    if not bool(second.any()):
        return "zero"
    of_first = first @ first.T
    of_second = second.T @ second
    diagonal = torch.diag(of_second.diagonal())
    largest = float(of_second.diagonal().max())
    if _is_close(of_second, diagonal, largest) and _is_close(of_first, diagonal, largest):
        return "pissa"
    size = float(of_second.diagonal().mean())
    identity = torch.eye(of_second.shape[0], device=of_second.device)
    return "olora" if _is_close(of_second, size * identity, size) else "another"


def _is_close(left: Any, right: Any, size: float) -> bool:
    return float((left - right).abs().max()) <= _TOLERANCE * size
