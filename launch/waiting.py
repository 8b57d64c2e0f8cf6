"""Wait for what another process or machine does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], seconds: float | None, interval: float = 0.1) -> bool:
    """Wait until a condition holds, at most `seconds`, and return whether it does; both are in seconds."""
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(interval)
    return holds
