"""Translates keys of axolotl, TRL, LLaMA-Factory, accelerate and DeepSpeed into launch's keys.

The table of names is other_tools.yaml. Names whose value is the same in launch are in the table of
recipe keys instead (launch/config/recipe_keys.py). The other sections of the file are read by
launch/config/other_commands.py (`verbs`, `answers`) and by launch/planning/other_tool_defaults.py
(`defaults`, `without`).

A row has these fields:

- `topic`: what the setting is about;
- `here`: launch's key, as the table on the documentation's page shows it;
- `axolotl`, `trl`, `llama_factory`: the tool's names, as a list, or a text for the page alone;
- `also`: further names that are understood, but not shown on the page;
- `set`: the overrides that have the same effect, with {value}, {list} or {count};
- `values`: overrides by a pattern of the value, `A or B` where the trainer decides;
- `instead`: a sentence, where launch has no such setting. Beside `set` it answers a value that is
  not a number.

launch's own keys are also understood without their group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from launch.errors import nearest, set_any
from launch.resources import GROUPS
from launch.worker.finding import Action, Fix

_FILE = Path(__file__).with_name("other_tools.yaml")
_RECIPE_KEYS = "the keys of the recipe"  # an entry of `rows` for the rows of all recipe keys
OTHER_TOOLS = ("axolotl", "trl", "llama_factory")
# A name without a group may be a key of one of these groups.
_GROUPS = ("recipe", "model", "data", "tracking", "hub")


@dataclass(frozen=True)
class OtherToolKey:
    """One line of the table."""

    topic: str
    here: str = ""  # "": not in the page's table
    axolotl: Sequence[str] = "-"
    trl: Sequence[str] = "-"
    llama_factory: Sequence[str] = "-"
    also: Sequence[str] = ()
    set: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    instead: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that the row answers."""
        names: list[str] = []
        for tool in OTHER_TOOLS:
            of_tool = getattr(self, tool)
            if not isinstance(of_tool, str):
                names += of_tool
        return (*names, *self.also)

    def of_value(self, value: str | None) -> str | None:
        """Return the overrides that a value stands for; None if no pattern of `values` matches."""
        for pattern, overrides in self.values.items():
            if re.fullmatch(pattern, value or "", re.IGNORECASE):
                return overrides
        return None

    def answer(self, name: str, value: str | None) -> Fix:
        """Return what to do for `NAME=value`: `set recipe.lora.rank=8`."""
        if value == "auto" and not self.values and self.set.startswith("recipe."):
            key = self.set.partition("=")[0]
            return Fix.of(
                f"remove it: {key} has a number in every stage; `launch tune` searches the micro batch",
                f"~{name}",
            )
        overrides = self.of_value(value)
        is_number = not value or re.fullmatch(r"[\d.,e+-]+", value)
        if overrides is None and self.set and (is_number or not self.instead):
            text = value or "VALUE"
            as_list = text if text.startswith("[") else f"[{text}]"
            overrides = self.set.format(value=text, list=as_list, count=len(text.split(",")))
        if overrides:
            return replacing(name, *overrides.split(" or "))
        if not self.instead:
            return replacing(name, *dict.fromkeys(self.values.values()))
        if self.instead.startswith("remove it"):
            return Fix.of(self.instead, f"~{name}")
        return Fix.of(self.instead)


