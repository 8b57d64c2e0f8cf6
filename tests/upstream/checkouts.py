"""The open-instruct checkout and the packages that the tests read, where this machine has them."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from launch.upstream.pin.checkout import SUBMODULE, is_checkout
from tests.paths import ROOT

PROJECT = ROOT
SITE_PACKAGES = [Path(sysconfig.get_paths()[name]) for name in ("purelib", "platlib")]


def checkout() -> Path | None:
    """The checkout that OPEN_INSTRUCT_DIR names, else the project's submodule."""
    named = os.environ.get("OPEN_INSTRUCT_DIR")
    root = Path(named) if named else PROJECT / SUBMODULE
    return root if is_checkout(root) else None


def has_commit(root: Path, commit: str) -> bool:
    command = ["git", "-C", str(root), "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def import_transformations(root: Path) -> Any:
    """Import the module of a checkout that tokenises; its packages for GRPO may be missing."""
    from launch.worker.patches.olmo_core import PlaceholderFinder, find_missing

    sys.meta_path.append(PlaceholderFinder(find_missing()))
    sys.path.insert(0, str(root))
    try:
        from open_instruct import dataset_transformation
    finally:
        sys.meta_path.pop()
        del sys.path[0]
    return dataset_transformation
