"""Where files are: the project's own, in a checkout and in an installed package, and the user's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# The folder that holds the package: the root of a checkout, or site-packages.
ROOT = _PACKAGE.parent

IN_CLONE = (ROOT / "constraints.txt").is_file()  # False if it is installed from a wheel


def requirement(extras: str) -> str:
    """Return what `pip install` takes for launch with extras, which are comma-separated.

    In a clone the command is typed at its root.
    """
    if IN_CLONE:
        return f"-e '.[{extras}]' -c constraints.txt"
    return f"'tulu-launch[{extras}]'"


def locate(path: str) -> Path:
    """Return where a file or folder of the project is, given its path in a checkout.

    The wheel holds the package, and the folders beside it in `launch/shipped` (pyproject.toml).
    """
    shipped = _PACKAGE / "shipped" / path
    return shipped if shipped.exists() else ROOT / path


CONFIGS = locate("configs/tulu")
ACCELERATE_CONFIGS = locate("accelerate_configs")
WORKER = locate("launch/worker/entry.py")
IN_VLLM = locate("launch/worker/in_vllm")  # on the search path of vLLM's server
# Python puts the working folder first for `-c` and `-m`, so that a random.py in a data folder would
# be imported.
WITHOUT_CWD = "import sys; sys.path[:] = filter(None, sys.path)"  # begins a program for `-c`
# Of every trainer: the working folder stays off the search path for `-m` and everything that it
# starts, and files are read and written as UTF-8 in any locale.
PYTHON_VARIABLES = {"PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"}
USER_DIR_VARIABLE = "LAUNCH_CONFIG_DIR"
# The folders of CONFIGS and of the user's folder: each file in one is an option of the group.
GROUPS = ("stage", "model", "data", "trainer", "parallel", "cluster", "tuned")


def default_user_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the user's own files: LAUNCH_CONFIG_DIR, else ~/.config/launch.

    It may not exist.
    """
    configs = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME', '~')}/.config"
    return Path(environ.get(USER_DIR_VARIABLE) or f"{configs}/launch").expanduser().absolute()


def user_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder that launch keeps between commands: ~/.cache/launch. It may not exist."""
    caches = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '~')}/.cache"
    return Path(f"{caches}/launch").expanduser().absolute()


def config_roots() -> tuple[Path, ...]:
    """Return the folders that hold the groups: the user's, which may not exist, and the shipped."""
    return default_user_folder(os.environ), CONFIGS


def free_stage_name(name: str) -> str:
    """Return a stage's name that no stage has: `kto` is `my_kto`, then `my_kto_2`."""
    taken = group_options("stage")
    if name not in taken:
        return name
    own = name if name.startswith("my_") else f"my_{name}"
    number = 1
    free = own
    while free in taken:
        number += 1
        free = f"{own}_{number}"
    return free


def group_options(group: str) -> list[str]:
    """Return the options of a group: the user's own and the shipped ones."""
    options: set[str] = set()
    for root in config_roots():
        options.update(path.stem for path in (root / group).glob("*.yaml"))
    return sorted(options)
