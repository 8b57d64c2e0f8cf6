"""The signals that end a run: they become stop orders, or wait while a record is written."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from launch.execution.supervise.processes import ReaperProcess

Handler = Callable[[int, FrameType | None], None]


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a run: SIGINT, SIGTERM, SIGUSR1 (which ends a process that does
    not handle it) and, if it is not ignored (nohup), SIGHUP.
    """
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return signals if is_ignored else (*signals, signal.SIGHUP)


class StopOrders:
    """Turns the user's signals into stop orders: the first one a soft stop, the second one a hard
    stop.
    """

    def __init__(self) -> None:
        self.signals: list[signal.Signals] = []
        self.reaper: ReaperProcess | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(signal.Signals(number))
        self.forward()

    def forward(self) -> None:
        """Send the stop order; called from the handler too, so a blocked display does not delay the
        end.
        """
        if self.reaper is None or not self.signals:
            return
        if self.reaper.status is None and not self.reaper.halted:
            self.reaper.interrupted = True
        self.reaper.send("kill" if len(self.signals) > 1 else "stop")


@contextlib.contextmanager
def handle_signals(handler: Handler, signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Have `handler` called for `signals` until the context ends."""
    before = [(number, signal.signal(number, handler)) for number in signals]
    try:
        yield
    finally:
        for number, earlier_handler in before:
            signal.signal(number, earlier_handler)


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """Defer the signals that end a run until the context ends, so that a record is written whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    try:
        with handle_signals(lambda number, frame: held.append(number), stop_signals()):
            yield
    finally:
        for number in held:
            signal.raise_signal(number)
