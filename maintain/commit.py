"""What git knows about commits of open-instruct: their files, dates and subjects."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launch.errors import UserError, refusal
from launch.external import run_command

_PULL_REQUEST = re.compile(r"\(#(\d+)\)")
_LAST = ("log", "-1", "--format=%H%x00%cs%x00%s")


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
    message = f"{repo} has no commit '{name}'"
    unknown = refusal("unknown_commit", message, cure="fetch it, or name another commit")
    commit = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    id = run_git(repo, *commit, failure=unknown).strip()
    return Commit(*run_git(repo, *_LAST, id).strip("\n").split("\0"))


def last_change(repo: Path, text: str, base: str, tip: str) -> Commit | None:
    """Return the last commit of `base`..`tip` that added or removed the text in the package.

    It is None if no commit did.
    """
    search = ("--first-parent", f"-S{text}", f"{base}..{tip}", "--", "open_instruct/")
    try:
        line = run_git(repo, *_LAST, *search)
    except UserError:  # a partial clone lacks the files of older commits
        return None
    return Commit(*line.strip("\n").split("\0")) if line else None


def commits_without(repo: Path, tip: str, other: str) -> list[Commit]:
    """Return the commits of `tip`'s main branch that `other` does not contain, newest first; none if
    the clone lacks one of the two.
    """
    listed = ("log", "--first-parent", "--format=%H%x00%cs%x00%s", f"{other}..{tip}")
    try:
        lines = run_git(repo, *listed).splitlines()
    except UserError:
        return []
    return [Commit(*line.split("\0")) for line in lines]


def ancestors(repo: Path, tip: str) -> set[str]:
    """Return the commits of the main branch up to `tip`."""
    return set(run_git(repo, "rev-list", "--first-parent", tip).split())


@contextmanager
def extracted(repo: Path, commit: str) -> Iterator[Path]:
    """Yield a folder with the package of the commit, which is removed afterwards.

    Raises UserError: git_failed.
    """
    with tempfile.TemporaryDirectory(prefix="launch-commit-") as folder:
        archive = Path(folder, "commit.tar")
        root = Path(folder, "open-instruct")
        run_git(repo, "archive", f"--output={archive}", commit, "open_instruct")
        shutil.unpack_archive(archive, root)
        yield root


def run_git(repo: Path, *arguments: str, failure: UserError | None = None) -> str:
    """Return what git prints. Raises UserError: git_missing, and git_failed or else `failure`."""
    # Keep a partial clone from fetching a missing blob over the network.
    environment = {**os.environ, "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        result = run_command(["git", "-C", str(repo), *arguments], env=environment)
    except OSError:
        raise refusal("git_missing", "git can't be started", cure="install git") from None
    if result.returncode == 0:
        return result.stdout
    reason = result.stderr.strip().partition("\n")[0] or f"exit code {result.returncode}"
    message = f"git {arguments[0]} failed in {repo}: {reason}"
    raise failure or refusal("git_failed", message, cure="nothing was changed")
