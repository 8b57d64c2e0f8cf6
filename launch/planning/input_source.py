"""A model or a data set: the reference that the trainer gets, its path, and the key that sets it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launch.config.kinds import Kind
from launch.config.origins import Provenance
from launch.data.sources import is_pattern
from launch.errors import UserError, path_problem, refusal
from launch.planning.adapter import Adapter

MERGE = "merge"  # the build of an adapter's merged model
# What `model.build` and `data.build` may name. A data set has the kind of stage that it is for.
BUILDS = {
    **dict.fromkeys(("demo", "demo_trained")),
    "demo_chats": Kind.sft,
    "demo_preferences": Kind.dpo,
    "demo_labels": Kind.kto,
    "demo_prompts": Kind.rlvr,
}


@dataclass(frozen=True)
class InputSource:
    """A model or a data set."""

    reference: str  # what the trainer is given
    local: Path | None  # the path behind it; None for a hub id
    build: str | None  # what builds it when it is missing
    provenance: Provenance  # where it is set
    # the adapter that is trained further (start=continue), or that the merged model is made of
    adapter: Adapter | None = None

    @property
    def content(self) -> Path | None:
        """The path whose content identifies the input; None for a hub id and for what this project
        builds itself.
        """
        if self.adapter is not None:
            return self.adapter.folder
        return None if self.build else self.local


def check_build(build: str, key: str) -> None:
    """Check what `model.build` or `data.build` names. Raises UserError: unknown_build."""
    if build not in BUILDS:
        cure = f"choose from {', '.join(BUILDS)}"
        raise refusal("unknown_build", f"nothing builds '{build}'", key, cure)


def local_path(reference: str, cwd: Path) -> Path | None:
    """Return the absolute path of a reference that exists on this machine or is written as a path;
    None for a hub id.
    """
    try:
        path = cwd / Path(reference).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(path_problem(error, reference)) from error
    if exists or reference.startswith(("/", "./", "../", "~")) or is_pattern(reference):
        return path
    return None
