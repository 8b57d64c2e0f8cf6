"""Which phase a run is in, when two sources say so: the worker's events and the trainer's log lines."""

from __future__ import annotations

ORDER = ("import", "tokenize", "load", "reference_logprobs", "training", "checkpoint", "save", "push")
_TRL_ORDER = ("import", "load", "tokenize", "reference_logprobs", "training", "checkpoint", "save", "push")


class PhaseTracker:
    """Follows the phase. The worker is believed; a log line only moves it forwards.

    Lines and events come through different pipes, so a line may arrive after an event that it precedes.
    """

    def __init__(self, trainer: str) -> None:
        self.current = ""
        self._order = _TRL_ORDER if trainer.startswith("trl_") else ORDER

    def said_by_worker(self, phase: str) -> bool:
        """Whether this is a change."""
        changed = phase != self.current
        self.current = phase
        return changed

    def said_by_log(self, phase: str) -> bool:
        """Whether this is a change. After a checkpoint, training goes on."""
        if self.current:
            back_to_training = self.current == "checkpoint" and phase == "training"
            if not back_to_training and self._order.index(phase) <= self._order.index(self.current):
                return False
        self.current = phase
        return True
