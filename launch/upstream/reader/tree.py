"""Sources of Python files: a folder, a git commit (without a checkout), or the folders of installed packages."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from launch.errors import Problem, UserError
from launch.external import run_command


class UnreadableSourceError(Exception):
    """Static reading can't follow something in the source: the reason, and its `file:line`.

    Internal to the reader: a reason about one field ends up in `Field.unknown`, one about the parser as a whole in
    `Schema.unknown`, and one that leaves nothing to check against becomes a `UserError`.
    """

    def __init__(self, reason: str, where: str | None = None) -> None:
        self.reason = reason
        self.where = where
        super().__init__(f"{where}: {reason}" if where else reason)


class Tree(ABC):
    """Read access to source files by POSIX path relative to the tree's root."""

    label: str  # the tree's name in messages

    @abstractmethod
    def read_bytes(self, path: str) -> bytes | None:
        """Return the file's content, None if it doesn't exist. Raises UnreadableSourceError if it can't be opened."""

    def read(self, path: str) -> str | None:
        """Return the file's text, None if it doesn't exist. Raises UnreadableSourceError if it isn't UTF-8."""
        content = self.read_bytes(path)
        return None if content is None else decode(content, path)


def blob_id(content: bytes) -> str:
    """Return the git blob id of a file's content; it compares a folder without `.git` with a commit."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def decode(content: bytes, path: str) -> str:
    """Decode UTF-8 text, dropping a byte order mark. Raises UnreadableSourceError for anything else."""
    if b"\0" in content:
        raise UnreadableSourceError("the file is binary, not Python source", path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableSourceError(f"the file isn't UTF-8 text (byte {error.start})", path) from None


def parse_source(source: str | bytes, path: str) -> ast.Module:
    """Parse Python source. Raises UnreadableSourceError with the line of a syntax error (for this Python version)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an invalid escape: not the user's code
            return ast.parse(source, path)
    except SyntaxError as error:
        raise UnreadableSourceError(f"the file doesn't parse ({error.msg})", f"{path}:{error.lineno or 1}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableSourceError(f"the file doesn't parse ({type(error).__name__})", path) from None


class FolderTree(Tree):
    """A checkout, with or without `.git`: the folder's current content."""

    def __init__(self, path: str | Path) -> None:
        self.root = Path(path)
        self.label = str(self.root)

    def read_bytes(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
            return None
        except OSError as error:
            raise UnreadableSourceError(f"the file can't be opened ({error.strerror})", path) from None


class PackageTree(Tree):
    """Installed packages: the folders of a search path (`site-packages`, ...) in order. Nothing is imported."""

    def __init__(self, folders: Sequence[str | Path]) -> None:
        self.folders = tuple(FolderTree(folder) for folder in folders)
        self.label = os.pathsep.join(folder.label for folder in self.folders)

    def read_bytes(self, path: str) -> bytes | None:
        contents = (folder.read_bytes(path) for folder in self.folders)
        return next((content for content in contents if content is not None), None)


class GitTree(Tree):
    """The files of one commit, read from the object store through one `git cat-file --batch` process.

    The process starts at the first read and ends with `close()`, the `with` block, or the object.
    Raises UserError: unknown_commit, git_missing.
    """

    def __init__(self, repo: str | Path, commit: str) -> None:
        self.repo = Path(repo)
        self.commit = self._resolve(commit)
        self.label = f"{self.repo}@{self.commit[:8]}"
        self._process: subprocess.Popen[bytes] | None = None

    def read_bytes(self, path: str) -> bytes | None:
        if "\n" in path:
            return None
        process = self._start_process()
        requests, responses = process.stdin, process.stdout
        assert requests is not None
        assert responses is not None
        try:
            requests.write(f"{self.commit}:{path}\n".encode())
            requests.flush()
            header = responses.readline().split()
        except OSError as error:
            raise UnreadableSourceError(f"git cat-file ended early ({error.strerror})", path) from None
        if len(header) < 3 or not header[-1].isdigit():  # "<name> missing", or the process has ended
            return None
        content = _read_exactly(responses, int(header[-1]), path)
        _read_exactly(responses, 1, path)  # the line feed that ends each response
        return content if header[-2] == b"blob" else None

    def close(self) -> None:
        if self._process is not None:
            _wait_for_exit(self._process)
            self._process = None

    def __enter__(self) -> GitTree:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _resolve(self, commit: str) -> str:
        try:
            command = ["git", "-C", str(self.repo), "rev-parse", "--verify", "--quiet", "--end-of-options"]
            result = run_command([*command, f"{commit}^{{commit}}"], env=_git_environment())
        except OSError:
            raise UserError(Problem("git_missing", "git can't be started", cure="install git")) from None
        if result.returncode != 0:
            message = f"{self.repo} has no commit '{commit}'"
            raise UserError(Problem("unknown_commit", message, cure="fetch it, or name another commit"))
        return result.stdout.strip()

    def _start_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                ["git", "-C", str(self.repo), "cat-file", "--batch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_git_environment(),
            )
            weakref.finalize(self, _wait_for_exit, self._process)
        return self._process


def _git_environment() -> dict[str, str]:
    # Keep a partial clone from fetching a missing blob over the network.
    return {**os.environ, "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}


def _read_exactly(stream: IO[bytes], size: int, path: str) -> bytes:
    content = stream.read(size)
    if len(content) != size:
        raise UnreadableSourceError("git cat-file ended early", path)
    return content


def _wait_for_exit(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
