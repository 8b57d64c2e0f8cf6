"""Where each value of a composed configuration is set: by an override, or on a line of a YAML
file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from launch.config.line import override_key
from launch.config.yaml_nodes import Mapping as YamlMap
from launch.config.yaml_nodes import Positions, Scalar, locate_keys, read_yaml, resolve_alias
from launch.resources import GROUPS, config_roots

YAML = (".yaml", ".yml")


class Origin(StrEnum):
    """What set a value. `recipe` is the recipe of a stage file; `launcher` is what `launch`
    computes or sets.
    """

    override = "override"
    recipe = "recipe"
    stage = "stage"
    model = "model"
    data = "data"
    trainer = "trainer"
    tuned = "tuned"
    launcher = "launcher"


@dataclass(frozen=True)
class Provenance:
    """What set a value, and where."""

    origin: Origin
    where: str | None  # `override recipe.epochs`, or `configs/tulu/stage/sft.yaml:21`


@dataclass(frozen=True)
class Origins:
    """Finds where a key of one composed configuration is set."""

    overrides: tuple[str, ...]  # of the command line
    # group -> its chosen option; a stage that was given by its path has the path
    choices: Mapping[str, str]
    roots: tuple[Path, ...] = field(default_factory=config_roots)

    @property
    def stage(self) -> str:
        """The stage's name; of one that was given by its path, the file's."""
        choice = self.choices["stage"]
        return Path(choice).stem if choice.endswith(YAML) else choice

    def overridden(self, key: str) -> str | None:
        """Return the key of the override that sets `key` or a node above it; the choice of a group
        does not count.
        """
        for override in reversed(self.overrides):
            overridden = override_key(override)
            if overridden not in GROUPS and (key == overridden or key.startswith(f"{overridden}.")):
                return overridden
        return None

    def of(self, key: str) -> Provenance:
        """Return where the value of `key` (`recipe.learning_rate`) comes from; a schema's default
        is `launcher`.
        """
        overridden = self.overridden(key)
        if overridden:
            return Provenance(Origin.override, f"override {overridden}")
        for path, part, origin in self._places(key):
            if path and (line := find_line(path, part.split("."))):
                return Provenance(origin, f"{self._short_name(path)}:{line}")
        return Provenance(
            Origin.recipe if key.partition(".")[0] == "recipe" else Origin.launcher, None
        )

    def _places(self, key: str) -> Iterator[tuple[Path | None, str, Origin]]:
        """Yield the files that may set a key, what it is called there, and their origin; the first
        one counts.
        """
        group, _, rest = key.partition(".")
        if "tuned" in self.choices:
            yield find_file("tuned", self.choices["tuned"], self.roots), key, Origin.tuned
        for path in self._stage_files():
            yield path, key, Origin.recipe if group == "recipe" and rest else Origin.stage
        if group in self.choices and rest:
            origin = Origin(group) if group in Origin.__members__ else Origin.launcher
            yield find_file(group, self.choices[group], self.roots), rest, origin

    def is_shipped(self, key: str) -> bool:
        """Return whether a file of the project sets `key`, or nothing does: no override, and no
        file of the user's.
        """
        where = self.of(key).where
        return where is None or (
            not where.startswith("override ") and not Path(where).is_absolute()
        )

    @property
    def stage_file(self) -> str | None:
        """The short name of the stage's file."""
        return next(map(self._short_name, self._stage_files()), None)

    def _stage_files(self) -> list[Path]:
        """The chosen stage's file, then those of the stages that it builds on, nearest first."""
        files: list[Path] = []
        pending = [self.choices["stage"]] if "stage" in self.choices else []
        while pending:
            path = find_file("stage", pending.pop(0), self.roots)
            if path and path not in files:
                files.append(path)
                pending += reversed(
                    [entry.option for entry in read_defaults(path) if not entry.group]
                )
        return files

    def chosen_by_stage(self, group: str) -> str | None:
        """Return the option of a group in the defaults list of the stage's file, or of one that it
        builds on.
        """
        defaults = (entry for path in self._stage_files() for entry in read_defaults(path))
        return next((entry.option for entry in defaults if entry.group == group), None)

    def _short_name(self, path: Path) -> str:
        """The path from the project's root, or the whole path of a file of the user's own."""
        shipped = self.roots[-1]
        return (
            path.relative_to(shipped.parent.parent).as_posix()
            if path.is_relative_to(shipped)
            else str(path)
        )


def find_file(group: str, option: str, roots: Sequence[Path]) -> Path | None:
    """Return the file of a group's option: in the first root that has it; or the option itself, if
    it is a path.
    """
    name = option if option.endswith(YAML) else f"{option}.yaml"
    try:
        return next((path for root in roots if (path := root / group / name).is_file()), None)
    except OSError:  # longer than a name may be
        return None


def _version(path: Path) -> tuple[Path, int, int]:
    """Return what tells a file from its other versions, which one process may see."""
    status = path.stat()
    return path, status.st_mtime_ns, status.st_size


@dataclass(frozen=True)
class DefaultsEntry:
    """What an entry of a defaults list chooses: `- override /model: demo`, or `- sft` of the file's
    own group.
    """

    line: int
    key: str  # as it is written: `override /model`
    option: str  # "": null, or no text

    @property
    def group(self) -> str:
        """The group; "" for the file's own."""
        return self.key.rpartition(" ")[2].strip("/").partition("@")[0]


@lru_cache(maxsize=64)
def _read_version(path: Path, changed: int, size: int) -> tuple[Positions, list[DefaultsEntry]]:
    """Return the lines of a file's keys, and its defaults list."""
    documents = read_yaml(path.read_text(encoding="utf-8"))
    pairs = documents[0].entries() if documents and isinstance(documents[0], YamlMap) else ()
    defaults = next((resolve_alias(value) for key, value in pairs if key.text == "defaults"), None)
    chosen: list[DefaultsEntry] = []
    for entry in map(resolve_alias, getattr(defaults, "items", ())):
        choices = entry.entries() if isinstance(entry, YamlMap) else [(None, entry)]
        for key, option in ((key, resolve_alias(value)) for key, value in choices):
            text = option.text if isinstance(option, Scalar) and option.type != "null" else ""
            group, _, name = (key.text, "", text) if key else text.rpartition("/")
            chosen.append(DefaultsEntry(entry.line, group, name))
    return locate_keys(documents), chosen


def read_defaults(path: Path) -> list[DefaultsEntry]:
    return _read_version(*_version(path))[1]


def find_line(path: Path, keys: Sequence[str]) -> int | None:
    """Return the 1-based line of a nested key in a YAML file. Keys that are dotted in the file are
    not found.
    """
    return _read_version(*_version(path))[0].of(tuple(keys))
