"""Run folders with the files that a run writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START = 1000.0  # unix seconds


def append(path: Path, values: Sequence[Mapping[str, Any]]) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"schema_version": 1, **value}) + "\n" for value in values)


def event(kind: str, after: float, **data: Any) -> dict[str, Any]:
    return {"kind": kind, "time": START + after, "rank": 0, **data}


def write_run(folder: Path, steps: int, total: int | None = None) -> Path:
    """A run of `total` steps, of which `steps` are done: one a second from ten seconds after its
    start.
    """
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(
        json.dumps({"schema_version": 1, "identity": "0"}), encoding="utf-8"
    )
    events = [event("phase", 0.0, phase="import"), event("phase", 5.0, phase="load")]
    events += [
        event("total_steps", 9.0, steps=total or steps),
        event("phase", 10.0, phase="training"),
    ]
    append(folder / "events.jsonl", events)
    metrics = [
        {"step": step, "loss": 5.0 - step, "seconds": 1.0, "tokens_per_second": 100.0 * step}
        for step in range(1, steps + 1)
    ]
    append(folder / "metrics.jsonl", metrics)
    return folder
