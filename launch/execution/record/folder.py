"""Write and read the folder of one run.

Files are redacted and written atomically and durably. Disk space for DONE and FAILED is reserved from the start.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from launch.execution.record.command_script import render_command_script
from launch.execution.record.validation import ValidationRecord, parse_validation
from launch.execution.record.versions import read_git_state, read_versions
from launch.files import load_json, reserve, write_file, write_json, write_yaml
from launch.worker.json_codec import SCHEMA_VERSION, from_json

FolderStatus = Literal["absent", "unfinished", "done", "failed"]
_RESERVED = "outcome.reserved"  # becomes DONE or FAILED
_RESERVED_BYTES = 1 << 15


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    exit_code: int  # of launch.errors
    seconds: float  # wall time
    steps: int  # optimizer steps done: as the worker counted them, else the last logged one
    last_loss: float | None
    planned_steps: int | None = None  # as the trainer reported them
    samples: int | None = None  # trained in this attempt by all ranks; None if nothing counts them
    ended_processes: int = 0  # that the tear-down had to end
    cause: str | None = None  # one sentence
    detail: tuple[str, ...] = ()  # at most 15 lines
    cause_id: str | None = None  # of a known cause, as is `cure`
    cure: str | None = None
    guard: Mapping[str, Any] | None = None  # the verdict that stopped the run: `id`, `message`, `numbers`
    checkpoint: str | None = None  # the folder of the last good one, where a guard stopped the run
    stacks: tuple[str, ...] = ()  # files with each rank's stack
    validation: ValidationRecord | None = None  # of a run that evaluated while it trained


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run. Nothing is written before `create`."""

    path: Path  # runs/<stage>/<name>

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def stacks(self) -> Path:
        """Where the stacks of a stalled run's ranks are written, as `rank-N.txt`."""
        return self.path / "stacks"

    def create(self) -> None:
        """Create the folder and those below it, except the model folder, which the trainer creates.

        An earlier attempt's DONE or FAILED is removed: from now on the run is unfinished.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        for name in ("DONE", "FAILED"):
            (self.path / name).unlink(missing_ok=True)
        reserve(self.path / _RESERVED, _RESERVED_BYTES)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write config.yaml, the resolved configuration."""
        write_yaml(self.path / "config.yaml", config, 0o644, durable=True)

    def write_command(
        self, argv: Sequence[str], env: Mapping[str, str], unset: Sequence[str] = (), cwd: Path | None = None
    ) -> None:
        """Write command.sh. Of the environment it has only what the plan sets (`env`) and unsets."""
        write_file(self.path / "command.sh", render_command_script(argv, env, unset, cwd), 0o755, durable=True)

    def write_versions(self, python: str) -> None:
        """Write versions.json, read from the trainer's interpreter."""
        self.write_json("versions.json", {"schema_version": SCHEMA_VERSION, **read_versions(python)})

    def write_git(self, launcher: Path, upstream: Path | None) -> None:
        """Write git.json: the launcher's repository, and the open-instruct checkout where there is one."""
        states: dict[str, Any] = {"launch": read_git_state(launcher, must_hold="launch/__init__.py")}
        if upstream is not None:
            states["open-instruct"] = read_git_state(upstream)
        self.write_json("git.json", {"schema_version": SCHEMA_VERSION, **states})

    def finish(self, outcome: Outcome) -> None:
        """Write DONE or FAILED, in a new folder if this one was removed. An interrupted run is FAILED (130).

        Raises OSError when neither can be written.
        """
        content: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "exit_code": outcome.exit_code,
            "seconds": round(outcome.seconds, 3),
            "steps": outcome.steps,
            "last_loss": outcome.last_loss,
            "ended_processes": outcome.ended_processes,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        optional = {name: getattr(outcome, name) for name in ("planned_steps", "samples", "cause_id", "cure")}
        content |= {name: value for name, value in optional.items() if value is not None}
        if outcome.validation is not None:
            content["validation"] = outcome.validation.as_json()
        if outcome.cause:
            content |= {"cause": outcome.cause, "detail": list(outcome.detail)}
        if outcome.guard:
            content |= {"guard": outcome.guard, "checkpoint": outcome.checkpoint, "stacks": list(outcome.stacks)}
        self.path.mkdir(parents=True, exist_ok=True)
        name, other = ("FAILED", "DONE") if outcome.exit_code else ("DONE", "FAILED")
        (self.path / other).unlink(missing_ok=True)
        self.write_json(name, content, reserved=self.path / _RESERVED)

    def write_json(self, name: str, value: Any, reserved: Path | None = None) -> None:
        """Write a file of the run durably; `reserved` is a file that gives way."""
        write_json(self.path / name, value, 0o644, durable=True, reserved=reserved)


def folder_status(folder: Path) -> FolderStatus:
    """Return the state of the run: absent (no folder, or an empty one), done, failed or unfinished.

    An empty or unreadable DONE or FAILED counts as none.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return "absent"
    if _is_marked(folder / "DONE"):
        return "done"
    return "failed" if _is_marked(folder / "FAILED") else "unfinished"


def _is_marked(marker: Path) -> bool:
    try:
        return isinstance(load_json(marker), dict)
    except (OSError, ValueError):
        return False


def read_outcome(folder: Path) -> Outcome | None:
    """Return the outcome in DONE or FAILED; None if there is no readable one."""
    for name in ("DONE", "FAILED"):
        try:
            content = load_json(folder / name)
            validation = parse_validation(content.get("validation"))
            outcome = replace(from_json(Outcome, {**content, "validation": None}), validation=validation)
        except (OSError, ValueError, AttributeError):
            continue
        if (outcome.exit_code == 0) == (name == "DONE"):
            return outcome
    return None


def describe_cure(outcome: Outcome) -> str:
    """Return the line that shows the cure of a known cause."""
    possibly = "possibly: "
    text = str(outcome.cure)
    line = text if text.startswith(possibly) else f"cure: {text}"
    return f"{line} [{outcome.cause_id}]" if outcome.cause_id else line
