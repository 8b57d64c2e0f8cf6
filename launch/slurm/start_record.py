"""The start record: node 0 publishes the command and the rendezvous, and the other nodes start from it."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from pathlib import Path

from launch.files import read_file, write_exact
from launch.worker.json_codec import decode, encode

_FILE = "start.json"
_CONNECT_TIMEOUT = 5.0  # seconds
_JOB_PORTS = range(10_000, 20_000)  # below the ephemeral ports (32768 and up)
_FALLBACK_PORTS = range(20_000, 30_000)
_TRIES = 50


@dataclass(frozen=True)
class StartRecord:
    """How the ranks of all nodes are started."""

    identity: str  # of node 0's plan
    command: tuple[str, ...] = ()  # with placeholders that each node fills in; empty if there is nothing to run
    host: str = ""  # where rank 0 listens
    port: int = 0

    def write(self, folder: Path) -> None:
        """Write the record into the folder of this start of the job."""
        write_exact(folder / _FILE, encode(self, indent=2))


def is_listening(record: StartRecord | None) -> bool:
    """Whether a process accepts connections where the record has rank 0 listen."""
    if record is None or not record.port:
        return False
    try:
        with socket.create_connection((record.host, record.port), timeout=_CONNECT_TIMEOUT):
            return True
    except OSError:
        return False


def read_start_record(folder: Path) -> StartRecord | None:
    """The record, None until node 0 has written it."""
    try:
        return decode(StartRecord, read_file(folder / _FILE))
    except (OSError, ValueError):
        return None


def rendezvous_port(job_id: str) -> int:
    """Derive the port from the job's id, so that no other live job has it, or pick a free one if it is in use.

    Call it on the node that will listen. Raises OSError if no port is free.
    """
    number = int("".join(filter(str.isdigit, job_id)) or 0)
    port = _JOB_PORTS[number % len(_JOB_PORTS)]
    for _ in range(_TRIES):
        if _is_free(port):
            return port
        port = random.choice(_FALLBACK_PORTS)
    raise OSError(
        f"none of {_TRIES} ports tried is free, the last ones of {_FALLBACK_PORTS.start} to {_FALLBACK_PORTS.stop}"
    )


def _is_free(port: int) -> bool:
    try:
        with socket.socket() as listening:
            listening.bind(("", port))
            listening.listen(1)
    except OSError:
        return False
    return True
