"""Reads the gitlink: the commit of the open-instruct submodule in the project's git index."""

from __future__ import annotations

from pathlib import Path

from launch.external import run_command
from launch.upstream.pin.checkout import SUBMODULE


def read_gitlink(project: Path) -> str | None:
    """Read the submodule's commit from the project's git index; None without such an index."""
    try:
        listed = run_command(["git", "-C", str(project), "ls-files", "--stage", "--", SUBMODULE])
    except OSError:  # git is not installed
        return None
    mode, _, rest = listed.stdout.partition(" ")
    return rest.split()[0] if mode == "160000" else None
