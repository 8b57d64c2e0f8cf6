"""Translates names of axolotl, TRL, LLaMA-Factory, accelerate and DeepSpeed into launch's keys.

The names are in other_tools.yaml, and in the table of recipe keys (launch/config/recipe_keys.py) where
a value is the same here. The file has the words and the answers besides, and what a whole file leaves
out or launch lacks (launch/planning/other_tool_defaults.py). A row has a `topic`, what it is `here`,
its names in each tool (a list, or a text of the page's table), names that are only understood (`also`),
and the answer. The answer is `set`, overrides with {value}, {list} or {count}; `values`, overrides by a
pattern of the value, `A or B` where the trainer decides; or `instead`, a sentence where there is no
such setting, and besides `set` for a value that is not a number. `differs` has, by a pattern of the
value, what the answer changes of what was meant. launch's own keys are understood without their group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from launch.config.typed_values import write_value
from launch.errors import misspelt, nearest, set_any
from launch.resources import GROUPS
from launch.worker.finding import Action, Fix

_FILE = Path(__file__).with_name("other_tools.yaml")
_RECIPE_KEYS = "the keys of the recipe"  # the place of their rows among the others
OTHER_TOOLS = ("axolotl", "trl", "llama_factory")
_NEGATED = re.compile(r"(?:no|disable|without)_(.+)")  # `--no_bf16`
_SHARE = re.compile(r"\d*\.?\d+")
# The groups of launch's keys that a name without its group may be a key of.
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
    differs: Mapping[str, str] = field(default_factory=dict)

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
        return _find_pattern(self.values, value)

    def difference(self, value: str | None) -> str:
        """Return what the answer to a value changes of what was meant; "" if nothing."""
        return _find_pattern(self.differs, value) or ""

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
            count = len(text.split(","))
            overrides = self.set.format(value=text, list=as_list, count=count, mix=_as_mix(text))
        if overrides:
            cure = replacing(name, *map(_written, overrides.split(" or ")))
            difference = self.difference(value)
            return replace(cure, sentence=f"{difference}: {cure.sentence}") if difference else cure
        if not self.instead:
            return replacing(name, *dict.fromkeys(self.values.values()))
        if self.instead.startswith("remove it"):
            return Fix.of(self.instead, f"~{name}")
        return Fix.of(self.instead)


def _written(overrides: str) -> str:
    """Return overrides with each value as its key has it."""
    sets = []
    for item in Action.parse(overrides).sets:
        key, _, value = item.partition("=")
        sets.append(f"{key}={write_value(key, value)}")
    return " ".join(sets)


def _find_pattern(texts: Mapping[str, str], value: str | None) -> str | None:
    """Return the text of the first pattern that matches a value; None if none does."""
    for pattern, text in texts.items():
        if re.fullmatch(pattern, value or "", re.IGNORECASE):
            return text
    return None


def read_mixer(text: str) -> list[tuple[str, float]]:
    """Return the data sets of open-instruct's mixer with their shares, `a.jsonl 0.7 b.jsonl 0.3`; none
    for any other text.
    """
    words = text.split()
    shares = words[1::2]
    has_shares = len(words) % 2 == 0 and all(map(_SHARE.fullmatch, shares))
    return list(zip(words[::2], map(float, shares), strict=True)) if has_shares else []


def _as_mix(text: str) -> str:
    """Return a value of data.mix: a mixer's data sets with their shares, or the text itself."""
    entries = [f"{{name: {name}, share: {share:g}}}" for name, share in read_mixer(text)]
    return f"[{', '.join(entries)}]" if entries else text


@cache
def read_sections(file: Path = _FILE) -> Mapping[str, Any]:
    """Read the sections of the file."""
    import yaml  # slow to import; only an answer needs it

    content: Mapping[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content


@cache
def load_rows(file: Path = _FILE) -> tuple[OtherToolKey, ...]:
    """Read the rows. Raises TypeError for an unknown field of a row."""
    rows: list[OtherToolKey] = []
    for row in read_sections(file)["rows"]:
        rows += _rows_of_recipe() if row == _RECIPE_KEYS else [OtherToolKey(**row)]
    return tuple(rows)


@cache
def load_verbs(file: Path = _FILE) -> Mapping[str, str]:
    """Read launch's verb for each word that another tool has for it."""
    verbs = {}
    for verb, words in read_sections(file)["verbs"].items():
        for word in words:
            verbs[word] = verb
    return verbs


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
    parallel=zero3`, or for one with a unit, `cluster.time=2d`.
    """
    written = write_value(key, value)
    if written != value:
        return set_any(f"{key}={written}")
    rows = load_rows()
    for row in rows:
        overrides = row.of_value(value)
        is_switch = value.lower() in ("true", "false") and bool(
            overrides and overrides.endswith(("=true", "=false"))
        )  # of a key that is true or false itself
        if overrides and overrides.startswith(f"{key}=") and not is_switch:
            cure = set_any(*overrides.split(" or "))
            difference = row.difference(value)
            return replace(cure, sentence=f"{difference}: {cure.sentence}") if difference else cure
    return None


def explain_difference(name: str, value: str) -> str:
    """Return what the answer to `NAME=value` changes of what was meant; "" if nothing."""
    row = _find_row([plain_name(name)])
    return row.difference(value) if row else ""


def explain_like(name: str, value: str | None) -> Fix | None:
    """Return the cure for the name that is most like `name`, `learningrate=1e-5`; None if none
    is.
    """
    if not value:
        return None
    known = set(_own_keys())
    rows = load_rows()
    for row in rows:
        known.update(row.names)
    last_part = name.rpartition(".")[2]
    near = misspelt(plain_name(last_part), known)
    cure = explain_name(near, value) if near else None
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
        meant = explain_value(key, value) if value else None
        if meant is not None:
            return replacing(name, *map(str, meant.actions), sentence=meant.sentence)
        return replacing(name, _written(f"{key}={value or 'VALUE'}"))
    if row is not None:
        return row.answer(name, value)
    negated = _NEGATED.fullmatch(parts[-1]) if parts and value in ("true", None) else None
    cure = explain_name(negated[1], "false") if negated else None
    if cure is None:
        return None
    actions = [replace(action, removes=name) for action in cure.actions]
    return replace(cure, actions=tuple(actions))


def _find_row(parts: Sequence[str]) -> OtherToolKey | None:
    """Return the row of a dotted name: `datasets.0.path` is datasets_path before it is path."""
    rows = load_rows()
    for name in ("_".join(parts), *parts[-1:]):
        for row in rows:
            if name in row.names:
                return row
    return None


def _may_mean(key: str, parts: Sequence[str]) -> bool:
    """Return whether a dotted name whose last part is that of launch's `key` may mean the key: its
    other parts do not name another group.
    """
    group = key.rpartition(".")[0]
    return len(parts) == 1 or group in parts or group.startswith("recipe") or parts[0] == "recipe"


def find_verb(word: str, *, near: bool = False) -> str | None:
    """Return the verb that another tool's word stands for: `train` is `run`. With `near`, words that
    are like one count too.
    """
    verbs = load_verbs()
    similar = nearest(word.lower(), verbs, limit=1, cutoff=0.75 if near else 1.0)
    return verbs[similar[0]] if similar else None


def known_names(topic: str | None = None) -> set[str]:
    """Return the names that the table answers, or those of one topic; launch's own keys without
    their group are among all of them.
    """
    rows = load_rows()
    names: set[str] = set() if topic else set(_own_keys())
    for row in rows:
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
