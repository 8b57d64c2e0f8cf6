"""The port of a run's rendezvous: never that of another job on the same node."""

from __future__ import annotations

import random
import socket

_BY_JOB = range(10_000, 20_000)  # below what systems give out by themselves (32768 and up)
_OTHERWISE = range(20_000, 30_000)
_TRIES = 50


def rendezvous_port(job_id: str) -> int:
    """The port that the job's id gives, which no other live job has, or, where something else listens on it, a free
    one of another range. Call on the node that will listen. Raises OSError when nothing is free."""
    number = int("".join(filter(str.isdigit, job_id)) or 0)
    port = _BY_JOB[number % len(_BY_JOB)]
    for _ in range(_TRIES):
        if _is_free(port):
            return port
        port = random.choice(_OTHERWISE)
    raise OSError(f"no free port among {_TRIES} of {_OTHERWISE.start} to {_OTHERWISE.stop}")


def _is_free(port: int) -> bool:
    try:
        with socket.socket() as listening:
            listening.bind(("", port))
            listening.listen(1)
    except OSError:
        return False
    return True
