"""Show a live run: phase, step i/N, loss, tokens/s, time left; in place on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from launch.execution.record.events import Event
from launch.terminal import echo

_MIN_INTERVAL = 2.0  # seconds between two plain lines for steps
_MAX_INTERVAL = 30.0  # seconds
_MIN_PROGRESS = 0.05  # of the total steps, between two plain lines
PHASE_NAMES = {
    "import": "importing the trainer",
    "tokenize": "tokenizing",
    "load": "loading the model",
    "reference_logprobs": "reference log-probs",
    "training": "training",
    "evaluate": "evaluating",
    "checkpoint": "writing a checkpoint",
    "save": "saving the model",
    "push": "pushing to the hub",
}


class Display(Protocol):
    """Shows a run."""

    def start(self, total: int | None) -> None:
        """Begin; `total` is the number of steps where it is known before the trainer reports it."""

    def show(self, event: Event) -> None: ...

    def refresh(self) -> None: ...

    def say(self, text: str) -> None:
        """Print a sentence or a few lines, above what is shown in place."""

    def close(self) -> None: ...


class Pace:
    """Estimates the time left from the mean time per step since the first step seen."""

    def __init__(self, total: int | None = None) -> None:
        self.total = total
        self.step: int | None = None
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None

    def add(self, step: int, time: float) -> None:
        self.step, self._last = step, (step, time)
        self._first = self._first or (step, time)

    def seconds_left(self) -> float | None:
        """Return the estimate in seconds; None while it is unknown."""
        if not self.total or not self._first or not self._last or self._last[0] <= self._first[0]:
            return None
        seconds_per_step = (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])
        return max(0.0, (self.total - self._last[0]) * seconds_per_step)


def format_duration(seconds: float) -> str:
    """Format seconds: `75` as `1:15`, `3700` as `1:01:40`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def step_parts(event: Event, pace: Pace) -> dict[str, str]:
    """Return what is shown of a step, by name: `step`, `loss`, `rate`, `left`."""
    parts = {"step": f"step {pace.step}" + (f"/{pace.total}" if pace.total else "")}
    if isinstance(loss := event.data.get("loss"), (int, float)):
        parts["loss"] = f"loss {loss:.4f}"
    if isinstance(rate := event.data.get("tokens_per_second"), (int, float)):
        parts["rate"] = f"{rate:,.0f} tokens/s"
    if (left := pace.seconds_left()) is not None:
        parts["left"] = f"{format_duration(left)} left"
    return parts


def describe_evaluation(event: Event) -> str:
    """Describe a measurement on the validation data."""
    loss = event.data.get("eval_loss")
    value = f"{loss:.4f}" if isinstance(loss, (int, float)) else event.data.get("eval_loss_text", "unknown")
    return f"evaluation at step {event.data['step']}: eval_loss {value}"


def describe_early_stop(event: Event) -> str:
    """Describe why a run ends before its last step."""
    data = event.data
    evaluations = f"{data['evaluations']} evaluations" if data["evaluations"] != 1 else "1 evaluation"
    loss = f"{data['best_loss']:.4f}" if isinstance(data.get("best_loss"), (int, float)) else "its best"
    best = f"an eval_loss below {loss} (step {data['best_step']})"
    return f"stopped early at step {data['step']}: {evaluations} without {best}"


def describe_step(event: Event, pace: Pace) -> str:
    """Return one line for a step: `step 5/50  loss 5.8501  1,234 tokens/s  0:41 left`."""
    return "  ".join(step_parts(event, pace).values())


class PlainDisplay:
    """Prints a line at each phase change, for the first and the last step, and now and then for one between."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._pace = Pace()
        self._printed: tuple[int, float] | None = None  # the last printed step, and when
        self._unprinted: Event | None = None
        self._phase: str | None = None

    def start(self, total: int | None) -> None:
        self._pace = Pace(total)
        self._printed = self._unprinted = self._phase = None

    def show(self, event: Event) -> None:
        if event.kind == "phase":
            self._flush()
            phase, previous = event.data["phase"], self._phase
            self._phase = phase
            if phase != "evaluate" and previous != "evaluate":  # the line of its result shows an evaluation
                self.say(PHASE_NAMES.get(phase, phase))
        elif event.kind == "total_steps":
            self._pace.total = event.data["steps"]
        elif event.kind == "warning":
            self.say(f"warning (rank {event.rank}): {event.data['message']}")
        elif event.kind == "evaluation":
            self._flush()
            self.say(describe_evaluation(event))
        elif event.kind == "early_stop":
            self._flush()
            self.say(describe_early_stop(event))
        elif event.kind == "step":
            self._pace.add(event.data["step"], event.time)
            self._unprinted = event
            if self._is_due(event.data["step"]):
                self._flush()

    def _is_due(self, step: int) -> bool:
        if self._printed is None or step == self._pace.total:
            return True
        last_step, last_time = self._printed
        waited = self._clock() - last_time
        if self._pace.total:
            has_progressed = step - last_step >= _MIN_PROGRESS * self._pace.total
        else:
            has_progressed = waited >= 5 * _MIN_INTERVAL
        return (has_progressed and waited >= _MIN_INTERVAL) or waited >= _MAX_INTERVAL

    def _flush(self) -> None:
        if self._unprinted is not None:
            self.say(describe_step(self._unprinted, self._pace))
            self._printed = (self._unprinted.data["step"], self._clock())
            self._unprinted = None

    def refresh(self) -> None:
        """Do nothing: plain lines are not redrawn."""

    def say(self, text: str) -> None:
        try:
            echo(text, file=self._stream, flush=True)
        except (OSError, ValueError):
            # the reader closed the pipe (`head`), the terminal is gone, its disk is full, or the stream is closed: the
            # run continues, and its folder records everything
            _discard_output(self._stream)

    def close(self) -> None:
        self._flush()


class SafeDisplay:
    """Wraps a display so that a broken one (a closed terminal, a full disk) ends neither the run nor its record."""

    def __init__(self, display: Display, stream: TextIO | None = None) -> None:
        self._display, self._stream = display, stream
        self._is_broken = False

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if self._is_broken:
            return
        try:
            function(*arguments)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self._is_broken = True
            if self._stream is not None:
                _discard_output(self._stream)

    def start(self, total: int | None) -> None:
        self._call(self._display.start, total)

    def show(self, event: Event) -> None:
        self._call(self._display.show, event)

    def refresh(self) -> None:
        self._call(self._display.refresh)

    def say(self, text: str) -> None:
        self._call(self._display.say, text)

    def close(self) -> None:
        self._call(self._display.close)


def _discard_output(stream: TextIO) -> None:
    """Send what is written to `stream` from now on, and what it still holds, nowhere; Python flushes it at its end."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def display_for(stream: TextIO) -> Display:
    """Return the display that suits `stream`: with a line in place on a terminal, plain lines elsewhere."""
    if not stream.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return PlainDisplay(stream)
    from launch.execution.display.live import LiveDisplay

    return LiveDisplay(stream)
