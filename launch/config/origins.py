"""Finds where each value of a composed configuration is set: by an override or on a line of YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from launch.config.line import override_key
from launch.config.yaml_nodes import Mapping as YamlMap
from launch.config.yaml_nodes import (
    Node,
    Positions,
    Scalar,
    locate_keys,
    read_yaml,
    resolve_alias,
)
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

    overrides: tuple[str, ...]  # those of the command line
    # the chosen option of each group; a stage that was given by its path has the path
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
        """Return where the value of `key` (`recipe.learning_rate`) comes from.

        The default of the schema has no place. Its origin is `recipe` for a key of the recipe, else
        `launcher`.
        """
        overridden = self.overridden(key)
        if overridden:
            return Provenance(Origin.override, f"override {overridden}")
        for path, key_in_file, origin in self._places(key):
            line = find_line(path, key_in_file.split("."))
            if line is not None:
                return Provenance(origin, f"{self._short_name(path)}:{line}")
        is_of_recipe = key.partition(".")[0] == "recipe"
        return Provenance(Origin.recipe if is_of_recipe else Origin.launcher, None)

    def _places(self, key: str) -> Iterator[tuple[Path, str, Origin]]:
        """Yield the files that may set a key, its name in the file, and their origin.

        The first file that sets it wins.
        """
        group, _, rest = key.partition(".")
        overlay = self._chosen_file("tuned")
        if overlay is not None:
            yield overlay, key, Origin.tuned
        stage_origin = Origin.recipe if group == "recipe" and rest else Origin.stage
        for path in self._stage_files():
            yield path, key, stage_origin
        group_file = self._chosen_file(group) if rest else None
        if group_file is not None:
            origin = Origin(group) if group in Origin.__members__ else Origin.launcher
            yield group_file, rest, origin

    def _chosen_file(self, group: str) -> Path | None:
        """Return the file of a group's chosen option; None where nothing is chosen."""
        if group not in self.choices:
            return None
        return find_file(group, self.choices[group], self.roots)

    def is_shipped(self, key: str) -> bool:
        """Return whether a file of the project sets `key`, or nothing does: no override, and no
        file of the user's.
        """
        where = self.of(key).where
        if where is None:
            return True
        return not where.startswith("override ") and not Path(where).is_absolute()

    @property
    def stage_file(self) -> str | None:
        """The short name of the stage's file; None if there is no such file."""
        files = self._stage_files()
        return self._short_name(files[0]) if files else None

    def _stage_files(self) -> list[Path]:
        """The chosen stage's file, then those of the stages that it builds on, nearest first."""
        files: list[Path] = []
        pending = [self.choices["stage"]] if "stage" in self.choices else []
        while pending:
            path = find_file("stage", pending.pop(0), self.roots)
            if path and path not in files:
                files.append(path)
                stages = [entry.option for entry in read_defaults(path) if not entry.group]
                pending += reversed(stages)
        return files

    def chosen_by_stage(self, group: str) -> str | None:
        """Return the option of a group in the defaults list of the stage's file, or of one that it
        builds on.
        """
        for path in self._stage_files():
            for entry in read_defaults(path):
                if entry.group == group:
                    return entry.option
        return None

    def _short_name(self, path: Path) -> str:
        """Return the path from the project's root, or the whole path of a file of the user's own."""
        shipped = self.roots[-1]
        if not path.is_relative_to(shipped):
            return str(path)
        return path.relative_to(shipped.parent.parent).as_posix()


def find_file(group: str, option: str, roots: Sequence[Path]) -> Path | None:
    """Return the file of a group's option: in the first root that has it; or the option itself, if
    it is a path.
    """
    name = option if option.endswith(YAML) else f"{option}.yaml"
    try:
        for root in roots:
            path = root / group / name
            if path.is_file():
                return path
    except OSError:  # longer than a name may be
        pass
    return None


def _version(path: Path) -> tuple[Path, int, int]:
    """Return what tells a file from its earlier versions: path, time of the change, size."""
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
    defaults = _find_defaults(documents[0]) if documents else []
    chosen: list[DefaultsEntry] = []
    for item in defaults:
        entry = resolve_alias(item)
        if isinstance(entry, YamlMap):  # `- override /model: demo`
            for key, value in entry.entries():
                chosen.append(DefaultsEntry(entry.line, key.text, _option_of(value)))
        else:  # `- sft`, or `- model/demo`
            group, _, option = _option_of(entry).rpartition("/")
            chosen.append(DefaultsEntry(entry.line, group, option))
    return locate_keys(documents), chosen


def _find_defaults(document: Node) -> list[Node]:
    """Return the entries of a document's defaults list; none where it has no such list."""
    if isinstance(document, YamlMap):
        for key, value in document.entries():
            if key.text == "defaults":
                return getattr(resolve_alias(value), "items", [])
    return []


def _option_of(value: Node) -> str:
    """Return the option that a value of a defaults list names; "" for null, or what is no text."""
    scalar = resolve_alias(value)
    if not isinstance(scalar, Scalar) or scalar.type == "null":
        return ""
    return scalar.text


def read_defaults(path: Path) -> list[DefaultsEntry]:
    """Return the entries of a file's defaults list."""
    return _read_version(*_version(path))[1]


def find_line(path: Path, keys: Sequence[str]) -> int | None:
    """Return the 1-based line of a nested key in a YAML file. Keys that are dotted in the file are
    not found.
    """
    return _read_version(*_version(path))[0].of(tuple(keys))
