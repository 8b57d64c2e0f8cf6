"""Whether a run began anew or goes on from a checkpoint."""

from __future__ import annotations

from .finding import Finding
from .subject import Subject


def look(subject: Subject, requested: str | None) -> list[Finding]:
    """The finding "resumed_step": the optimizer steps done before the first one of this process, 0 for a new run."""
    if subject.step is None:
        missing = Finding("resumed_step", None, "the training loop was not found")
        return [missing.judged(requested, None)] if requested else []
    how = f"the training loop; loaded {subject.checkpoint}" if subject.checkpoint else "the training loop"
    finding = Finding("resumed_step", subject.step, how)
    if requested is None:
        return [finding]
    loaded = subject.step == 0 or subject.checkpoint is not None
    return [finding.judged(requested, str(subject.step) == requested and loaded)]
