"""Chooses a trainer's schema for this machine: the lock's, or the live parser's if the code differs.

The live parser is only asked if the user named the checkout or interpreter, or starts the trainer
anyway.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launch.errors import UserError
from launch.host.interpreter import installed_version
from launch.upstream.pin.checkout import Checkout
from launch.upstream.pin.lock import load_lock, locked_schema
from launch.upstream.rules.source import find_differing
from launch.upstream.schema import Schema
from launch.upstream.trainers import ENTRIES, TRL
from launch.worker.moves import follow_shim

_MAX_NAMED = 5  # unverified flags in a sentence


@dataclass(frozen=True)
class ResolvedSchema:
    """A trainer's schema and where it comes from."""

    schema: Schema
    live: bool  # whether it describes the source on this machine; False: only the lock's
    # how this machine differs from the lock, if the lock's schema is used nevertheless
    difference: str | None = None
    failure: str | None = None  # why the parser can't be asked; None: it has not been asked

    def advice(self, cure: str) -> str:
        """Return `cure`, which explains how to ask the parser.

        If it can't be asked, return why, and which flags are unverified.
        """
        if self.failure is None:
            return cure
        flags = [f"--{name}" for name in sorted(self.schema.moved)]
        unverified = flags[:_MAX_NAMED]
        if len(flags) > _MAX_NAMED:
            unverified.append(f"{len(flags) - _MAX_NAMED} more")
        unverified.append("flags that only the differing files name")
        return f"{self.failure}; unverified: {', '.join(unverified)}"


def resolve_schema(
    trainer: str,
    checkout: Checkout | None,
    packages: Sequence[Path],
    python: str,
    *,
    may_capture: bool,
) -> ResolvedSchema:
    """Return a trainer's schema. `packages` are the site-packages folders of `python`, the
    trainer's interpreter.

    `may_capture`: whether code of the checkout or of TRL may be executed if it differs from the
    lock's (`upstream/capture`). The locked schema is used if the parser cannot be captured: on a
    login node, and if the script does not reach its parser.

    Raises UserError: trainer_script_missing, unknown_trainer.
    """
    folders = tuple(packages)
    if checkout is not None and trainer not in TRL:
        folders = (checkout.root, *packages)
    locked = replace(locked_schema(trainer), sources=folders)
    code = _compare_trl(locked, packages) if trainer in TRL else _compare_checkout(checkout)
    if code is None:
        return ResolvedSchema(locked, live=False)
    if not code.difference:
        return ResolvedSchema(locked, live=True)
    is_login_node = not any((folder / "transformers").is_dir() for folder in packages)
    if is_login_node:
        failure = f"{python} lacks the trainer's packages, so its parser can't be asked"
    elif not may_capture:
        return ResolvedSchema(locked, live=False, difference=code.difference)
    else:
        # it is slow to import, and a plan from the lock does not need it
        from launch.upstream.capture.start import capture_schema

        script_root = None if trainer in TRL else code.root  # TRL's scripts are modules
        try:
            entry = ENTRIES[trainer]
            if script_root is not None:
                entry = follow_shim(script_root, entry)
            schema = capture_schema(entry, script_root, python)
            return ResolvedSchema(schema, live=True)
        except UserError as error:
            (problem,) = error.problems
            if problem.id != "trainer_unreadable":
                raise
            failure = problem.message
    compared = compare_with_sources(locked, code.root, code.differing)
    return ResolvedSchema(compared, False, code.difference, failure)


@dataclass(frozen=True)
class _LocalCode:
    """The code of a trainer on this machine, compared with the lock."""

    difference: str  # how it differs; '' if it does not
    root: Path | None = None  # the folder of the differing files
    differing: tuple[str, ...] = ()  # files that may declare other flags, relative to `root`


def _compare_checkout(checkout: Checkout | None) -> _LocalCode | None:
    """Compare open-instruct's code with the lock; return None without a checkout."""
    if checkout is None:
        return None
    if not checkout.differing:
        return _LocalCode("")
    return _LocalCode(checkout.describe(), checkout.root, checkout.differing)


def _compare_trl(locked: Schema, packages: Sequence[Path]) -> _LocalCode | None:
    """Compare the installed TRL with the lock; return None if it is not installed."""
    if installed_version("trl", packages) is None:
        return None
    difference = version_difference(packages) or _text_difference(locked)
    roots = [folder for folder in packages if (folder / "trl").is_dir()]
    # any file with a field of the trainer may differ
    files = tuple({field.file: None for field in locked.fields.values()})
    return _LocalCode(difference, roots[0] if roots else None, files)


def _text_difference(locked: Schema) -> str:
    """Name the first function whose text in the installed packages differs from the lock's.

    It is '' if there is none.
    """
    place = next(find_differing(locked.post_init, locked.sources), None)
    return f"the installed {place} is not the lock's" if place else ""


def compare_with_sources(locked: Schema, root: Path | None, differing: Sequence[str]) -> Schema:
    """Add the words of the differing files, and the flags that they no longer declare."""
    if root is None:
        return locked
    texts = {}
    for path in differing:
        with contextlib.suppress(OSError):
            texts[path] = (root / path).read_text(encoding="utf-8", errors="replace")
    moved = set()
    for field in locked.fields.values():
        if field.file in differing:
            declaration = rf"^\s+{field.name}\s*:"
            if not re.search(declaration, texts.get(field.file, ""), re.MULTILINE):
                moved.add(field.name)
    words: set[str] = set()
    for text in texts.values():
        words.update(re.findall(r"\w+", text))
    return replace(locked, source_words=frozenset(words), moved=frozenset(moved))


def version_difference(packages: Sequence[Path]) -> str:
    """Describe how the versions of the installed TRL and transformers differ from the lock's; '' if
    they do not.
    """
    differences = []
    for name in ("trl", "transformers"):
        locked = load_lock().packages[name]
        installed = installed_version(name, packages)
        if installed not in (None, locked):
            differences.append(f"{name} {installed} is installed, the lock has {locked}")
    return "; ".join(differences)
