"""Finds the open-instruct checkout, reads its commit, and compares its files with the lock.

No git command runs: the commit is read from the checkout's git files, and the content is compared
by git blob ids, so a copy without `.git` can be verified too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launch.errors import refusal
from launch.resources import IN_CLONE
from launch.upstream.pin.lock import load_lock
from launch.worker.finding import Finding
from launch.worker.wording import count_of

DIR_VARIABLE = "OPEN_INSTRUCT_DIR"
DIR_KEY = "upstream.dir"
SUBMODULE = "external/open-instruct"

# A checkout has the package's shared module and at least one of these entry scripts, which cover
# old commits too.
_SHARED_MODULE = "open_instruct/utils.py"
_ENTRY_SCRIPTS = (
    "open_instruct/finetune.py",
    "open_instruct/dpo_tune_cache.py",
    "open_instruct/grpo_fast.py",
    "open_instruct/sft_deepspeed.py",
    "open_instruct/dpo_deepspeed.py",
)
_OBJECT_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_SYMBOLIC_REFS = 5  # git's own limit (refs.c, SYMREF_MAXDEPTH)


@dataclass(frozen=True)
class Checkout:
    """A tree of open-instruct on this machine."""

    root: Path
    commit: str | None  # None without readable git data
    # locked files that differ from the pin or are missing, relative to `root`
    differing: tuple[str, ...]
    # the setting that names it: upstream.dir, OPEN_INSTRUCT_DIR or the submodule's path
    found_by: str

    @property
    def matches_pin(self) -> bool:
        """Whether no locked file differs and the commit, if known, is the pin."""
        return not self.differing and self.commit in (None, load_lock().pin)

    def describe(self) -> str:
        """Describe for a plan: the tree, its commit, and how it compares with the pin."""
        place = f"in {self.root} (from {self.found_by})"
        pin = load_lock().pin
        pinned = f"the pinned commit {pin[:9]}"
        if self.matches_pin:
            note = "" if self.commit else ", verified by its content (no .git),"
            return f"open-instruct at {pinned}{note} {place}"
        count = len(self.differing)
        verb = "differs" if count == 1 else "differ"
        difference = f"{count_of(count, 'file')} {verb} from the lock"
        names = ", ".join([*self.differing[:3], *(["..."] if count > 3 else [])])
        if self.commit is None:
            return (
                f"open-instruct of an unknown commit {place}, not {pinned}: {difference}: {names}"
            )
        if self.commit == pin:
            return f"open-instruct at {pinned} {place}, but {difference}: {names}"
        commit = f"the commit {self.commit[:9]}"
        return f"open-instruct at {commit} {place}, not at {pinned}; {difference}"


def find_checkout(
    explicit: str | None, environ: Mapping[str, str], project: Path, named: str = DIR_KEY
) -> Checkout | None:
    """Find the open-instruct checkout: `explicit`, else $OPEN_INSTRUCT_DIR, else the project's
    submodule.

    `named`: what the user typed to set `explicit`, for messages.
    Returns None if neither is set and the submodule is absent or empty.
    Raises UserError: not_open_instruct (a folder that is set is not a checkout).
    """
    folder = explicit
    found_by = named
    if not folder:
        folder = environ.get(DIR_VARIABLE)
        found_by = DIR_VARIABLE
    if folder:
        root = Path(folder).expanduser().absolute()
        _require_checkout(root, found_by)
    else:
        root = project / SUBMODULE
        found_by = SUBMODULE
        if not is_checkout(root):
            return None
    differing = differing_files(root, load_lock().files)
    return Checkout(root, read_commit(root), differing, found_by)


def is_checkout(root: Path) -> bool:
    """Return whether the folder has open-instruct's package with at least one entry script."""
    has_script = any((root / script).is_file() for script in _ENTRY_SCRIPTS)
    return has_script and (root / _SHARED_MODULE).is_file()


def fetch_command() -> str:
    """Return the command that gets the pin: the submodule of a clone of launch, elsewhere a clone
    of open-instruct.
    """
    if IN_CLONE:
        return f"git submodule update --init {SUBMODULE}"
    clone = "git clone https://github.com/allenai/open-instruct"
    return f"{clone} && git -C open-instruct checkout {load_lock().pin}"


def missing_checkout_problem() -> Finding:
    """Return the problem for a command that needs a checkout where `find_checkout` returns None."""
    cure = f"fetch the pin: {fetch_command()}, or set {DIR_KEY}=DIR or ${DIR_VARIABLE}"
    return Finding.error("no_upstream", "no open-instruct checkout found", cure=cure)


def read_commit(root: Path) -> str | None:
    """Read the commit of `root`'s HEAD from its git files; None if they are missing or unreadable.

    Supports a `.git` folder, a `.git` file (`gitdir:`, in submodules and worktrees), packed refs
    and a detached HEAD.
    """
    pointer = _read_stripped(root / ".git") or "gitdir: .git"
    git_dir = root / pointer.removeprefix("gitdir:").strip()
    # the folder that worktrees share
    common = git_dir / (_read_stripped(git_dir / "commondir") or "")
    content: str | None = "ref: HEAD"
    for _ in range(_MAX_SYMBOLIC_REFS):
        if content and content.startswith("ref:"):
            name = content.removeprefix("ref:").strip()
            content = _read_ref(git_dir, common, name)
    return content if content and _OBJECT_ID.fullmatch(content) else None


def differing_files(root: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths of `files` ({path: git blob id}) that `root` lacks or has with other content."""
    return tuple(
        path for path, expected in files.items() if not _has_blob_id(root / path, expected)
    )


def _require_checkout(root: Path, found_by: str) -> None:
    if is_checkout(root):
        return
    if not root.exists():
        message = f"{root} does not exist"
    elif not root.is_dir():
        message = f"{root} is not a folder"
    else:
        message = (
            f"{root} is not an open-instruct checkout: it needs {_SHARED_MODULE} and an "
            "entry script"
        )
    where = f"${found_by}" if found_by == DIR_VARIABLE else f"{found_by}={root}"
    cure = f"set it to the folder that contains open_instruct/, or fetch the pin: {fetch_command()}"
    raise refusal("not_open_instruct", message, where, cure)


def blob_id(content: bytes) -> str:
    """Return the git blob id of a file's content; it compares a folder without `.git` with a
    commit.
    """
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _has_blob_id(path: Path, expected: str) -> bool:
    try:
        content = path.read_bytes()
    except OSError:
        return False
    if blob_id(content) == expected:
        return True
    # git on Windows may check files out with CRLF; the blob has LF
    return b"\r\n" in content and blob_id(content.replace(b"\r\n", b"\n")) == expected


def _read_ref(git_dir: Path, common: Path, name: str) -> str | None:
    """Return the content of a ref: a commit, or `ref: ` and another name; None if it is missing."""
    for folder in (git_dir, common):
        content = _read_stripped(folder / name)
        if content:
            return content
    return _read_packed_ref(common, name)


def _read_packed_ref(common: Path, name: str) -> str | None:
    for line in (_read_stripped(common / "packed-refs") or "").splitlines():
        object_id, _, ref = line.partition(" ")
        if ref == name:
            return object_id
    return None


def _read_stripped(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
