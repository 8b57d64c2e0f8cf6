"""What a live run shows: phase, step, loss, tokens/s, time left; in place on a terminal, as plain
lines elsewhere.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, TextIO

from launch.execution.record.events import Event
from launch.terminal import clean, echo

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SPARKLINE = 20  # characters at most
_LEAST_BAR = 10  # characters of the bar, with its spaces
_LATE = 30.0  # seconds without a step after which the line shows how long it has been waiting
_BLOCKS, _NOT_FINITE = "▁▂▃▄▅▆▇█", "!"  # of the sparkline
_MIN_INTERVAL = 2.0  # seconds between two plain lines for steps
_MAX_INTERVAL = 30.0  # seconds
_MIN_PROGRESS = 0.05  # of the total steps, between two plain lines
PHASE_NAMES = {
    "import": "importing the trainer",
    "tokenize": "tokenizing",
    "load": "loading the model",
    "reference_logprobs": "reference log-probs",
    "first_step": "running a first batch, for which kernels are compiled",
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
    value = (
        f"{loss:.4f}"
        if isinstance(loss, (int, float))
        else event.data.get("eval_loss_text", "unknown")
    )
    return f"evaluation at step {event.data['step']}: eval_loss {value}"


def describe_early_stop(event: Event) -> str:
    """Describe why a run ends before its last step."""
    data = event.data
    evaluations = (
        f"{data['evaluations']} evaluations" if data["evaluations"] != 1 else "1 evaluation"
    )
    loss = (
        f"{data['best_loss']:.4f}"
        if isinstance(data.get("best_loss"), (int, float))
        else "its best"
    )
    best = f"an eval_loss below {loss} (step {data['best_step']})"
    return f"stopped early at step {data['step']}: {evaluations} without {best}"


def describe_step(event: Event, pace: Pace) -> str:
    """Return one line for a step: `step 5/50  loss 5.8501  1,234 tokens/s  0:41 left`."""
    return "  ".join(step_parts(event, pace).values())


def describe_count(pace: Pace) -> str:
    """Describe what a progress bar counts: `24 of 200, 9.9 a second, 0:18 left`."""
    parts = [f"{pace.step:,} of {pace.total:,}"]
    if (left := pace.seconds_left()) and pace.total and pace.step is not None:
        parts += [
            f"{(pace.total - pace.step) / left:.3g} a second",
            f"{format_duration(left)} left",
        ]
    return ", ".join(parts)


class PlainDisplay:
    """Prints a line at each phase change, for the first and the last step, and now and then for one
    between.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._pace = Pace()
        self._printed: tuple[int, float] | None = None  # the last printed step, and when
        self._unprinted: Event | None = None
        self._phase: str | None = None
        self._counted = Pace()  # what a progress bar counts in this phase
        self._counted_at = 0.0  # when a line was last printed in this phase

    def start(self, total: int | None) -> None:
        self._pace = Pace(total)
        self._printed = self._unprinted = self._phase = None

    def show(self, event: Event) -> None:
        if event.kind == "phase":
            self._flush()
            phase, previous = event.data["phase"], self._phase
            self._phase, self._counted, self._counted_at = phase, Pace(), self._clock()
            # the line of its result shows an evaluation
            if phase != "evaluate" and previous != "evaluate":
                self.say(PHASE_NAMES.get(phase, phase))
        elif event.kind == "total_steps":
            self._pace.total = event.data["steps"]
        elif event.kind == "progress":
            self._count(event)
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

    def _count(self, event: Event) -> None:
        if event.data["total"] != self._counted.total:  # another bar
            self._counted = Pace(event.data["total"])
        self._counted.add(event.data["done"], event.time)
        if self._clock() - self._counted_at >= _MAX_INTERVAL:
            self._counted_at = self._clock()
            self.say(
                f"{PHASE_NAMES.get(self._phase or '', self._phase)}: "
                f"{describe_count(self._counted)}"
            )

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
            # the reader closed the pipe (`head`), the terminal is gone, its disk is full, or the
            # stream is closed: the run continues, and its folder records everything
            _discard_output(self._stream)

    def close(self) -> None:
        self._flush()


