"""Tests of this machine that several patches share."""

from __future__ import annotations

from .patch import PatchContext


def has_cuda() -> bool:
    """Return whether torch sees a CUDA device."""
    import torch

    return bool(torch.cuda.is_available())


def not_needed_with_cuda(_: PatchContext) -> str | None:
    """Return why a patch for machines without CUDA is not needed, or None if it is."""
    return "CUDA is available" if has_cuda() else None


def peak_memory() -> dict[str, float]:
    """Return this rank's peak GPU memory in GiB: used by tensors, reserved by torch's allocator; empty without CUDA.

    The reserved memory is what the GPU must have.
    """
    if not has_cuda():
        return {}
    import torch

    return {
        "memory_gib": float(torch.cuda.max_memory_allocated()) / 2**30,
        "memory_reserved_gib": float(torch.cuda.max_memory_reserved()) / 2**30,
    }
