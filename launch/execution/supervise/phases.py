"""Tracks the phase of a run from two sources: the worker's events and the trainer's log lines."""

from __future__ import annotations

ORDER = ("import", "tokenize", "load", "reference_logprobs", "training", "evaluate", "checkpoint", "save", "push")
_TRL_ORDER = ("import", "load", "tokenize", "reference_logprobs", "training", "evaluate", "checkpoint", "save", "push")


class PhaseTracker:
    """Follows the current phase. A worker event always sets it; a log line or a step only moves it forward.

    Lines and events arrive through different pipes, so their order is not guaranteed. Times are unix seconds: when an
    event was sent, when a line arrived.
    """

    def __init__(self, reader: str) -> None:
        self.current = ""
        self._since = 0.0
        self._order = _TRL_ORDER if reader == "trl" else ORDER

    def update_from_worker(self, phase: str, time: float) -> bool:
        """Set the phase from a worker event; return whether it changed."""
        return self._change(phase, time, phase != self.current)

    def update_from_log(self, phase: str, time: float) -> bool:
        """Move the phase forward from a log line; return whether it changed. Training resumes after a checkpoint."""
        if self.current == "checkpoint" and phase == "training":
            return self._change(phase, time, time >= self._since)
        is_later = not self.current or self._order.index(phase) > self._order.index(self.current)
        return self._change(phase, time, is_later)

    def _change(self, phase: str, time: float, changed: bool) -> bool:
        if changed:
            self.current, self._since = phase, time
        return changed
