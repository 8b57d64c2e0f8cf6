"""Handles the signals of a node's task: Slurm's time limit warning, and the request to end.

Slurm signals every process of a step, including the ranks, and USR2 would kill them. Therefore this
process blocks USR2 before it starts anything, its children inherit the mask, and a thread receives
the signal. This process ends its ranks with SIGINT, which Slurm does not send, so a run that ended
by SIGTERM was killed externally.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from launch.errors import EXIT_INTERRUPTED

# The cause of an outcome whose ranks were terminated externally.
SIGTERM_CAUSE = "interrupted by SIGTERM"
# The cause of an outcome whose ranks this process ended itself.
SIGINT_CAUSE = "interrupted by SIGINT"
_END_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_EXTERNAL_SIGNALS = {signal.SIGTERM, signal.SIGUSR1}


def is_interruption(cause: str | None) -> bool:
    """Return whether the cause of an outcome is a signal, and so not yet known."""
    return cause is not None and cause.startswith("interrupted by ")


class NodeSignals:
    """Handles the signals of one node's task; `on_warning` is called once, from a thread.

    A request to end is held back until `ready`, because until then it is not known what to record.
    """

    def __init__(self, on_warning: Callable[[], None]) -> None:
        self.time_limit_near = False  # whether Slurm has warned
        # It returns the seconds from Slurm's warning until the ranks are to end, None if another
        # node decides.
        self.choose_delay: Callable[[], float | None] = lambda: 0.0
        self._on_warning = on_warning
        self._ready = False  # a request to end may raise SystemExit
        self._started = False  # the ranks were started, or SystemExit was raised instead
        self._over = False  # the ranks have ended
        self._end_requested = False
        self._terminated = False  # SIGTERM or SIGUSR1 has arrived
        self._wakeup_fd = -1

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals until the process ends.

        Call it in the main thread, before other threads exist.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        threading.Thread(target=self._await_warning, name="time limit", daemon=True).start()
        previous = [(number, signal.signal(number, self._request_end)) for number in _END_SIGNALS]
        self._wakeup_fd, writing = os.pipe()
        for end in (self._wakeup_fd, writing):
            os.set_blocking(end, False)
        # The pipe receives every signal, whichever handler runs.
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            os.close(writing)
            for number, handler in previous:
                signal.signal(number, handler)

    def ready(self) -> None:
        """From here on a request to end raises SystemExit; one that came earlier raises it now."""
        self._ready = True
        if self._end_requested and not self._started:
            self._started = True
            raise SystemExit(EXIT_INTERRUPTED)

    @property
    def terminated(self) -> bool:
        """Whether a signal has arrived that only others send.

        Ranks that it reached first look as if they had failed.
        """
        with contextlib.suppress(BlockingIOError):
            self._terminated |= not _EXTERNAL_SIGNALS.isdisjoint(os.read(self._wakeup_fd, 4096))
        return self._terminated

    @contextlib.contextmanager
    def while_ranks_run(self) -> Iterator[None]:
        """Leave the signals to the supervisor while the ranks run.

        Afterwards the record is written, and signals have no effect.
        """
        self._started = True
        try:
            if self._end_requested:
                raise SystemExit(EXIT_INTERRUPTED)
            yield
        finally:
            self._over = True

    def end(self, after: float = 0.0) -> None:
        """End the ranks, or this process while it has none, unless they end within `after` seconds.

        It may be called from any thread.
        """
        if after:
            timer = threading.Timer(after, self.end)
            timer.daemon = True
            timer.start()
        elif not self._over and threading.main_thread().is_alive():
            os.kill(os.getpid(), signal.SIGINT)

    def _await_warning(self) -> None:
        signal.sigwait({signal.SIGUSR2})
        self.time_limit_near = True
        self._on_warning()
        delay: float | None = 0.0
        if self._started and not self._end_requested:
            delay = self.choose_delay()
        if delay is not None:
            self.end(after=delay)

    def _request_end(self, number: int, frame: FrameType | None) -> None:
        self._end_requested = True
        if self._ready and not self._started:
            # A second signal must not interrupt the clean-up that the first one started.
            self._started = True
            raise SystemExit(EXIT_INTERRUPTED)
