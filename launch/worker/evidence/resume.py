"""Checks whether a run starts from scratch or resumes from a checkpoint."""

from __future__ import annotations

from ..finding import Evidence, unproven
from .trainer_objects import TrainerObjects


def collect(objects: TrainerObjects, requested: str | None) -> list[Evidence]:
    """Return the finding "resumed_step": optimizer steps done before this process, 0 for a new run."""
    if objects.step is None:
        return unproven("resumed_step", requested, "the training loop was not found")
    how = f"the training loop; loaded {objects.checkpoint}" if objects.checkpoint else "the training loop"
    finding = Evidence("resumed_step", objects.step, how)
    loaded = objects.step == 0 or objects.checkpoint is not None
    return [finding.judge(requested, str(objects.step) == requested and loaded)]
