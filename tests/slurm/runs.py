"""What a run and its job left in their folders, also while they write."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from launch.files import read_json_lines
from tests.slurm.cluster import Cluster, until


def log(home: Path, name: str) -> str:
    return "\n".join(
        path.read_text() for path in (home / "runs" / ".jobs" / "demo" / name).glob("job-*.log")
    )


def attempts(run: Path) -> list[dict[str, Any]]:
    return read_json_lines(run / "attempts.jsonl")


def losses(run: Path) -> dict[int, float]:
    """The loss of each logged step."""
    return {line["step"]: line["loss"] for line in read_json_lines(run / "metrics.jsonl")}


def last_logged_step(run: Path) -> int:
    return max(losses(run), default=0)


def evidence(run: Path) -> dict[str, str]:
    """The value that was found of each setting."""
    events = read_json_lines(run / "events.jsonl")
    return {event["what"]: str(event["value"]) for event in events if event["kind"] == "evidence"}


def opened(run: Path) -> list[str]:
    """The files that the processes of a node have reported as loaded."""
    events = read_json_lines(run / "events.jsonl")
    return [event["path"] for event in events if event["kind"] == "opened"]


def cause(run: Path) -> str | None:
    try:
        return str(json.loads((run / "FAILED").read_text())["cause"])
    except OSError:
        return None


def seconds_until_free(slurm: Cluster, fault: str, began: float, *names: str) -> None:
    """Wait until nodes are free and print how long that took."""
    until(lambda: slurm.free(*names), 30 - (time.monotonic() - began))
    print(f"{fault}: free after {time.monotonic() - began:.1f} s")
