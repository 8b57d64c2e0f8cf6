"""Write the folder of one run.

Secrets are masked, and files are written atomically and durably. The disk space of DONE and FAILED
is reserved from the start.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.errors import refusal
from launch.execution.record.outcome import Outcome
from launch.external import failure_reason, run_command
from launch.files import find_link, reserve, write_file, write_json, write_yaml
from launch.host.interpreter import InterpreterError, inventory
from launch.host.nvidia import Gpu, find_gpus
from launch.redact import process_redactor
from launch.worker.json_codec import to_json, versioned

_RESERVED = "outcome.reserved"  # becomes DONE or FAILED
_RESERVED_BYTES = 1 << 15
CONVERTED = (
    "converted"  # of a checkpoint for an attempt at another width; it has links to the checkpoint
)
# W&B writes links into its folder, and puts new ones in their place.
_OWN_LINKS = ("wandb", CONVERTED)


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

        Raises UserError: linked_record.
        """
        self.refuse_links()
        self.logs.mkdir(parents=True, exist_ok=True)
        for name in ("DONE", "FAILED"):
            (self.path / name).unlink(missing_ok=True)
        reserve(self.path / _RESERVED, _RESERVED_BYTES)

    def refuse_links(self) -> None:
        """Refuse a link in the folder or below it: what the run writes would go to where it points.

        A link in place of the folder itself, or above, is the user's own. Raises UserError:
        linked_record.
        """
        link = find_link(self.path, skipped=_OWN_LINKS)
        if link is not None:
            message = f"{link} is a link, and the run would write to where it points"
            raise refusal("linked_record", message, None, "remove it, or use another name=")

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write config.yaml, the resolved configuration."""
        write_yaml(self.path / "config.yaml", config, 0o644, durable=True)

    def write_command(
        self, argv: Sequence[str], env: Mapping[str, str], unset: Sequence[str] = ()
    ) -> None:
        """Write command.sh. Of the environment it has only what the plan sets (`env`) and
        unsets.
        """
        script = render_command_script(argv, env, unset)
        write_file(self.path / "command.sh", script, 0o755, durable=True)

    def write_versions(self, python: str) -> None:
        """Write versions.json, read from the trainer's interpreter."""
        self.write_json("versions.json", versioned(read_versions(python)))

    def write_git(self, launcher: Path, upstream: Path | None) -> None:
        """Write git.json: the launcher's repository, and the open-instruct checkout where there is
        one.
        """
        launcher_state = read_git_state(launcher, must_hold="launch/__init__.py")
        states: dict[str, Any] = {"launch": launcher_state}
        if upstream is not None:
            states["open-instruct"] = read_git_state(upstream)
        self.write_json("git.json", versioned(states))

    def finish(self, outcome: Outcome) -> None:
        """Write DONE or FAILED, in a new folder if this one was removed. An interrupted run is
        FAILED (130).

        Raises OSError when neither can be written.
        """
        finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        fields = to_json(replace(outcome, seconds=round(outcome.seconds, 3), finished=finished))
        known = {
            field: value
            for field, value in fields.items()
            if value not in (None, []) or field == "last_loss"
        }
        self.path.mkdir(parents=True, exist_ok=True)
        name = "FAILED" if outcome.exit_code else "DONE"
        other = "DONE" if outcome.exit_code else "FAILED"
        (self.path / other).unlink(missing_ok=True)
        self.write_json(name, versioned(known), reserved=self.path / _RESERVED)

    def write_json(self, name: str, value: Any, reserved: Path | None = None) -> None:
        """Write a file of the run durably. On a full disk it takes the space of `reserved`."""
        write_json(self.path / name, value, 0o644, durable=True, reserved=reserved)


_TIMEOUT = 30  # seconds


def read_versions(python: str) -> dict[str, Any]:
    """Return what is installed for the interpreter `python`, and describe the machine.

    The key `problems` lists what could not be read.
    """
    versions: dict[str, Any] = {"platform": platform.platform(), "machine": platform.machine()}
    problems: list[str] = []
    try:
        installed = inventory(python)
        versions |= {"python": installed.python, "packages": installed.packages}
    except InterpreterError as error:
        problems.append(f"packages: {error}")
    gpus = find_gpus(os.environ)
    if not gpus.why:
        versions["gpus"] = [
            {"name": gpu.name, "memory": _describe_memory(gpu)} for gpu in gpus.present
        ]
        versions["driver"] = gpus.present[0].driver if gpus.present else None
    elif gpus.installed:
        problems.append(gpus.why)
    if problems:
        versions["problems"] = problems
    return versions


def _describe_memory(gpu: Gpu) -> str:
    return "[N/A]" if gpu.total is None else f"{gpu.total:.0f} MiB"


def read_git_state(folder: Path, must_hold: str = "") -> dict[str, Any]:
    """Return the commit of the git work tree whose top is `folder`, and whether it has uncommitted
    changes.

    `must_hold` is a path below the top, without which this is another repository. Without git, or
    outside a repository, `commit` is None and `why` gives the reason.
    """
    unknown: dict[str, Any] = {"commit": None, "dirty": None}
    git = ["git", "--no-optional-locks", "-C", str(folder)]
    printed, problem = _run_command([*git, "rev-parse", "--show-toplevel", "HEAD"])
    if printed is None:
        return unknown | {"why": problem}
    *root_lines, commit = printed.splitlines()  # the name of a folder may contain a line break
    root = Path("\n".join(root_lines))
    is_top = root.resolve() == folder.resolve()
    if not is_top or not (root / must_hold).exists():
        return unknown | {"why": "not the top of a git work tree"}
    changes, _ = _run_command(
        [*git, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all"]
    )
    return {"commit": commit, "dirty": None if changes is None else bool(changes.strip())}


def _run_command(argv: Sequence[str]) -> tuple[str | None, str]:
    """Return what a command prints, or None and why it failed."""
    try:
        process = run_command(argv, timeout=_TIMEOUT)
    except FileNotFoundError:
        return None, "not found"
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, type(error).__name__
    if process.returncode:
        return None, failure_reason(process)
    return process.stdout, ""


def render_command_script(argv: Sequence[str], env: Mapping[str, str], unset: Sequence[str]) -> str:
    """Return the script's text, without secrets: a variable that holds one must be in the caller's
    environment.

    `unset` has names, or prefixes that end in `*`.
    """
    from launch.planning.command import quote_argument  # slow to import, and readers do not need it

    redactor = process_redactor()
    lines = ["#!/usr/bin/env bash", "set -euo pipefail", ""]
    for name in unset:
        target = f"${{!{name[:-1]}@}}" if name.endswith("*") else name
        lines.append(f"unset {target}")
    for name, value in env.items():
        clean = redactor.redact_value(name, value)
        if clean == value:
            lines.append(f"export {name}={shlex.quote(value)}")
        else:
            lines.append(
                f': "${{{name}:?export it first; its value is a secret and not stored here}}"'
            )
    arguments = [quote_argument(argument) for argument in redactor.redact_argv(argv)]
    command = " \\\n    ".join(_split_lines(arguments))
    return "\n".join([*lines, "", command, ""])


def _split_lines(arguments: Sequence[str]) -> list[str]:
    """Put each flag and its values on a line of their own."""
    lines: list[list[str]] = [[]]
    for index, argument in enumerate(arguments):
        is_negative_number = argument[1:2].isdigit()
        if index and argument.startswith("-") and not is_negative_number:
            lines.append([])
        lines[-1].append(argument)
    return [" ".join(line) for line in lines]
