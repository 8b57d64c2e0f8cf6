"""Finds where each value of a composed configuration is set: by an override or on a line of YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from launch.config.group_files import YAML, find_group_file, find_line, list_choices, list_layers
from launch.config.line import override_key
from launch.resources import GROUPS, config_roots


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
        for path in self._files("tuned"):
            yield path, key, Origin.tuned
        stage_origin = Origin.recipe if group == "recipe" and rest else Origin.stage
        for path in self._files("stage"):
            yield path, key, stage_origin
        origin = Origin(group) if group in Origin.__members__ else Origin.launcher
        for path in self._files(group) if rest else ():
            yield path, rest, origin

    def _files(self, group: str) -> list[Path]:
        """Return the file of a group's chosen option and those that it builds on; the first wins."""
        if group not in self.choices:
            return []
        return list_layers(group, self.choices[group], self.roots)[::-1]

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
        path = find_group_file("stage", self.choices.get("stage", ""), self.roots)
        return self._short_name(path) if path else None

    def chosen_by_stage(self, group: str) -> str | None:
        """Return the option of a group in the defaults list of the stage's file, or of one that it
        builds on.
        """
        entries = list_choices("stage", self.choices.get("stage", ""), self.roots)
        return next((entry.option for entry in entries if entry.group == group), None)

    def _short_name(self, path: Path) -> str:
        """Return the path from the project's root, or the whole path of a file of the user's own."""
        shipped = self.roots[-1]
        if not path.is_relative_to(shipped):
            return str(path)
        return path.relative_to(shipped.parent.parent).as_posix()