@cache
def read_sections(file: Path = _FILE) -> Mapping[str, Any]:
    """Read the sections of the file."""
    import yaml  # slow to import; only an answer needs it

    content: Mapping[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content


@cache
def load_rows(file: Path = _FILE) -> tuple[OtherToolKey, ...]:
    """Read the rows of the table. Raises TypeError for an unknown field of a row."""
    rows: list[OtherToolKey] = []
    for row in read_sections(file)["rows"]:
        rows += _rows_of_recipe() if row == _RECIPE_KEYS else [OtherToolKey(**row)]
    return tuple(rows)


def _rows_of_recipe() -> list[OtherToolKey]:
    """Return the rows of the recipe keys that other tools have by another name."""
    from launch.config.recipe_keys import KEYS

    rows = []
    for key, row in KEYS.items():
        if row.other_names:
            axolotl, trl, llama_factory = (row.names_of(tool) for tool in OTHER_TOOLS)
            line = OtherToolKey(
                re.sub(r"[._]", " ", key),
                here=f"`recipe.{key}`" if axolotl or trl or llama_factory else "",
                axolotl=axolotl or "-",
                trl=trl or "-",
                llama_factory=llama_factory or "-",
                also=row.names_of("others"),
                set=f"recipe.{key}={{value}}",
            )
            rows.append(line)
    return rows


def replacing(name: str, *overrides: str, sentence: str = "") -> Fix:
    """Return the cure that sets one of `overrides` in the place of a key or an option that launch
    does not have.
    """
    cure = set_any(*overrides)
    actions = [Action(action.sets, name) for action in cure.actions]
    return Fix.of(sentence or cure.sentence, *actions)


def explain_value(key: str, value: str) -> Fix | None:
    """Return the cure for another tool's value of launch's own key, `parallel=3`: `set
    parallel=zero3`.
    """
    for row in load_rows():
        overrides = row.of_value(value)
        if overrides and overrides.startswith(f"{key}="):
            return set_any(*overrides.split(" or "))
    return None


def explain_like(name: str, value: str | None) -> Fix | None:
    """Return the cure for the known name that is most like `name`, such as `learningrate`.

    Returns None if no known name is like it.
    """
    if not value:
        return None
    known = set(_own_keys())
    for row in load_rows():
        known.update(row.names)
    last_part = name.rpartition(".")[2]
    near = nearest(plain_name(last_part), known, limit=1, cutoff=0.85)
    cure = explain_name(near[0], value) if near else None
    if cure is None or not any(action.sets for action in cure.actions):
        return None
    overrides = [str(action) for action in cure.actions]
    sentence = f"did you mean '{cure.sentence.removeprefix('set ')}'?"
    return replacing(name, *overrides, sentence=sentence)


def trainer_flag(name: str, value: str | None) -> Fix:
    """Return the cure that passes an unknown name to the trainer, which may have a flag of that
    name.
    """
    flag = f"flags.{plain_name(name.rpartition('.')[2])}={value or 'VALUE'}"
    return replacing(name, flag, sentence="a trainer's own flag is set as {0}")


def plain_name(name: str) -> str:
    """Return a name in lower case, with `_` between its words: `--Lora-R` is `lora_r`."""
    return re.sub(r"\W+", "_", name.strip("-+~")).strip("_").lower()


def explain_name(name: str, value: str | None) -> Fix | None:
    """Return the cure for a key or an option that launch does not have, `--lora-r 8`: `set
    recipe.lora.rank=8`.

    Dashes in front, `-` for `_`, capitals and groups before the name do not matter. Returns None if
    no tool has the name, or launch has the key.
    """
    parts = [
        plain_name(part) for part in re.split(r"[.\[\]]+", name) if part and not part.isdigit()
    ]
    row = _find_row(parts)
    key = _own_keys().get(parts[-1]) if parts else None
    if key == name:
        return None
    if key is not None and _may_mean(key, parts) and not (row and row.of_value(value)):
        cure = explain_value(key, value) if value else None
        if cure is not None:
            return replacing(name, *map(str, cure.actions))
        return replacing(name, f"{key}={value or 'VALUE'}")
    return row.answer(name, value) if row else None


def _find_row(parts: Sequence[str]) -> OtherToolKey | None:
    """Return the row of a dotted name: of `datasets.0.path`, the row of datasets_path, else of path."""
    for name in ("_".join(parts), *parts[-1:]):
        for row in load_rows():
            if name in row.names:
                return row
    return None


def _may_mean(key: str, parts: Sequence[str]) -> bool:
    """Return whether a dotted name may mean launch's `key`, which has the same last part.

    It may not if its other parts name another group.
    """
    group = key.rpartition(".")[0]
    return len(parts) == 1 or group in parts or group.startswith("recipe") or parts[0] == "recipe"


def known_names(topic: str | None = None) -> set[str]:
    """Return the names in the rows of a topic. Without a topic, return those of all rows, and
    launch's own keys without their group.
    """
    names: set[str] = set() if topic else set(_own_keys())
    for row in load_rows():
        if topic in (None, row.topic):
            names.update(row.names)
    return names


@cache
def _own_keys() -> dict[str, str]:
    """Map the last part of each of launch's own keys to the key, where only one has it."""
    from launch.config.nodes import walk_keys
    from launch.config.schema import RootConfig

    keys = {group: [group] for group in GROUPS}
    for key, _ in walk_keys(RootConfig):
        group, _, name = key.rpartition(".")
        if not group or group.partition(".")[0] in _GROUPS:
            keys.setdefault(name, []).append(key)
    return {name: same_name[0] for name, same_name in keys.items() if len(same_name) == 1}
