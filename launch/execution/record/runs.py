"""Find the runs below a folder of runs, resolve a run by name, and read the status of each."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.errors import EXIT_INTERRUPTED, Problem, UserError, did_you_mean
from launch.execution.record.folder import Outcome, folder_status, read_outcome
from launch.execution.record.history import JsonLinesReader
from launch.execution.record.lock import Holder, find_holder, lock_path
from launch.execution.record.validation import ValidationRecord, read_validation
from launch.files import open_file, parse_json_lines

SCHEMA_VERSION = 1
# prefixes of folders that hold several runs: a rollout's widths, a bench's repeats, a search's probes
_GROUP_PREFIXES = ("rollout-", "bench-", "tune-")
_RECENT_STEPS = 20  # whose median duration gives the time left
_MOST_NAMES = 8  # in a message


@dataclass(frozen=True)
class RunStatus:
    """The state of a run, from its files and its lock."""

    path: Path
    name: str
    # running, done, failed, stopped (by the user), unfinished (it ended without recording an outcome) or absent
    state: str
    since: float  # unix seconds: when it began (running) or ended
    holder: Holder | None = None
    heartbeat: float | None = None  # seconds since the holder's last one
    phase: str | None = None
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    outcome: Outcome | None = None
    validation: ValidationRecord | None = None  # so far, while it runs

    def as_json(self) -> dict[str, Any]:
        holder, outcome = self.holder, self.outcome
        return {
            "schema_version": SCHEMA_VERSION,
            "run": self.name,
            "folder": str(self.path),
            "state": self.state,
            "since": round(self.since, 3),
            **{name: getattr(holder, name, None) for name in ("pid", "host", "user")},
            "heartbeat_seconds": None if self.heartbeat is None else round(self.heartbeat, 1),
            "phase": self.phase,
            "step": self.step,
            "total_steps": self.total_steps,
            "loss": self.loss,
            "tokens_per_second": self.tokens_per_second,
            "validation": self.validation.as_json() if self.validation else None,
            "seconds_left": None if self.seconds_left is None else round(self.seconds_left, 1),
            **{name: getattr(outcome, name, None) for name in ("exit_code", "cause", "cause_id", "cure")},
        }


def find_runs(runs: Path) -> list[Path]:
    """Return the run folders `<runs>/<stage>/<name>`, and those of a rollout, a bench or a search, sorted by path."""
    plans = [*runs.glob("[!.]*/[!.]*/plan.json")]
    for prefix in _GROUP_PREFIXES:
        plans += runs.glob(f"[!.]*/{prefix}*/[!.]*/plan.json")
    return sorted(plan.parent for plan in plans)


def run_name(folder: Path) -> str:
    """Return `stage/name`, as the command line takes it."""
    parent = folder.parent
    group = f"{parent.parent.name}/" if parent.name.startswith(_GROUP_PREFIXES) else ""
    return f"{group}{parent.name}/{folder.name}"


def command_for(verb: str, folder: Path, *options: str) -> str:
    """Return the command that applies `verb` to a run, for the current folder.

    For example `python -m launch logs sft/gpu8 --follow`.
    """
    name = run_name(folder)
    runs = folder.absolute().parents[name.count("/")]
    location = [] if runs == Path.cwd() / "runs" else [f"runs={runs}"]
    return shlex.join(["python", "-m", "launch", verb, name, *options, *location])


def resolve_run(name: str, runs: Path, submitted: Sequence[Path] = ()) -> Path:
    """Return the run folder that `name` means: a folder, `stage/name`, or a prefix of either that only one run has.

    `submitted`: the folders of runs that may not have begun. Raises UserError: unknown_run, ambiguous_run.
    """
    waiting = {folder.absolute() for folder in submitted}
    for folder in (Path(name).expanduser(), runs / name):
        if (folder / "plan.json").is_file() or (folder / "logs").is_dir() or folder.absolute() in waiting:
            return folder.resolve()
    known = sorted({*find_runs(runs), *submitted})
    exact = [folder for folder in known if folder.name == name]
    matches = exact or [path for path in known if run_name(path).startswith(name) or path.name.startswith(name)]
    if len(matches) == 1:
        return matches[0].resolve()
    names = [run_name(folder) for folder in matches or known]
    if matches:
        message = f"'{name}' matches {len(matches)} runs"
        raise UserError(Problem("ambiguous_run", message, "command line", _list_names(names)))
    cure = did_you_mean(name, [*names, *(folder.name for folder in known)]) or _list_names(names)
    raise UserError(Problem("unknown_run", f"there is no run '{name}' in {runs}", "command line", cure))


def _list_names(names: Sequence[str]) -> str:
    if not names:
        return "set runs=DIR if the runs are in another folder"
    return f"there are {', '.join(names[:_MOST_NAMES])}{', ...' if len(names) > _MOST_NAMES else ''}"


def is_running(folder: Path) -> bool:
    return find_holder(lock_path(folder)) is not None


def read_run_status(folder: Path) -> RunStatus:
    """Return the status of the run in `folder`, from its files and its lock."""
    holder, heartbeat = find_holder(lock_path(folder)) or (None, None)
    outcome = None if holder else read_outcome(folder)
    state = "running" if holder else str(folder_status(folder))
    if outcome is not None and outcome.exit_code == EXIT_INTERRUPTED:
        state = "stopped"
    phase, total_steps = _read_phase_and_total(folder / "events.jsonl")
    steps = _read_recent_steps(folder / "metrics.jsonl")
    last = steps[-1] if steps else {}
    durations = sorted(seconds for step in steps if (seconds := _number(step.get("seconds"))) is not None)
    number = last.get("step")
    seconds_left = None
    if holder and total_steps and number is not None and durations:
        # the median: the first step of each attempt includes its warm-up
        seconds_left = max(0, total_steps - number) * durations[len(durations) // 2]
    return RunStatus(
        path=folder,
        name=run_name(folder),
        state=state,
        since=_find_since(folder, state),
        holder=holder,
        heartbeat=heartbeat,
        phase=phase if holder else None,
        step=number,
        total_steps=total_steps,
        loss=_number(last.get("loss")),
        tokens_per_second=_number(last.get("tokens_per_second")),
        seconds_left=seconds_left,
        outcome=outcome,
        validation=outcome.validation if outcome else read_validation(folder),
    )


def _read_phase_and_total(events: Path) -> tuple[str | None, int | None]:
    phase, total_steps = None, None
    for event in JsonLinesReader(events).read():
        if event.get("kind") == "phase" and event.get("rank") == 0:
            phase = str(event.get("phase"))
        elif event.get("kind") == "total_steps" and isinstance(event.get("steps"), int):
            total_steps = event["steps"]
    return phase, total_steps


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _read_recent_steps(metrics: Path) -> list[dict[str, Any]]:
    """Return the last objects of metrics.jsonl, reading only the end of the file."""
    try:
        with open_file(metrics) as file:
            file.seek(max(0, file.seek(0, 2) - (1 << 16)))
            lines = file.read().split(b"\n")[:-1][-_RECENT_STEPS:]
    except OSError:
        return []
    return [value for value in parse_json_lines(b"\n".join(lines)) if isinstance(value.get("step"), int)]


def _find_since(folder: Path, state: str) -> float:
    """Return when the run began (running) or ended: the time of the file that was written then."""
    names = {"running": ("command.sh", "plan.json"), "done": ("DONE",), "failed": ("FAILED",)}
    for name in names.get(state, ("metrics.jsonl", "events.jsonl", "plan.json")):
        try:
            return (folder / name).stat().st_mtime
        except OSError:
            continue
    return time.time()
