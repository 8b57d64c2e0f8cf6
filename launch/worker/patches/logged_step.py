"""Detects when an open-instruct script logs a step, and reads the variables of the frame that logs it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from ..channel import EventWriter
from ..evidence.trainer_objects import frames

_STEP = "  Step: "


def find_logging_frame() -> FrameType:
    """Return the outer frame that holds the metrics of a logged step. Raises LookupError without one."""
    for frame in frames():
        if "metrics_to_log" in frame.f_locals:
            return frame
    raise LookupError("no frame holds metrics_to_log")


class StepListener(logging.Handler):
    """Calls `step(locals)` with the variables of the frame that logs a step. Never raises into the training."""

    def __init__(self, patch: str, events: EventWriter, step: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__(logging.INFO)
        self._patch, self._events, self._step = patch, events, step

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            self.read(message)
            if _STEP in message:  # accelerate's loggers prepend the rank
                self._step(find_logging_frame().f_locals)
        except Exception as error:
            self._events.warn(f"patch {self._patch} could not read a step: {type(error).__name__}: {error}")

    def read(self, message: str) -> None:
        """Handle any line of the trainer's own logger; for subclasses."""
