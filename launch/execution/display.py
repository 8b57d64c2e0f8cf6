"""Show a live run: phase, step, loss or reward, tokens/s, time left.

On a terminal the last line is redrawn in place; elsewhere plain lines are printed.
"""

from __future__ import annotations

import contextlib
import os
import time
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO

from launch.execution.display_text import (
    PHASE_NAMES,
    Pace,
    describe_count,
    describe_early_stop,
    describe_evaluation,
    describe_step,
    headline_metric,
    sparkline,
    step_parts,
)
from launch.execution.record.events import Event
from launch.table import format_duration
from launch.terminal import clean_text, echo

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SPARKLINE = 20  # maximum width in characters
_LEAST_BAR = 10  # minimum width of the progress bar in characters, with its spaces
_LATE = 30.0  # seconds without a step after which the line shows how long it has been waiting
_MIN_INTERVAL = 2.0  # seconds between two plain lines for steps
_MAX_INTERVAL = 30.0  # seconds
_MIN_PROGRESS = 0.05  # share of the total steps between two plain lines


class Display(Protocol):
    """Shows a run."""

    def start(self, total: int | None) -> None:
        """Begin; `total` is the number of steps where it is known before the trainer reports it."""

    def show(self, event: Event) -> None: ...

    def refresh(self) -> None: ...

    def say(self, text: str) -> None:
        """Print a sentence or a few lines, above what is shown in place."""

    def close(self) -> None: ...


class PlainDisplay:
    """Prints a line at each change of phase, for the first and the last step, and for some of the
    steps between.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._pace = Pace()
        self._printed: tuple[int, float] | None = None  # the last printed step, and when
        self._unprinted: Event | None = None  # the last step, if it was not printed
        self._phase: str | None = None
        self._progress = Pace()  # the trainer's progress bar in this phase
        self._progress_printed_at = 0.0  # time of the bar's last line, or of the phase's beginning

    def start(self, total: int | None) -> None:
        self._pace = Pace(total)
        self._printed = None
        self._unprinted = None
        self._phase = None

    def show(self, event: Event) -> None:
        if event.kind == "phase":
            self._flush()
            self._begin_phase(event.data["phase"])
        elif event.kind == "total_steps":
            self._pace.total = event.data["steps"]
        elif event.kind == "progress":
            self._show_progress(event)
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

    def _begin_phase(self, phase: str) -> None:
        previous_phase = self._phase
        self._phase = phase
        self._progress = Pace()
        self._progress_printed_at = self._clock()
        # An evaluation is shown by the line of its result.
        if "evaluate" not in (phase, previous_phase):
            self.say(PHASE_NAMES.get(phase, phase))

    def _show_progress(self, event: Event) -> None:
        """Print, now and then, what the trainer's progress bar counts."""
        if event.data["total"] != self._progress.total:  # the trainer began another bar
            self._progress = Pace(event.data["total"])
        self._progress.add(event.data["done"], event.time)
        if self._clock() - self._progress_printed_at >= _MAX_INTERVAL:
            self._progress_printed_at = self._clock()
            name = PHASE_NAMES.get(self._phase or "", self._phase)
            self.say(f"{name}: {describe_count(self._progress)}")

    def _is_due(self, step: int) -> bool:
        """Return whether this step gets a line."""
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
        """Print the last step, if it was not printed."""
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
            # The reader closed the pipe (`head`), the terminal is gone, its disk is full, or the
            # stream is closed. The run continues, and its folder records everything.
            _discard_output(self._stream)

    def close(self) -> None:
        self._flush()


class SafeDisplay:
    """Wraps a display so that a broken one (a closed terminal, a full disk) ends neither the run
    nor its record.
    """

    def __init__(self, display: Display, stream: TextIO | None = None) -> None:
        self._display = display
        self._stream = stream
        self._is_broken = False

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if self._is_broken:
            return
        try:
            function(*arguments)
        except (OSError, ValueError):  # a closed stream raises ValueError
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
    """Redirect `stream` to the null device, so that Python can flush it when it exits."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class LiveDisplay(PlainDisplay):
    """Prints the lines of PlainDisplay, which stay in the scrollback, and a status line below them.

    The status line shows what the run waits for and how long; in training the step, the loss or
    the reward with its curve, the rate and the time left. It takes one line of the terminal,
    whatever the width.
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
        self._waiting_for = "starting the processes"
        self._since = self._clock()
        self._step: Event | None = None  # the last step of the training phase
        self._values = array("d")  # losses, or rewards; it takes 8 bytes a step
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
            self._waiting_for = PHASE_NAMES.get(phase, phase)
            if phase == "training":
                self._waiting_for = "waiting for the first step"
            self._since = self._clock()
            self._step = None
        elif event.kind == "total_steps":
            self._bar.update(self._task, total=self._pace.total)
        elif event.kind == "step":
            self._since = self._clock()
            self._step = event
            metric = headline_metric(event.data)
            if metric is not None:
                self._values.append(metric[1])
            self._bar.update(self._task, completed=event.data["step"])

    def refresh(self) -> None:
        """Redraw the status line."""
        if self._bar is not None and self._task is not None:
            width = self._bar.console.width - _LEAST_BAR
            self._bar.update(self._task, description=clean_text(self._describe(width)))
            self._bar.refresh()

    def _describe(self, width: int) -> str:
        """Return the text of the status line.

        The parts of a step that do not fit in `width` characters are left out.
        """
        waited = self._clock() - self._since
        if self._step is None:
            text = f"{self._waiting_for} {format_duration(waited)}"
            if self._progress.step is not None:
                text += f": {describe_count(self._progress)}"
            return text
        parts = step_parts(self._step, self._pace)
        if waited >= _LATE:
            parts["left"] = f"no step for {format_duration(waited)}"
        for name in ("rate", "metric"):
            if len("  ".join(parts.values())) > width:
                parts.pop(name, None)
        if "metric" in parts and self._unicode:
            free_width = width - len("  ".join(parts.values())) - 1
            curve = sparkline(self._values, min(_SPARKLINE, free_width))
            if len(curve) > 1:
                parts["metric"] += f" {curve}"
        return "  ".join(parts.values())

    def say(self, text: str) -> None:
        if self._bar is None:
            super().say(text)
        else:
            self._bar.console.print(clean_text(text), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        super().close()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def display_for(stream: TextIO) -> Display:
    """Return the display for `stream`: a LiveDisplay on a terminal, a PlainDisplay elsewhere."""
    if not stream.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return PlainDisplay(stream)
    return LiveDisplay(stream)
