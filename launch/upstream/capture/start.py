"""Captures a trainer's schema from its own parser, once for each content of its files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.errors import Problem, UserError
from launch.files import read_json_object, write_exact
from launch.host.interpreter import installed_versions, package_folders
from launch.terminal import notify
from launch.upstream.capture import program
from launch.upstream.capture.process import run_isolated
from launch.upstream.pin.checkout import differing_files
from launch.upstream.schema import Schema, schema_from_json

SECONDS = 180.0  # the longest that a script may take to reach its parser


def capture_schema(entry: str, root: Path | None, python: str) -> Schema:
    """Return what the parser of `entry` accepts: a script below `root`, or without it an installed module's.

    The script runs in `python` up to its parser, unless the same files and packages have been captured before.
    Raises UserError: trainer_script_missing, trainer_unreadable (what it accepts is unknown then).
    """
    place = str(root) if root else python
    if root and not (root / entry).is_file():
        cure = "use the root of an open-instruct checkout with this script, or an installed package's folder"
        raise UserError(Problem("trainer_script_missing", f"{place} has no {entry}", where=place, cure=cure))
    folders = package_folders(python)
    prefix = _digest([entry, python, Path(program.__file__).read_text(encoding="utf-8")])
    for file in sorted(_cache_folder().glob(f"{prefix}-*.json")):
        schema = _load(file, root, folders)
        if schema:
            return schema
    notify(f"reading {entry.rpartition('/')[2]}'s parser with {python}: once for this content")
    result = run_isolated(python, program.__file__, [entry, *([str(root)] if root else [])], SECONDS)
    error = result.error or result.content.get("error")
    if error:
        message = f"the flags of {entry} are unknown, because it can't be brought to its parser: {error}"
        cure = "check that the checkout is complete, and that python= has the trainer's packages"
        raise UserError(Problem("trainer_unreadable", message, place, cure))
    schema = schema_from_json(result.content)
    digest = _digest([dict(schema.files), dict(schema.packages)])
    with contextlib.suppress(OSError):  # a read-only cache: it is captured again the next time
        write_exact(_cache_folder() / f"{prefix}-{digest}.json", json.dumps(result.content))
    return schema


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME", "~")).expanduser() / ".cache"
    return Path(cache) / "launch" / "capture"


def _load(file: Path, root: Path | None, folders: Sequence[Path]) -> Schema | None:
    """Return a cached schema if its files and packages are those of today; None for a damaged file too."""
    try:
        schema = schema_from_json(read_json_object(file))
    except (ValueError, TypeError, KeyError):
        return None
    if root and differing_files(root, schema.files):
        return None
    return schema if _are_installed(schema.packages, folders) else None


def _are_installed(packages: Mapping[str, str], folders: Sequence[Path]) -> bool:
    """Whether each package has the version that was captured; '' is one that was missing."""
    versions = installed_versions(folders, list(packages))
    return all(versions.get(name, "") == version for name, version in packages.items())
