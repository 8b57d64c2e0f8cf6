"""Runs Slurm's commands, with a time limit and retries; parses and formats Slurm's durations.

Durations are MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS or UNLIMITED.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launch.errors import UserError, refusal
from launch.external import run_command
from launch.terminal import notify

_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?")
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+)")


def parse_duration(text: str) -> float | None:
    """Parse a duration into seconds; infinity for no limit.

    None is returned for text that is not a duration (N/A, NOT_SET, INVALID).
    """
    text = text.strip()
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return math.inf
    match = _DAYS.fullmatch(text)
    if match:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    match = _CLOCK.fullmatch(text)
    if match:
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return (hours * 60 + minutes) * 60 + seconds
    return None


def format_time_limit(seconds: float) -> str:
    """Format seconds as Slurm writes a time limit, D-HH:MM:SS."""
    days, rest = divmod(round(seconds), 86400)
    return f"{days}-{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


TIMEOUT = 30.0  # seconds; a busy controller is slow
SHORT_TIMEOUT = 10.0  # seconds, where a user waits for information that can be left out
_PAUSES = (1.0, 3.0)  # seconds before the second and the third try
# What Slurm's commands print when the controller is busy, restarting or unreachable
_TRANSIENT = re.compile(
    r"unable to contact slurm controller|socket timed out|connection (refused|timed out)"
    r"|zero bytes were transmitted"
    r"|resource temporarily unavailable|slurm temporarily unable|controller is unavailable|munge",
    re.IGNORECASE,
)
# Variables with defaults for options of the commands that query and cancel: a user's filter must
# not apply to the commands of launch.
_FILTERS = ("SQUEUE_", "SINFO_", "SCANCEL_", "SCONTROL_")
# What they print where no cluster is configured; a retry does not help.
_UNCONFIGURED = re.compile(
    r"could not establish a configuration source|dns srv lookup failed", re.IGNORECASE
)


@dataclass(frozen=True)
class SlurmResult:
    """What one of Slurm's commands returned."""

    status: int | None  # None: the command timed out
    output: str
    error: str

    @property
    def is_transient(self) -> bool:
        """Whether a retry may help."""
        return self.status is None or (self.status != 0 and bool(_TRANSIENT.search(self.error)))

    @property
    def is_unreachable(self) -> bool:
        """Whether no controller responded."""
        return self.is_transient or (self.status != 0 and bool(_UNCONFIGURED.search(self.error)))

    @property
    def message(self) -> str:
        """Slurm's message, on one line."""
        if self.status is None:
            return "no response"
        lines = []
        for line in (self.error or self.output).splitlines():
            text = re.sub(r"^\w+: (error: )?", "", line).strip()
            if text:
                lines.append(text)
        if not lines:
            return f"exit status {self.status}"
        return "; ".join(lines)[:500]


def run_once(
    argv: Sequence[str], timeout: float = TIMEOUT, environ: Mapping[str, str] | None = None
) -> SlurmResult:
    """Run one of Slurm's commands, with this process's variables or with `environ`, but without
    default options.

    The user's defaults for sbatch (SBATCH_) stay. Raises UserError: no_slurm (it is not installed).
    """
    variables = os.environ if environ is None else environ
    env = {name: value for name, value in variables.items() if not name.startswith(_FILTERS)}
    try:
        # Ctrl-C must not end sbatch while Slurm accepts the job.
        done = run_command(argv, timeout=timeout, env=env, own_session=True)
    except FileNotFoundError:
        message = f"{argv[0]} is not installed on this machine"
        cure = (
            "submit from a login node of the cluster; dry_run=true, for a rollout submit=all "
            "too, only writes files"
        )
        raise refusal("no_slurm", message, None, cure) from None
    except subprocess.TimeoutExpired:
        return SlurmResult(None, "", "")
    return SlurmResult(done.returncode, done.stdout, done.stderr)


def try_command(argv: Sequence[str]) -> str | None:
    """Return the output of one of Slurm's commands.

    None is returned if it is not installed, fails or times out.
    """
    try:
        result = run_once(argv, SHORT_TIMEOUT)
    except UserError:
        return None
    return result.output if result.status == 0 else None


def report_retry(command: str, result: SlurmResult) -> None:
    """Print that one of Slurm's commands got no response and is repeated.

    That can take more than a minute.
    """
    notify(f"Slurm does not respond to {command} ({result.message}); trying again")


def query_slurm(
    argv: Sequence[str], timeout: float = TIMEOUT, environ: Mapping[str, str] | None = None
) -> SlurmResult:
    """Run a command that may safely be repeated, and retry it while Slurm is busy.

    Raises UserError: no_slurm; slurm_unresponsive (Slurm never responds, or no cluster is
    configured).
    """
    result = run_once(argv, timeout, environ)
    for pause in _PAUSES:
        if not result.is_transient:
            break
        report_retry(argv[0], result)
        time.sleep(pause)
        result = run_once(argv, timeout, environ)
    if result.is_unreachable:
        message = f"Slurm does not respond to {argv[0]}: {result.message}"
        cure = "run this on a login node of the cluster"
        if result.is_transient:
            cure = "try again later"
        raise refusal("slurm_unresponsive", message, None, cure)
    return result
