"""Chooses a trainer's schema for this machine: read from its live source if there is one, else from the lock.

If every file that the locked schema was read from is identical here, the locked schema is used and nothing is parsed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.upstream.pin.checkout import Checkout
from launch.upstream.pin.lock import locked_schema
from launch.upstream.reader.tree import FolderTree, PackageTree, Tree, blob_id
from launch.upstream.schema import Schema
from launch.upstream.trainers import ENTRIES, TRL


@dataclass(frozen=True)
class ResolvedSchema:
    """A trainer's schema and where it comes from."""

    schema: Schema
    live: bool  # it describes the source on this machine; False: only the lock's


def resolve_schema(trainer: str, checkout: Checkout | None, packages: Sequence[Path]) -> ResolvedSchema:
    """Return a trainer's schema. `packages` are the site-packages folders of the trainer's interpreter.

    Raises UserError: trainer_script_missing, trainer_unreadable (in the live source), unknown_trainer.
    """
    locked = locked_schema(trainer)
    if trainer in TRL:
        if not any((folder / "trl" / "scripts").is_dir() for folder in packages):
            return ResolvedSchema(locked, live=False)
        if _files_match(locked.package_files, packages):
            return ResolvedSchema(locked, live=True)
        return ResolvedSchema(_parse(PackageTree(packages), ENTRIES[trainer]), live=True)
    if checkout is None:
        return ResolvedSchema(locked, live=False)
    if checkout.matches_pin:
        return ResolvedSchema(locked, live=True)
    return ResolvedSchema(_parse(FolderTree(checkout.root), ENTRIES[trainer], PackageTree(packages)), live=True)


def _parse(tree: Tree, entry: str, packages: PackageTree | None = None) -> Schema:
    from launch.upstream.reader.schema_reader import read_schema  # slow to import; a plan from the lock doesn't need it

    return read_schema(tree, entry, packages)


def _files_match(files: Mapping[str, str], folders: Sequence[Path]) -> bool:
    """Whether each file, in the first folder that has it, has its recorded blob id."""
    for name, recorded in files.items():
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is None or blob_id(path.read_bytes()) != recorded:
            return False
    return True
