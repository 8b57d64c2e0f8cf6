"""Asks a trainer's own parser what it accepts, and whether it accepts a command line.

A script takes seconds to reach its parser, so each answer is kept while the script's files and
packages stay the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.digests import digest_text
from launch.errors import refusal
from launch.files import read_json_object, write_exact
from launch.host.interpreter import installed_versions, package_folders
from launch.resources import ROOT, user_cache
from launch.terminal import notify
from launch.upstream.capture import program
from launch.upstream.capture.process import run_isolated
from launch.upstream.pin.checkout import blob_id, differing_files
from launch.upstream.rules.source import find_differing
from launch.upstream.schema import Schema, schema_from_json

_SECONDS = 180.0  # on the processor: the longest that a script may take to reach its parser
# how an error begins that a second attempt with the same content would meet again
_PERMANENT_ERRORS = (
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
    """The answer of a trainer's own parser to a command line."""

    accepted: bool | None  # None: the parser can't be asked
    message: str  # the parser's message, or why it can't be asked
    seconds: float | None = None  # time to the answer; None: it was kept from an earlier command


def capture_schema(entry: str, root: Path | None, python: str) -> Schema:
    """Return what the parser of `entry` accepts, a script below `root` or else an installed module.

    The script runs in `python` up to its parser, unless the same files and packages have been
    captured before.
    Raises UserError: trainer_script_missing, trainer_unreadable (what it accepts is unknown then).
    """
    place = str(root) if root else python
    if root and not (root / entry).is_file():
        cure = (
            "use the root of an open-instruct checkout with this script, or an installed "
            "package's folder"
        )
        raise refusal("trainer_script_missing", f"{place} has no {entry}", where=place, cure=cure)
    script = _Script(entry, root, python)
    content = script.load() or script.load(script.surroundings())
    if content is None:
        notify(f"reading {entry.rpartition('/')[2]}'s parser with {python}: once for this content")
        content = script.run()
        if "error" not in content:
            script.save(content)
        elif content["error"].startswith(_PERMANENT_ERRORS):
            script.save(content, script.surroundings())
    if "error" in content:
        message = (
            f"the flags of {entry} are unknown, because it can't be brought to its parser: "
            f"{content['error']}"
        )
        cure = "check that the checkout is complete, and that python= has the trainer's packages"
        if "timed_out" in content:
            cure = "run it again, on a less busy machine if need be: what has been read is kept"
        raise refusal("trainer_unreadable", message, place, cure)
    return replace(schema_from_json(content), sources=script.folders)


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
    """Have the parser of `entry` parse `argv`, with `__post_init__`, in the run's environment and
    without network.

    key: identifies the command line, up to values that the parser can't refuse; an accepted one is
    asked once for each content. has_placeholders: the run has placeholders for packages that are
    not installed.
    """
    script = _Script(entry, root, python)
    if script.load(key):
        return ParserVerdict(True, "")
    notify(f"asking {entry.rpartition('/')[2]}'s own parser whether it accepts the command")
    placeholders = str(ROOT) if has_placeholders else None
    request = json.dumps({"argv": list(argv), "placeholders": placeholders})
    began = time.monotonic()
    content = script.run(request, environ, has_gpus=True)
    seconds = time.monotonic() - began
    if "error" in content:
        return ParserVerdict(None, content["error"], seconds)
    if "refused" in content:
        return ParserVerdict(False, content["refused"], seconds)
    script.save(content, key)
    return ParserVerdict(True, "", seconds)


@dataclass(frozen=True)
class _Script:
    """A trainer's script, and its kept results.

    A result holds while the files and packages that were imported stay the same.
    """

    entry: str
    root: Path | None
    python: str

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders with its code."""
        packages = package_folders(self.python)
        return (self.root, *packages) if self.root else tuple(packages)

    def run(
        self, request: str = "", environ: Mapping[str, str] = os.environ, has_gpus: bool = False
    ) -> dict[str, Any]:
        arguments = [self.entry]
        if self.root:
            arguments.append(str(self.root))
        return run_isolated(
            self.python,
            program.__file__,
            arguments,
            _SECONDS,
            request,
            environ=environ,
            has_gpus=has_gpus,
        )

    def load(self, key: str = "") -> dict[str, Any] | None:
        """Return the kept result of the same content; None without one, and for a damaged file."""
        for file in sorted(_cache_folder().glob(f"{self._prefix(key)}-*.json")):
            content = read_json_object(file)
            with contextlib.suppress(KeyError, TypeError, AttributeError):  # a damaged file
                if self._is_valid(content):
                    return content
        return None

    def save(self, content: Mapping[str, Any], key: str = "") -> None:
        """Keep a result, unless the cache is read-only: the parser is then asked again."""
        file = _cache_folder() / f"{self._prefix(key)}-{_digest(content)}.json"
        with contextlib.suppress(OSError):
            write_exact(file, json.dumps(content))

    def _prefix(self, key: str) -> str:
        """Return the beginning of the names of the results' files."""
        python_versions = set()
        for folder in package_folders(self.python):
            for part in folder.parts:
                if part.startswith("python3."):  # as in lib/python3.11/site-packages
                    python_versions.add(part)
        code = Path(program.__file__).read_text(encoding="utf-8")
        return _digest([self.entry, self.python, sorted(python_versions), key, code])

    def _is_valid(self, content: Mapping[str, Any]) -> bool:
        """Return whether the files and packages of a result are still the same."""
        if self.root and differing_files(self.root, content["files"]):
            return False
        if any(find_differing(content.get("post_init", {}), self.folders)):
            return False
        captured = content["packages"]
        installed = installed_versions(package_folders(self.python), list(captured))
        # a package that was missing has '' as its version
        return all(installed.get(name, "") == version for name, version in captured.items())

    def surroundings(self) -> str:
        """Return a digest of what a failed import may lack: the installed packages, and the files
        beside the script.
        """
        packages: list[str] = []
        for folder in package_folders(self.python):
            packages += [info.name for info in folder.glob("*.dist-info")]
        paths = sorted((self.root / self.entry).parent.rglob("*.py")) if self.root else []
        files = [(path.name, blob_id(path.read_bytes())) for path in paths]
        return _digest([sorted(packages), files])


def _digest(value: Any) -> str:
    return digest_text(json.dumps(value))


def _cache_folder() -> Path:
    return user_cache(os.environ) / "capture"
