"""A library's configuration keys: the locked tree, the version that is installed, and a map compared with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from launch.files import load_json
from launch.upstream.pin.lock import DATA
from launch.worker.json_codec import from_json

LIBRARIES = ("accelerate", "deepspeed")
_CLASSES: Mapping[str, Any] = {"map": Mapping, "list": (list, tuple), "str": str}
TRUTH_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "t", "f", "1", "0"})


@dataclass(frozen=True)
class KeySpec:
    """The values that one key accepts."""

    keys: Mapping[str, KeySpec] = field(default_factory=dict)  # of the map under it; empty if no keys are read there
    free: bool = False  # other keys are accepted too (the map is passed on whole, or can't be followed)
    types: tuple[str, ...] = ()  # accepted JSON types: bool, int, float, str, list, map; empty: unknown
    lenient: bool = False  # values are converted as pydantic does ("true" is a bool, "3" an int)
    choices: tuple[Any, ...] = ()  # accepted values; empty: any
    removed: str | None = None  # the library's message about a key that it no longer has

    def names(self) -> Iterator[tuple[str, ...]]:
        """Yield the path of every key in the tree, parents first."""
        for name, key in self.keys.items():
            yield (name,)
            yield from ((name, *rest) for rest in key.names())


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


@cache
def _locked_keys(library: str) -> tuple[str, KeySpec]:
    content = load_json(library_keys_file(library))
    return content["version"], from_json(KeySpec, content["spec"])


def installed_version(name: str, site_packages: Iterable[Path]) -> str | None:
    """Return the version in the name of the package's `.dist-info` folder; None without one."""
    for folder in site_packages:
        with contextlib.suppress(OSError):
            for info in sorted(folder.glob(f"{name}-*.dist-info")):
                return info.name.removesuffix(".dist-info").split("-", 1)[1]
    return None


@dataclass(frozen=True)
class KeyMismatch:
    """A difference between a map and the keys that a library reads."""

    kind: str  # unknown, removed, type or choice
    path: tuple[str, ...]  # of the key
    spec: KeySpec  # of the key; for an unknown key of the map around it
    value: Any


def find_mismatches(value: Mapping[Any, Any], spec: KeySpec, path: tuple[str, ...] = ()) -> Iterator[KeyMismatch]:
    """Yield every key and value of the map that the spec doesn't accept, in the map's order."""
    for name, item in value.items():
        key_path = (*path, str(name))
        key_spec = spec.keys.get(str(name))
        if key_spec is None:
            # JSON has no comments, so people write "_comment" or "//" keys; nothing reads them
            if not spec.free and not str(name).startswith(("_", "//", "#")):
                yield KeyMismatch("unknown", key_path, spec, item)
        elif key_spec.removed is not None:
            yield KeyMismatch("removed", key_path, key_spec, item)
        elif isinstance(item, Mapping) and key_spec.keys:
            yield from find_mismatches(item, key_spec, key_path)
        elif not _has_accepted_type(item, key_spec):
            yield KeyMismatch("type", key_path, key_spec, item)
        elif key_spec.choices and item not in (None, "auto", *key_spec.choices):
            yield KeyMismatch("choice", key_path, key_spec, item)


def _has_accepted_type(value: Any, spec: KeySpec) -> bool:
    if not spec.types or value is None or value == "auto":
        return True
    return any(_is_of_type(value, kind, spec.lenient) for kind in spec.types)


def _is_of_type(value: Any, kind: str, lenient: bool) -> bool:
    if kind in _CLASSES:
        return isinstance(value, _CLASSES[kind])
    if kind == "bool":
        return isinstance(value, bool) or (lenient and (value in (0, 1) or str(value).lower() in TRUTH_WORDS))
    if isinstance(value, bool):
        return lenient
    if isinstance(value, str):
        return lenient and _is_number(value, whole=kind == "int")
    if not isinstance(value, int | float):
        return False
    return kind == "float" or float(value).is_integer()


def _is_number(text: str, whole: bool) -> bool:
    try:
        int(text) if whole else float(text)
    except ValueError:
        return False
    return True
