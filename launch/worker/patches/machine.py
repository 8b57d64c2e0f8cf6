"""Questions about this machine that several patches ask."""

from __future__ import annotations

from .patch import Context


def has_cuda() -> bool:
    """Whether torch sees a CUDA device."""
    import torch

    return bool(torch.cuda.is_available())


def not_without_cuda(_: Context) -> str | None:
    """The condition of a patch for machines without CUDA."""
    return "CUDA is available" if has_cuda() else None


def not_with_cuda(_: Context) -> str | None:
    """The condition of a patch for machines with CUDA."""
    return None if has_cuda() else "CUDA is not available"


def peak_memory_gib() -> float | None:
    """GiB that torch has reserved on this rank's GPU at its peak; None without CUDA."""
    if not has_cuda():
        return None
    import torch

    return float(torch.cuda.max_memory_reserved()) / 2**30
