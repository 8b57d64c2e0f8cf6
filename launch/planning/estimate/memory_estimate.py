"""A prediction of a GPU's memory, its parts, and whether a GPU has room for it.

The module memory makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GIB = 1 << 30
GENERATION = "generation"  # the names of moments
EVALUATION = "evaluation"
# The relative error of a prediction. docs/explanation/memory.md has the measured errors.
UNCERTAINTY = 0.15


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory on each GPU at the peak of a step, in GiB."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    buffers: float
    fragmentation: float  # reserved beyond the allocated peak
    # The CUDA context, NCCL and vLLM in the same process, which the trainer does not count.
    context: float
    # The moment of the peak: generation, evaluation, loss, output matrix, last layer, first layer,
    # embedding or step.
    moment: str
    moments: Mapping[str, float]  # GiB that are allocated at each moment

    @property
    def allocated(self) -> float:
        """The value that torch.cuda.max_memory_allocated() would return, in GiB."""
        state = self.parameters + self.gradients + self.optimizer
        return state + self.activations + self.logits + self.buffers

    @property
    def reserved(self) -> float:
        """The value that torch.cuda.max_memory_reserved() would return, in GiB."""
        return self.allocated + self.fragmentation

    @property
    def total(self) -> float:
        """The memory that the GPU needs to have."""
        return self.reserved + self.context

    @property
    def required(self) -> float:
        """The memory without which the GPU runs out: torch frees cached blocks before it does."""
        return self.allocated + self.context

    def surely_fits(self, gib: float) -> bool:
        """Return whether it fits a GPU of `gib` even if it is too low by the uncertainty."""
        return self.total <= largest_fitting(gib)

    def surely_exceeds(self, gib: float) -> bool:
        """Return whether a GPU of `gib` runs out even if it is too high by the uncertainty."""
        return self.required * (1 - UNCERTAINTY) > gib

    def parts(self) -> dict[str, float]:
        """Return the parts by name, in the order of a table; they add up to `total`."""
        names = (
            "parameters",
            "gradients",
            "optimizer",
            "activations",
            "logits",
            "buffers",
            "fragmentation",
            "context",
        )
        return {name: getattr(self, name) for name in names}

    def json_fields(self) -> dict[str, Any]:
        return {
            "total_gib": round(self.total, 2),
            "reserved_gib": round(self.reserved, 2),
            "allocated_gib": round(self.allocated, 2),
            "parts_gib": {name: round(size, 2) for name, size in self.parts().items()},
            "moment": self.moment,
        }


def largest_fitting(gib: float) -> float:
    """Return the largest prediction that fits a GPU of `gib` even if it is too low by the
    uncertainty.
    """
    return gib / (1 + UNCERTAINTY)
