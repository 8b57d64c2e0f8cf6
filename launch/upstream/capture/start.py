"""Asks a trainer's own parser what it accepts, and whether it accepts a command line: once for each content."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.errors import refusal
from launch.files import read_json_object, write_exact
from launch.host.interpreter import installed_versions, package_folders
from launch.resources import ROOT
from launch.terminal import notify
from launch.upstream.capture import description, program
from launch.upstream.capture.process import run_isolated
from launch.upstream.pin.checkout import blob_id, differing_files
from launch.upstream.schema import Schema, schema_from_json

SECONDS = 180.0  # the longest that a script may take to reach its parser
# errors of the content, which a second attempt would meet again
_LASTING = (
    "it ended before",
    "ImportError",
    "ModuleNotFoundError",
    "SyntaxError",
    "AttributeError",
    "NameError",
    "TypeError",
)


@dataclass(frozen=True)
class ParserVerdict:
    """What a trainer's own parser says of a command line."""

    accepted: bool | None  # None: it can't be asked
    message: str  # the parser's, or why it can't be asked
    seconds: float | None = None  # that it took; None: known from an earlier command


def capture_schema(entry: str, root: Path | None, python: str) -> Schema:
    """Return what the parser of `entry` accepts: a script below `root`, or without it an installed module's.

    The script runs in `python` up to its parser, unless the same files and packages have been captured before.
    Raises UserError: trainer_script_missing, trainer_unreadable (what it accepts is unknown then).
    """
    place = str(root) if root else python
    if root and not (root / entry).is_file():
        cure = "use the root of an open-instruct checkout with this script, or an installed package's folder"
        raise refusal("trainer_script_missing", f"{place} has no {entry}", where=place, cure=cure)
    cache = _Cache(entry, root, python)
    content = cache.load()
    if content is None:
        notify(f"reading {entry.rpartition('/')[2]}'s parser with {python}: once for this content")
        content = run_isolated(python, program.__file__, cache.arguments, SECONDS)
        if content.get("error", _LASTING[0]).startswith(_LASTING):
            cache.save(content)
    if "error" in content:
        message = f"the flags of {entry} are unknown, because it can't be brought to its parser: {content['error']}"
        cure = "check that the checkout is complete, and that python= has the trainer's packages"
        raise refusal("trainer_unreadable", message, place, cure)
    return schema_from_json(content)


def ask_parser(
    entry: str,
    root: Path | None,
    python: str,
    argv: Sequence[str],
    *,
    key: str,
    environ: Mapping[str, str],
    has_placeholders: bool,
) -> ParserVerdict:
    """Have the parser of `entry` parse `argv`, with `__post_init__`, in the run's environment and without network.

    key: identifies the command line, up to values that the parser can't refuse; an accepted one is asked once for each
    content. has_placeholders: the run has placeholders for packages that are not installed.
    """
    cache = _Cache(entry, root, python, key)
    if cache.load():
        return ParserVerdict(True, "")
    notify(f"asking {entry.rpartition('/')[2]}'s own parser whether it accepts the command")
    request = json.dumps({"argv": list(argv), "placeholders": str(ROOT) if has_placeholders else None})
    began = time.monotonic()
    content = run_isolated(python, program.__file__, cache.arguments, SECONDS, request, environ=environ, has_gpus=True)
    seconds = time.monotonic() - began
    if "accepted" in content:
        cache.save(content)
        return ParserVerdict(True, "", seconds)
    accepted = False if "refused" in content else None
    return ParserVerdict(accepted, content.get("refused") or content["error"], seconds)


@dataclass(frozen=True)
class _Cache:
    """Earlier results for an entry: each holds as long as the files and packages that were imported stay the same."""

    entry: str
    root: Path | None
    python: str
    key: str = ""

    @property
    def arguments(self) -> list[str]:
        """What `program` is started with."""
        return [self.entry, *([str(self.root)] if self.root else [])]

    @property
    def _prefix(self) -> str:
        programs = [Path(str(module.__file__)).read_text(encoding="utf-8") for module in (program, description)]
        parts = {part for folder in package_folders(self.python) for part in folder.parts}
        version = sorted(part for part in parts if part.startswith("python3."))  # of lib/python3.11/site-packages
        return _digest([self.entry, self.python, version, self.key, *programs])

    def load(self) -> dict[str, Any] | None:
        """Return the result of the same content; None without one, and for a damaged file."""
        for file in sorted(_cache_folder().glob(f"{self._prefix}-*.json")):
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, OSError):
                content = read_json_object(file)
                if self._holds(content):
                    return content
        return None

    def save(self, content: dict[str, Any]) -> None:
        """Keep a result; in a read-only cache nothing is kept, so that it is asked again the next time."""
        if "error" in content:
            content = {**content, "around": self._around()}
        digest = _digest([content["files"], content["packages"], content.get("around")])
        with contextlib.suppress(OSError):
            write_exact(_cache_folder() / f"{self._prefix}-{digest}.json", json.dumps(content))

    def _holds(self, content: Mapping[str, Any]) -> bool:
        if self.root and differing_files(self.root, content["files"]):
            return False
        versions = installed_versions(package_folders(self.python), list(content["packages"]))
        if any(versions.get(name, "") != version for name, version in content["packages"].items()):
            return False  # '' is the version of one that was missing
        if "error" in content:
            return bool(content["around"] == self._around())
        return bool(self.key or schema_from_json(content))

    def _around(self) -> str:
        """Return a digest of what a failed import may lack: the installed packages, and the files beside the script."""
        installed = [info.name for folder in package_folders(self.python) for info in folder.glob("*.dist-info")]
        folder = (self.root / self.entry).parent if self.root else None
        files = sorted(path for pattern in ("*.py", "*/*.py") for path in folder.glob(pattern)) if folder else []
        return _digest([sorted(installed), [(path.name, blob_id(path.read_bytes())) for path in files]])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME", "~")).expanduser() / ".cache"
    return Path(cache) / "launch" / "capture"
