"""This rank's GPU: whether torch sees one, and how much of its memory was used."""

from __future__ import annotations


def has_cuda() -> bool:
    """Return whether torch sees a CUDA device."""
    import torch

    return bool(torch.cuda.is_available())


def peak_memory() -> dict[str, float]:
    """Return this rank's peak GPU memory in GiB, or nothing without CUDA.

    `memory_gib` is what tensors used, and `memory_reserved_gib` what torch's allocator reserved,
    which the GPU must have.
    """
    if not has_cuda():
        return {}
    import torch

    return {
        "memory_gib": float(torch.cuda.max_memory_allocated()) / 2**30,
        "memory_reserved_gib": float(torch.cuda.max_memory_reserved()) / 2**30,
    }
