"""Reads the tensors that this rank stores: samples of them, and checksums of all their bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

_SAMPLES = 64  # tensors of a list, and elements of each, that are sampled
_CHUNK = 1 << 24  # elements that are read at once


def stored(parameter: Any) -> Any:
    """Return what this rank stores of a parameter; under ZeRO-3 and FSDP this is a part of it."""
    parameter = getattr(parameter, "ds_tensor", parameter).detach()
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def spread(items: list[Any]) -> list[Any]:
    """Return at most 64 of the items, evenly spread."""
    return items[:: -(-len(items) // _SAMPLES) or 1]


def sample_each(tensors: Iterable[Any]) -> list[Any]:
    """Return at most 64 elements of each tensor, evenly spread, as vectors of fp32."""
    flat = [stored(tensor).reshape(-1) for tensor in tensors]
    return [part[:: max(1, part.numel() // _SAMPLES)][:_SAMPLES].float() for part in flat]


def sample_all(tensors: Iterable[Any]) -> Any:
    """Return at most 64 elements of each tensor as one vector of fp32."""
    import torch

    parts = sample_each(tensors)
    return torch.cat([part.to(parts[0].device) for part in parts])


def chunks(tensor: Any) -> Iterator[Any]:
    """Yield the elements of a tensor as vectors, some at a time."""
    flat = tensor.detach().reshape(-1)
    yield from (flat[start : start + _CHUNK] for start in range(0, flat.numel(), _CHUNK))


def checksum(tensor: Any, floor: float) -> Any:
    """Return the sum of the bits of a tensor; elements below `floor` count as zeros."""
    import torch

    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    for chunk in chunks(tensor):
        kept = chunk.masked_fill(chunk.abs() < floor, 0) if chunk.is_floating_point() else chunk
        total += kept.contiguous().view(bits).sum(dtype=torch.int64)
    return total
