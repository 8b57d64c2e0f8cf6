"""A library's configuration keys: the locked list, and the version of the library that is installed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from launch.upstream.libraries.keyspec import KeySpec
from launch.upstream.pin.lock import DATA

LIBRARIES = ("accelerate", "deepspeed")


@dataclass(frozen=True)
class LibraryKeys:
    """The configuration keys that the locked version of a library reads."""

    library: str
    version: str
    spec: KeySpec
    installed: str | None  # the installed version

    def describe(self) -> str:
        """Describe the version for a plan: `deepspeed 0.19.8 as installed`."""
        if self.installed == self.version:
            return f"{self.library} {self.version} as installed"
        note = f"{self.installed} is installed" if self.installed else "it is not installed"
        return f"{self.library} {self.version} from the lock ({note})"


def library_keys(library: str, site_packages: Iterable[Path]) -> LibraryKeys:
    """Return the keys of `library` for an interpreter whose packages are in `site_packages`."""
    version, spec = _locked_keys(library)
    return LibraryKeys(library, version, spec, installed_version(library, site_packages))


def library_keys_file(library: str) -> Path:
    return DATA / "libraries" / f"{library}.json"


def load_locked(library: str) -> dict[str, Any]:
    """Return the content of the library's locked list."""
    content: dict[str, Any] = json.loads(library_keys_file(library).read_text(encoding="utf-8"))
    return content


@cache
def _locked_keys(library: str) -> tuple[str, KeySpec]:
    content = load_locked(library)
    return content["version"], KeySpec.from_json(content["spec"])


def installed_version(name: str, site_packages: Iterable[Path]) -> str | None:
    """Return the version in the name of the package's `.dist-info` folder; None without one."""
    for folder in site_packages:
        for info in _dist_infos(name, folder):
            return info.name.removesuffix(".dist-info").split("-", 1)[1]
    return None


def _dist_infos(name: str, folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.glob(f"{name}-*.dist-info"))
    except OSError:
        return
