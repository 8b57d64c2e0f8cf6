"""What a run's folder records, read for its page. Every part may be missing."""

from __future__ import annotations

import calendar
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED
from launch.execution.record.events import PHASES, SCHEMA_VERSION
from launch.execution.record.folder import Outcome, read_outcome
from launch.execution.record.runs import is_running, run_name
from launch.execution.report.curves import Metrics, read_metrics
from launch.execution.report.reading import iterate_objects, number, objects, read_text
from launch.files import read_json_object

_FILES = ("plan.json", "metrics.jsonl", "events.jsonl", "config.yaml", "command.sh", "DONE", "FAILED", "logs")
_LATEST = 253_402_300_800.0  # unix seconds: the year 10000, which no calendar has
_MAX_EVENTS = 2000  # phases, warnings and guards that are kept of each kind


@dataclass(frozen=True)
class Phase:
    """A phase of one attempt, in unix seconds."""

    name: str
    began: float
    ended: float | None  # None: it had not ended when the record stopped


@dataclass
class Warned:
    """A warning, however often and by however many ranks."""

    message: str
    count: int = 0
    ranks: set[int] = field(default_factory=set)


@dataclass
class Events:
    """What events.jsonl holds."""

    attempts: list[list[Phase]] = field(default_factory=list)
    warnings: dict[str, Warned] = field(default_factory=dict)
    guards: list[dict[str, Any]] = field(default_factory=list)
    total_steps: int | None = None


@dataclass(frozen=True)
class RunRecord:
    """A run's folder."""

    folder: Path
    name: str  # stage/name
    state: str  # done, stopped, failed, interrupted, running or unfinished
    outcome: Outcome | None
    finished: float | None  # unix seconds
    plan: Mapping[str, Any]
    metrics: Metrics
    events: Events
    evidence: Sequence[Mapping[str, Any]]
    attempts: Sequence[Mapping[str, Any]]
    versions: Mapping[str, Any]
    git: Mapping[str, Any]
    patches: Sequence[Mapping[str, Any]]
    command: str  # command.sh
    config: str  # config.yaml
    notes: Sequence[str]  # what of the record could not be read


def is_run_folder(folder: Path) -> bool:
    """Whether the folder holds anything of a run."""
    return any((folder / name).exists() for name in _FILES)


def read_run(folder: Path) -> RunRecord:
    """Read whatever the folder holds; nothing in it makes this fail."""
    outcome = read_outcome(folder)
    marker = read_json_object(folder / ("FAILED" if outcome and outcome.exit_code else "DONE"))
    finished = _parse_time(marker.get("finished")) if outcome else None
    plan, metrics = read_json_object(folder / "plan.json"), read_metrics(folder / "metrics.jsonl")
    patches = read_object_list(folder / "patches.json")
    return RunRecord(
        folder=folder,
        name=run_name(folder),
        state=_find_state(folder, outcome),
        outcome=outcome,
        finished=finished,
        plan=plan,
        metrics=metrics,
        events=read_events(folder / "events.jsonl", finished),
        evidence=objects(read_json_object(folder / "evidence.json").get("items")),
        attempts=[entry for entry in iterate_objects(folder / "attempts.jsonl") if entry],
        versions=read_json_object(folder / "versions.json"),
        git=read_json_object(folder / "git.json"),
        patches=patches,
        command=read_text(folder / "command.sh"),
        config=read_text(folder / "config.yaml"),
        notes=_find_gaps(folder, plan, metrics),
    )


def read_object_list(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON file that holds a list; [] if there is none."""
    try:
        return objects(json.loads(read_text(path)))
    except (ValueError, RecursionError):
        return []


def read_events(path: Path, finished: float | None) -> Events:
    """Read events.jsonl in one pass; the last phase ended when the run did."""
    events = Events()
    last, first_rank = 0.0, None
    for entry in iterate_objects(path):
        moment = number(entry.get("time")) if entry else None
        if entry is None or moment is None or not 0 <= moment < _LATEST:
            continue
        kind = entry.get("kind")
        if kind == "phase":
            rank = entry.get("rank")
            first_rank = rank if first_rank is None else first_rank
            if rank == first_rank:
                _add_phase(events, entry.get("phase"), moment, last)
        elif kind == "total_steps" and isinstance(entry.get("steps"), int):
            events.total_steps = entry["steps"]
        elif kind == "guard" and len(events.guards) < _MAX_EVENTS:
            events.guards.append(entry)
        elif kind == "warning":
            message = str(entry.get("message"))
            if message in events.warnings or len(events.warnings) < _MAX_EVENTS:
                warned = events.warnings.setdefault(message, Warned(message))
                warned.count += 1
                warned.ranks.add(entry["rank"] if isinstance(entry.get("rank"), int) else 0)
        last = max(last, moment)
    if events.attempts:
        _end_phase(events.attempts[-1], finished)
    return events


def _add_phase(events: Events, name: object, moment: float, last: float) -> None:
    """Begin a phase. An `import` begins an attempt, and the one before ended at its last event at the earliest."""
    if name not in PHASES:
        return
    if name == "import" or not events.attempts:
        if events.attempts:
            _end_phase(events.attempts[-1], last)
        events.attempts.append([])
    attempt = events.attempts[-1]
    if len(attempt) < _MAX_EVENTS:
        _end_phase(attempt, moment)
        attempt.append(Phase(str(name), moment, None))


def _end_phase(attempt: list[Phase], moment: float | None) -> None:
    if attempt and moment is not None and moment >= attempt[-1].began and attempt[-1].ended is None:
        attempt[-1] = Phase(attempt[-1].name, attempt[-1].began, moment)


def _find_state(folder: Path, outcome: Outcome | None) -> str:
    if outcome is None:
        return "running" if is_running(folder) else "unfinished"
    states = {EXIT_DONE: "done", EXIT_STOPPED: "stopped", EXIT_INTERRUPTED: "interrupted"}
    return states.get(outcome.exit_code, "failed")


def _parse_time(text: object) -> float | None:
    try:
        return float(calendar.timegm(time.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ")))
    except ValueError:
        return None


def _find_gaps(folder: Path, plan: Mapping[str, Any], metrics: Metrics) -> list[str]:
    notes = []
    if not plan:
        state = "cannot be read" if (folder / "plan.json").exists() else "is missing"
        notes.append(f"plan.json {state}: the plan, its flags and its command are not shown")
    elif plan.get("schema_version") != SCHEMA_VERSION:
        version = plan.get("schema_version", "no version")
        notes.append(f"the record has schema {version}, this page reads {SCHEMA_VERSION}: some parts may be missing")
    if not (folder / "metrics.jsonl").exists():
        notes.append("metrics.jsonl is missing: no step was logged")
    elif not metrics.steps:
        notes.append("metrics.jsonl has no logged step")
    if metrics.unreadable:
        lines = "1 line" if metrics.unreadable == 1 else f"{metrics.unreadable:,} lines"
        notes.append(f"{lines} of metrics.jsonl could not be read and are left out")
    return notes
