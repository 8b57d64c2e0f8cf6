"""The configuration keys that a library reads, from the lock, and the version that is installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from launch.files import load_json
from launch.host.interpreter import installed_version
from launch.upstream.pin.lock import DATA
from launch.worker.json_codec import from_json

LIBRARIES = ("accelerate", "deepspeed")
_CLASSES: Mapping[str, Any] = {"map": Mapping, "list": (list, tuple), "str": str}
_TRUTH_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "t", "f", "1", "0"})


@dataclass(frozen=True)
class KeySpec:
    """The values that one key accepts."""

    # the keys of the map under this key; empty if the library reads none there
    keys: Mapping[str, KeySpec] = field(default_factory=dict)
    # whether other keys are accepted too: the map is passed on whole, or can't be followed
    free: bool = False
    # the JSON types that are accepted: bool, int, float, str, list, map; empty: unknown
    types: tuple[str, ...] = ()
    lenient: bool = False  # values are converted as pydantic does ("true" is a bool, "3" an int)
    choices: tuple[Any, ...] = ()  # accepted values; empty: any
    # for a key that the library no longer has: its line in the library, and the issue
    removed: str | None = None
    instead: tuple[str, ...] = ()  # the keys that the library recommends for a removed one

    def names(self) -> Iterator[tuple[str, ...]]:
        """Yield the path of every key in the tree, parents first."""
        for name, key in self.keys.items():
            yield (name,)
            yield from ((name, *rest) for rest in key.names())

    def accepts_type(self, value: Any) -> bool:
        """Return whether the key accepts the value's type; null and `auto` are always accepted."""
        if not self.types or value in (None, "auto"):
            return True
        return any(self._is_of_type(value, kind) for kind in self.types)

    def _is_of_type(self, value: Any, kind: str) -> bool:
        if kind in _CLASSES:
            return isinstance(value, _CLASSES[kind])
        if kind == "bool":
            is_truth = value in (0, 1) or str(value).lower() in _TRUTH_WORDS
            return isinstance(value, bool) or (self.lenient and is_truth)
        if isinstance(value, bool | str) and not self.lenient:
            return False
        is_integer_text = kind == "int" and isinstance(value, str)
        try:
            number = float(int(value) if is_integer_text else value)
        except (TypeError, ValueError, OverflowError):
            return False
        return kind == "float" or number.is_integer()


@dataclass(frozen=True)
class LibraryKeys:
    """The configuration keys that the locked version of a library reads."""

    library: str
    version: str
    spec: KeySpec
    # of accelerate: the options of `accelerate launch`, and whether each takes a value
    options: Mapping[str, bool] = field(default_factory=dict)
    installed: str | None = None  # the installed version

    @property
    def release(self) -> str:
        """The library and version, for messages: `deepspeed 0.19.8`.

        If another version is installed, it is named too.
        """
        release = f"{self.library} {self.version}"
        if self.installed in (None, self.version):
            return release
        return f"{release} ({self.installed} is installed)"

    def describe(self) -> str:
        """Describe the version for a plan: `deepspeed 0.19.8 as installed`."""
        if self.installed == self.version:
            return f"{self.library} {self.version} as installed"
        note = f"{self.installed} is installed" if self.installed else "it is not installed"
        return f"{self.library} {self.version} from the lock ({note})"


def library_keys(library: str, site_packages: Iterable[Path]) -> LibraryKeys:
    """Return the keys of `library` for an interpreter whose packages are in `site_packages`."""
    return replace(_locked_keys(library), installed=installed_version(library, site_packages))


def library_keys_file(library: str) -> Path:
    return DATA / "libraries" / f"{library}.json"


@cache
def _locked_keys(library: str) -> LibraryKeys:
    return from_json(LibraryKeys, load_json(library_keys_file(library)))
