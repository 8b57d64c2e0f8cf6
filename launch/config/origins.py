"""Where each value of a composed configuration was said: an override, or a line of one of the YAML files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import yaml

from launch.config.line import override_key

GROUPS = ("stage", "model", "data", "trainer", "parallel", "cluster", "tuned")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Origin(StrEnum):
    """Who said a value. `recipe` is a recipe word in a stage file; `launcher` is what `launch` computes or sets."""

    override = "override"
    recipe = "recipe"
    stage = "stage"
    model = "model"
    data = "data"
    trainer = "trainer"
    tuned = "tuned"
    launcher = "launcher"


@dataclass(frozen=True)
class Said:
    """Who said a value, and where: `override recipe.epochs`, or `configs/tulu/stage/sft.yaml:21`."""

    origin: Origin
    where: str | None


@dataclass(frozen=True)
class Origins:
    """Answers where a key of one composed configuration was said.

    `words` are the overrides of the command line; `choices` the chosen option of each group; `roots` the folders that
    hold the groups, the user's first.
    """

    words: tuple[str, ...]
    choices: Mapping[str, str]
    roots: tuple[Path, ...]

    def overridden(self, key: str) -> str | None:
        """The override that speaks of `key` or of a node above it; group choices do not count."""
        for word in reversed(self.words):
            said = override_key(word)
            if said not in GROUPS and (key == said or key.startswith(f"{said}.")):
                return said
        return None

    def of(self, key: str) -> Said:
        """Where the value of `key` (`recipe.learning_rate`) comes from; the typed schema's default is `launcher`."""
        said = self.overridden(key)
        if said:
            return Said(Origin.override, f"override {said}")
        overlay = self._file("tuned", self.choices["tuned"]) if "tuned" in self.choices else None
        if overlay and (line := _line_of(overlay, tuple(key.split(".")))):
            return Said(Origin.tuned, f"{self._name(overlay)}:{line}")
        for stage_file in self._stage_files():
            line = _line_of(stage_file, tuple(key.split(".")))
            if line:
                origin = Origin.recipe if key.startswith("recipe.") else Origin.stage
                return Said(origin, f"{self._name(stage_file)}:{line}")
        group, _, rest = key.partition(".")
        group_file = self._file(group, self.choices[group]) if group in self.choices and rest else None
        if group_file:
            line = _line_of(group_file, tuple(rest.split(".")))
            if line:
                origin = Origin(group) if group in Origin.__members__ else Origin.launcher
                return Said(origin, f"{self._name(group_file)}:{line}")
        return Said(Origin.recipe if group == "recipe" else Origin.launcher, None)

    def choice_file(self, group: str) -> str | None:
        """The short name of the file that a group's choice was read from."""
        path = self._file(group, self.choices[group]) if group in self.choices else None
        return self._name(path) if path else None

    def _stage_files(self) -> list[Path]:
        """The chosen stage's file, then the stages that it builds on, nearest first."""
        found: list[Path] = []
        waiting = [self.choices["stage"]] if "stage" in self.choices else []
        while waiting:
            path = self._file("stage", waiting.pop(0))
            if path and path not in found:
                found.append(path)
                waiting += reversed(_bases(path))
        return found

    def _file(self, group: str, choice: str) -> Path | None:
        candidates = (root / group / f"{choice}.yaml" for root in self.roots)
        return next((path for path in candidates if path.is_file()), None)

    def _name(self, path: Path) -> str:
        """A path as people say it: from the configs' parent folder, or whole when it is the user's own."""
        shipped = self.roots[-1]
        return path.relative_to(shipped.parent.parent).as_posix() if path.is_relative_to(shipped) else str(path)


@lru_cache(maxsize=64)
def _tree(path: Path) -> yaml.Node | None:
    return yaml.compose(path.read_text(encoding="utf-8"), Loader=_Loader)


def _line_of(path: Path, keys: Sequence[str]) -> int | None:
    """The 1-based line where a nested key stands in a YAML file; dotted keys of the file itself are not followed."""
    node, line = _tree(path), None
    for key in keys:
        if not isinstance(node, yaml.MappingNode):
            return None
        pair = next((pair for pair in node.value if pair[0].value == key), None)
        if pair is None:
            return None
        line, node = pair[0].start_mark.line + 1, pair[1]
    return line


def _bases(path: Path) -> list[str]:
    """The stages named in a stage file's own defaults list (`- sft`), without `_self_` and overrides."""
    node = _tree(path)
    if not isinstance(node, yaml.MappingNode):
        return []
    defaults = next((value for key, value in node.value if key.value == "defaults"), None)
    entries = defaults.value if isinstance(defaults, yaml.SequenceNode) else []
    return [entry.value for entry in entries if isinstance(entry, yaml.ScalarNode) and entry.value != "_self_"]
