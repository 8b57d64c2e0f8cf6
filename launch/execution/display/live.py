"""The display on a terminal: the plain lines as history, and below them one line that is redrawn in place."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, TextIO

from launch.execution.display.progress import PHASE_NAMES, PlainDisplay, format_duration, step_parts
from launch.execution.record.events import Event
from launch.terminal import clean

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SPARKLINE = 20  # characters at most
_LEAST_BAR = 10  # characters of the bar, with its spaces
_LATE = 30.0  # seconds without a step after which the line shows how long it has been waiting
_BLOCKS, _NOT_FINITE = "▁▂▃▄▅▆▇█", "!"  # of the sparkline
_MAX_MEANS = 64


class Sparkline:
    """Keeps the means of a value over equal parts of the steps so far."""

    def __init__(self) -> None:
        self._means: list[tuple[float, int]] = []  # of each part: the sum of its values, and how many
        self._part = 1  # values of a part

    def add(self, value: float) -> None:
        """Add the next value."""
        if self._means and self._means[-1][1] < self._part:
            total, count = self._means[-1]
            self._means[-1] = (total + value, count + 1)
            return
        if len(self._means) == _MAX_MEANS:
            self._part *= 2
            pairs = zip(self._means[::2], self._means[1::2], strict=True)
            self._means = [(first[0] + second[0], first[1] + second[1]) for first, second in pairs]
        self._means.append((value, 1))

    def render(self, width: int) -> str:
        """Return at most `width` characters, the lowest mean as the lowest block and a NaN or an infinity as `!`.

        >>> line = Sparkline()
        >>> for value in (8.0, 4.0, 2.0, 1.0): line.add(value)
        >>> line.render(4)
        '█▄▂▁'
        """
        if width <= 0 or not self._means:
            return ""
        means = [total / count for total, count in self._means]
        parts = min(width, len(means))
        ends = [len(means) * part // parts for part in range(parts + 1)]
        values = [sum(means[start:end]) / (end - start) for start, end in pairwise(ends)]  # fmean refuses infinities
        finite = [value for value in values if math.isfinite(value)]
        low, high = min(finite, default=0.0), max(finite, default=0.0)
        return "".join(_block(value, low, high) for value in values)


def _block(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return _NOT_FINITE
    share = (value - low) / (high - low) if high > low else 0.0
    return _BLOCKS[round(share * (len(_BLOCKS) - 1))]


class LiveDisplay(PlainDisplay):
    """Prints the lines of PlainDisplay, which stay in the scrollback; `refresh` redraws the line below them.

    That line shows what the run waits for and since when; in training the step, the loss and its course, the rate and
    the time left. It takes one line of the terminal, whatever its width.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock)
        self._waiting_for = "starting the processes"
        self._since = clock()
        self._step: Event | None = None  # the last one, in training
        self._losses = Sparkline()
        self._unicode = (getattr(stream, "encoding", None) or "").lower().startswith("utf")
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def start(self, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
        from rich.table import Column

        super().start(total)
        self._waiting_for, self._since = "starting the processes", self._clock()
        self._step, self._losses = None, Sparkline()
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
            self._waiting_for = "waiting for the first step" if phase == "training" else PHASE_NAMES.get(phase, phase)
            self._since, self._step = self._clock(), None
        elif event.kind == "total_steps":
            self._bar.update(self._task, total=self._pace.total)
        elif event.kind == "step":
            self._since, self._step = self._clock(), event
            if isinstance(loss := event.data.get("loss"), (int, float)):
                self._losses.add(float(loss))
            self._bar.update(self._task, completed=event.data["step"])

    def refresh(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=clean(self._describe(self._bar.console.width - _LEAST_BAR)))
            self._bar.refresh()

    def _describe(self, room: int) -> str:
        """Return what the line shows, in at most `room` characters as long as it has parts that may be left out."""
        waited = self._clock() - self._since
        if self._step is None:
            return f"{self._waiting_for} {format_duration(waited)}"
        parts = step_parts(self._step, self._pace)
        if waited >= _LATE:
            parts["left"] = f"no step for {format_duration(waited)}"
        for name in ("rate", "loss"):
            if len("  ".join(parts.values())) > room:
                parts.pop(name, None)
        if "loss" in parts and self._unicode:
            sparkline = self._losses.render(min(_SPARKLINE, room - len("  ".join(parts.values())) - 1))
            parts["loss"] += f" {sparkline}" if len(sparkline) > 1 else ""
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
