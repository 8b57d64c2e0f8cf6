"""What a name of axolotl, TRL, LLaMA-Factory, accelerate or DeepSpeed is here: other_tools.yaml,
read for an answer.

A row has a `topic`, what it is `here`, its names in each tool (a list, or a text of the page's
table), names that are only understood (`also`), and the answer: `set`, overrides with {value},
{list} or {count}; `values`, overrides by a pattern of the value, `A or B` where the trainer
decides; `instead`, a sentence where there is no such setting, and beside `set` for a value that is
not a number. launch's own keys are understood without their group.
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
from launch.worker.finding import Fix, Way

FILE = Path(__file__).with_name("other_tools.yaml")
TOOLS = ("axolotl", "trl", "llama_factory")
# of launch's own keys, those that a short name may mean
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
        tools = (getattr(self, tool) for tool in TOOLS)
        return (*(name for tool in tools if not isinstance(tool, str) for name in tool), *self.also)

    def of_value(self, value: str | None) -> str | None:
        """Return the overrides that one of the tools' values means: a key of `values` is a
        pattern.
        """
        return next(
            (sets for known, sets in self.values.items() if re.fullmatch(known, value or "", re.I)),
            None,
        )

    def answer(self, name: str, value: str | None) -> Fix:
        """Return what to do for `NAME=value`: `set recipe.lora.rank=8`."""
        chosen = self.of_value(value)
        sets = self.set and not (self.instead and value and not re.fullmatch(r"[\d.,e+-]+", value))
        if chosen is None and sets:
            given = value or "VALUE"
            listed = given if given.startswith("[") else f"[{given}]"
            chosen = self.set.format(value=given, list=listed, count=len(given.split(",")))
        if chosen:
            return replacing(name, *chosen.split(" or "))
        if not self.instead:
            return replacing(name, *dict.fromkeys(self.values.values()))
        return Fix.of(self.instead, *([f"~{name}"] if self.instead.startswith("remove it") else []))


@cache
def load_table(file: Path = FILE) -> tuple[tuple[OtherToolKey, ...], Mapping[str, str]]:
    """Read the rows, and the verb that each other word means. Raises TypeError for a field that a
    row has not.
    """
    import yaml  # only for an answer

    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    rows = tuple(OtherToolKey(**row) for row in content["rows"])
    return rows, {word: verb for verb, words in content["verbs"].items() for word in words}


def replacing(name: str, *overrides: str, sentence: str = "") -> Fix:
    """Return the cure that sets one of `overrides` in the place of a key or an option that launch
    has not.
    """
    cure = set_any(*overrides)
    return Fix.of(sentence or cure.sentence, *(Way(way.sets, name) for way in cure.ways))


def explain_value(key: str, value: str) -> Fix | None:
    """Return the cure for another tool's value of launch's own key, `parallel=3`: `set
    parallel=zero3`.
    """
    targets = (row.of_value(value) or "" for row in load_table()[0])
    return next(
        (set_any(*target.split(" or ")) for target in targets if target.startswith(f"{key}=")), None
    )


def explain_like(name: str, value: str | None) -> Fix | None:
    """Return the cure for the name that is most like `name`, `learningrate=1e-5`; None if none
    is.
    """
    known = (
        {*_own_keys(), *(known for row in load_table()[0] for known in row.names)} if value else ()
    )
    near = nearest(_plain(name.rpartition(".")[2]), known, limit=1, cutoff=0.85)
    meant = explain_name(near[0], value) if near else None
    if meant is None or not any(way.sets for way in meant.ways):
        return None
    return replacing(
        name,
        *map(str, meant.ways),
        sentence=f"did you mean '{meant.sentence.removeprefix('set ')}'?",
    )


def trainer_flag(name: str, value: str | None) -> Fix:
    """Return the cure that passes what launch does not know to the trainer, which may have a flag
    of that name.
    """
    flag = f"flags.{_plain(name.rpartition('.')[2])}={value or 'VALUE'}"
    return replacing(name, flag, sentence="a trainer's own flag is set as {0}")


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name.strip("-+~")).strip("_").lower()


def explain_name(name: str, value: str | None) -> Fix | None:
    """Return the cure for a key or an option that launch has not, `--lora-r 8`: `set
    recipe.lora.rank=8`.

    Dashes in front, `-` for `_`, capitals and groups before the name do not matter. None: no tool
    has the name, or launch has the key.
    """
    parts = [_plain(part) for part in re.split(r"[.\[\]]+", name) if part and not part.isdigit()]
    names = ("_".join(parts), *parts[-1:])  # `datasets.0.path` is datasets_path before it is path
    row = next((row for known in names for row in load_table()[0] if known in row.names), None)
    own = _own_keys().get(parts[-1]) if parts else None
    group = own.rpartition(".")[0] if own else ""
    is_own = (
        len(parts) == 1 or group in parts or group.startswith("recipe") or parts[:1] == ["recipe"]
    )
    if own == name:
        return None
    if own and is_own and not (row and row.of_value(value)):
        return replacing(name, f"{own}={value or 'VALUE'}")
    return row.answer(name, value) if row else None


def translate(settings: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the overrides that another tool's file means, the stage first, and its keys that no
    override stands for.

    A value of the file's own (`lora_r: 32`) goes before what a switch beside it means (`adapter:
    lora`).
    """
    meant: dict[str, str] = {}
    left_out = []
    for name, value in settings.items():
        if value is None or name == "stage":  # LLaMA-Factory's: sft, dpo, rm
            continue
        entries = value if isinstance(value, list) else [value]
        texts = [str(each.get("path", "") if isinstance(each, dict) else each) for each in entries]
        text = texts[0] if len(texts) == 1 else f"[{','.join(texts)}]"
        cure = (
            explain_name(name, text.lower() if isinstance(value, bool) else text)
            if all(texts)
            else None
        )
        way = cure.ways[0] if cure and cure.ways else Way()
        left_out += [] if way.sets and way.is_exact else [name]
        for key, _, setting in (override.partition("=") for override in way.sets if way.is_exact):
            if key not in meant or setting == text:
                meant[key] = setting
    given = settings.get("stage")
    kind = (
        "dpo"
        if {"recipe.loss", "recipe.beta"} & meant.keys()
        else given
        if given in ("dpo", "rm")
        else "sft"
    )
    if kind != "rm" and meant.get("recipe.lora.rank", "null") != "null":
        kind = f"lora_{kind}"
    return [f"{key}={setting}" for key, setting in {"stage": kind, **meant}.items()], left_out


def explain_verb(word: str, *, exact: bool = False) -> str | None:
    """Return the verb that another tool's word means: `train` is `run`; misspelt, too, unless
    `exact`.
    """
    verbs = load_table()[1]
    near = nearest(word.lower(), verbs, limit=1, cutoff=1.0 if exact else 0.75)
    return f"did you mean '{verbs[near[0]]}'?" if near else None


@cache
def _own_keys() -> dict[str, str]:
    """Map the last part of each of launch's own keys to the key, where only one has it."""
    from launch.config.schema import walk_keys

    keys = {group: [group] for group in GROUPS}
    for key, _ in walk_keys():
        group, _, name = key.rpartition(".")
        if not group or group.partition(".")[0] in _GROUPS:
            keys.setdefault(name, []).append(key)
    return {name: named[0] for name, named in keys.items() if len(named) == 1}
