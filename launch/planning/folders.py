"""Where runs and caches are stored, and what a run is called."""

from __future__ import annotations

from pathlib import Path

from launch import resources
from launch.config.schema import RootConfig
from launch.planning.parallel import Width

# Stands for a run's name until its identity, a digest of what was rendered, is known.
NAME = "{name}"
# The longest name in a tracker, in characters. wandb refuses longer tags, and open-instruct makes
# the run's name a tag (finetune.py:465).
_LONGEST_TAG = 64
# The file with the tracker's id of the run.
TRACKER_FILE = "tracker.json"


def runs_folder(config: RootConfig, cwd: Path) -> Path:
    """Return the folder of all runs."""
    return cwd / Path(config.runs).expanduser()


def cache_folder(config: RootConfig, cwd: Path) -> Path:
    """Return the folder of what runs share: converted and tokenised data, digests, templates."""
    if config.cache:
        return cwd / Path(config.cache).expanduser()
    return runs_folder(config, cwd) / ".cache"


def machine_places(runs: Path, cache: Path) -> dict[Path, str]:
    """Return the folders that differ between machines, each with what stands for it in a digest."""
    return {runs: "{runs}", cache: "{cache}", resources.ROOT: "{project}"}


def default_name(width: Width, identity: str) -> str:
    """Return the name of a run that `name=` does not name: `gpu8-1a2b3c4d`."""
    return f"{width}-{identity}"


def run_folder(runs: Path, stage: str, name: str) -> Path:
    """Return a run's folder: `<runs>/<stage>/<name>`."""
    return runs / stage / name


def tracked_name(stage: str, name: str) -> str:
    """Return the name of a run in an experiment tracker."""
    return f"{stage}-{name}"[:_LONGEST_TAG]


def texts_with_name(runs: Path, stage: str, name: str) -> tuple[str, ...]:
    """Return the texts that carry a run's name: its folder, its model's, its tracker's file and its
    name in a tracker.
    """
    folder = run_folder(runs, stage, name)
    paths = (folder, folder / "model", folder / TRACKER_FILE)
    return (*map(str, paths), tracked_name(stage, name))
