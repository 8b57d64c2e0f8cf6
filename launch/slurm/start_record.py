"""The start record: node 0 publishes the command and the rendezvous, and the other nodes start from it."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path

from launch.files import load_json, write_file

_FILE = "start.json"
_CONNECT_TIMEOUT = 5.0  # seconds


@dataclass(frozen=True)
class StartRecord:
    """How the ranks of all nodes are started."""

    identity: str  # of node 0's plan
    command: tuple[str, ...] = ()  # with placeholders that each node fills in; empty if there is nothing to run
    host: str = ""  # where rank 0 listens
    port: int = 0

    def write(self, folder: Path) -> None:
        """Write the record into the folder of this start of the job."""
        content = {
            "schema_version": 1,
            "identity": self.identity,
            "command": self.command,
            "host": self.host,
            "port": self.port,
        }
        write_file(folder / _FILE, json.dumps(content, indent=2))


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
        content = load_json(folder / _FILE)
    except (OSError, ValueError):
        return None
    return StartRecord(content["identity"], tuple(content["command"]), content["host"], content["port"])
