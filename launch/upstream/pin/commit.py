"""What git knows about commits of open-instruct: their files, dates and subjects."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launch.errors import refusal
from launch.external import run_command

_PULL_REQUEST = re.compile(r"\(#(\d+)\)")
_LOG_FORMAT = "--format=%H%x00%cs%x00%s"


@dataclass(frozen=True)
class Commit:
    """A commit of upstream's main branch."""

    id: str
    date: str  # YYYY-MM-DD
    subject: str

    @property
    def pull_request(self) -> int | None:
        """The last `(#N)` of the subject."""
        numbers = _PULL_REQUEST.findall(self.subject)
        return int(numbers[-1]) if numbers else None


def find_commit(repo: Path, name: str) -> Commit:
    """Return the commit of that name. Raises UserError: unknown_commit, git_missing."""
    try:
        result = _git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except OSError:
        raise refusal("git_missing", "git can't be started", cure="install git") from None
    if result.returncode != 0:
        message = f"{repo} has no commit '{name}'"
        raise refusal("unknown_commit", message, cure="fetch it, or name another commit")
    return Commit(*_git(repo, "log", "-1", _LOG_FORMAT, result.stdout.strip()).stdout.strip("\n").split("\0"))


def last_change(repo: Path, text: str, base: str, tip: str) -> Commit | None:
    """Return the last commit of `base`..`tip` that added or removed the text in the package; None if none did."""
    places = (f"{base}..{tip}", "--", "open_instruct/")
    lines = _git(repo, "log", "--first-parent", "-1", _LOG_FORMAT, f"-S{text}", *places).stdout.strip("\n")
    return Commit(*lines.split("\0")) if lines else None


def ancestors(repo: Path, tip: str) -> set[str]:
    return set(_git(repo, "rev-list", "--first-parent", tip).stdout.split())


@contextmanager
def extracted(repo: Path, commit: str) -> Iterator[Path]:
    """Give a folder with the package of the commit while the block runs. Raises UserError: git_failed."""
    with tempfile.TemporaryDirectory(prefix="launch-commit-") as folder:
        archive = Path(folder, "commit.tar")
        result = _git(repo, "archive", "--format=tar", f"--output={archive}", commit, "open_instruct")
        if result.returncode != 0:
            message = f"git archive failed in {repo}: {result.stderr.strip().partition(chr(10))[0]}"
            raise refusal("git_failed", message, cure="nothing was changed")
        root = Path(folder, "open-instruct")
        root.mkdir()
        run_command(["tar", "-xf", str(archive), "-C", str(root)], check=True)
        yield root


def _git(repo: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Keep a partial clone from fetching a missing blob over the network.
    environment = {**os.environ, "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
    return run_command(["git", "-C", str(repo), *arguments], env=environment)
