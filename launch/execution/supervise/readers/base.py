"""Base classes of the readers: phase lines, dataset cache lines, numbers as Python prints them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from launch.execution.record.events import Event

NUMBER = r"-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|nan|inf)"
_TOTAL_STEPS = re.compile(r"Total (?:optimization|training) steps(?: =|:) (\d+)")
_CACHE_MISS = "Cache not found"
_CACHE_READY = "Found cached dataset at "
_REFERENCE_LINES = {
    "Loading reference logprobs cache from ": "hit",  # dpo_utils.py:437
    "Saving reference logprobs cache to ": "built",  # :515
}


class LogReader:
    """Turns the lines of one rank into events. Subclasses declare their phase lines and parse what else they can."""

    phase_lines: ClassVar[Mapping[str, str]] = {}  # text -> the phase that starts with a line containing it

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._cache_missed = False

    def feed(self, line: str, now: float) -> list[Event]:
        """Return the events of one line that arrived at `now` (unix seconds)."""
        events = [self._event("phase", now, phase=phase) for text, phase in self.phase_lines.items() if text in line]
        if "Total " in line and (total := _TOTAL_STEPS.search(line)):
            events.append(self._event("total_steps", now, steps=int(total[1])))
        if _CACHE_MISS in line:
            self._cache_missed = True
        elif _CACHE_READY in line:
            # dataset_transformation.py:2203 (a hit) and :2288 (just built) print the same line
            value = "built" if self._cache_missed else "hit"
            path = line.partition(_CACHE_READY)[2].strip()
            events.append(self._event("evidence", now, what="dataset_cache", value=value, path=path))
            self._cache_missed = False
        return events

    def reference_cache(self, line: str, now: float) -> list[Event]:
        """Return evidence from open-instruct's lines about its cache of reference log-probabilities."""
        values = [value for text, value in _REFERENCE_LINES.items() if text in line]
        return [self._event("evidence", now, what="reference_logprobs_cache", value=value) for value in values]

    def idle(self, now: float) -> list[Event]:
        """Return the events held for further lines that have not come in time."""
        return []

    def close(self, now: float) -> list[Event]:
        """Return the events still held at the end of the stream."""
        return []

    def _event(self, kind: str, now: float, **data: Any) -> Event:
        return Event(kind, now, self.rank, data)


class StepReader(LogReader):
    """A reader whose steps span several lines: a step is held until complete, at most `patience` seconds."""

    patience = 1.0  # seconds

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._step: dict[str, Any] | None = None
        self._held_since = 0.0

    def _hold(self, now: float, **data: Any) -> list[Event]:
        """Hold a new step and return the previous one, which is complete."""
        events = self._release()
        self._step, self._held_since = data, now
        return events

    def _release(self, **data: Any) -> list[Event]:
        if self._step is None:
            return []
        event = self._event("step", self._held_since, **{**self._step, **data})
        self._step = None
        return [event]

    def _finish(self) -> list[Event]:
        return self._release()

    def idle(self, now: float) -> list[Event]:
        return self._finish() if now - self._held_since >= self.patience else []

    def close(self, now: float) -> list[Event]:
        return self._finish()