class SafeDisplay:
    """Wraps a display so that a broken one (a closed terminal, a full disk) ends neither the run
    nor its record.
    """

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
    """Send what is written to `stream` from now on, and what it still holds, nowhere; Python
    flushes it at its end.
    """
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def sparkline(values: Sequence[float], width: int) -> str:
    """Return at most `width` characters, one for the mean of each of equal parts of the values.

    The lowest mean is the lowest block, a NaN or an infinity is `!`.

    >>> sparkline((8.0, 4.0, 2.0, 1.0), 4)
    '█▄▂▁'
    """
    parts = max(0, min(width, len(values)))
    ends = [len(values) * part // parts for part in range(parts + 1)] if parts else []
    # fmean refuses infinities
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(ends)]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_block(mean, low, high) for mean in means)


def _block(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return _NOT_FINITE
    share = (value - low) / (high - low) if high > low else 0.0
    return _BLOCKS[round(share * (len(_BLOCKS) - 1))]


class LiveDisplay(PlainDisplay):
    """Prints the lines of PlainDisplay, which stay in the scrollback; `refresh` redraws the line
    below them.

    That line shows what the run waits for and since when; in training the step, the loss and its
    course, the rate and the time left. It takes one line of the terminal, whatever its width.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock)
        self._unicode = (getattr(stream, "encoding", None) or "").lower().startswith("utf")
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def start(self, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
        from rich.table import Column

        super().start(total)
        self._waiting_for, self._since = "starting the processes", self._clock()
        self._step: Event | None = None  # the last one, in training
        self._losses = array("d")  # 8 bytes a step
        whole_line = Column(no_wrap=True, overflow="ellipsis")
        self._bar = Progress(
            SpinnerColumn("dots" if self._unicode else "line"),
            TextColumn("{task.description}", markup=False, table_column=whole_line),
            BarColumn(bar_width=None),
            console=Console(file=self._stream, highlight=False),
            auto_refresh=False,
        )
        self._task = self._bar.add_task(self._waiting_for, total=total)
        self._bar.start()

    def show(self, event: Event) -> None:
        super().show(event)
        if self._bar is None or self._task is None:
            return
        if event.kind == "phase":
            phase = event.data["phase"]
            self._waiting_for = (
                "waiting for the first step"
                if phase == "training"
                else PHASE_NAMES.get(phase, phase)
            )
            self._since, self._step = self._clock(), None
        elif event.kind == "total_steps":
            self._bar.update(self._task, total=self._pace.total)
        elif event.kind == "step":
            self._since, self._step = self._clock(), event
            if isinstance(loss := event.data.get("loss"), (int, float)):
                self._losses.append(loss)
            self._bar.update(self._task, completed=event.data["step"])

    def refresh(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, description=clean(self._describe(self._bar.console.width - _LEAST_BAR))
            )
            self._bar.refresh()

    def _describe(self, room: int) -> str:
        """Return what the line shows, in at most `room` characters as long as it has parts that may
        be left out.
        """
        waited = self._clock() - self._since
        if self._step is None:
            counted = f": {describe_count(self._counted)}" if self._counted.step is not None else ""
            return f"{self._waiting_for} {format_duration(waited)}{counted}"
        parts = step_parts(self._step, self._pace)
        if waited >= _LATE:
            parts["left"] = f"no step for {format_duration(waited)}"
        for name in ("rate", "loss"):
            if len("  ".join(parts.values())) > room:
                parts.pop(name, None)
        if "loss" in parts and self._unicode:
            course = sparkline(
                self._losses, min(_SPARKLINE, room - len("  ".join(parts.values())) - 1)
            )
            parts["loss"] += f" {course}" if len(course) > 1 else ""
        return "  ".join(parts.values())

    def say(self, text: str) -> None:
        if self._bar is None:
            super().say(text)
        else:
            self._bar.console.print(clean(text), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        super().close()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def display_for(stream: TextIO) -> Display:
    """Return the display that suits `stream`: with a line in place on a terminal, plain lines
    elsewhere.
    """
    if not stream.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return PlainDisplay(stream)
    return LiveDisplay(stream)
