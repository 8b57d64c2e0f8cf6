"""Reads a command line that is written in the words of other tools, as one set of names and values.

A verb, words without a name, `--flag value`, `--flag=value` and `key=value` are one thing here. What
is a key of launch stays an override; everything else is a setting, as a file of another tool has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from launch.config.kinds import KINDS
from launch.config.line import DATA_FILES, MULTIRUN, NAME_AFTER_FILE, is_bare_word, override_key
from launch.config.nodes import find_hint
from launch.config.other_tools import explain_value, explain_verb, known_names
from launch.config.schema import RootConfig
from launch.config.yaml_nodes import NotYamlError, load_yaml
from launch.errors import nearest
from launch.resources import GROUPS, group_options
from launch.upstream.pin.lock import locked_schema

VERBS = ("run", "plan", "check", "preview", "submit")  # their line is one that a plan takes
_TOOLS = ("axolotl", "llamafactory-cli", "trl", "swift", "unsloth")
_FILES = (".yaml", ".yml")
# The methods and the kinds of training, by what a word or the name of a recipe contains.
_METHODS = re.compile(r"sft|dpo|ipo|kto|orpo|simpo|grpo|ppo|rloo|reinforce|rlvr|reward_model\w*|rm")
_ADAPTERS = re.compile(r"q?lora")
# Settings that name the method, the model or the data in one tool or another.
_METHOD_NAMES = (
    *("method", "algorithm", "algo", "task", "task_type", "training_type", "training_method"),
    *("objective", "rl", "rl_type", "rlhf_type", "stage", "mode"),
)
_LISTS = ("lora_target_modules", "target_modules", "lora_target", "reward_funcs", "dataset")
_FILE_NAMES = ("config", "config_file", "yaml", "recipe_file")
_NUMBERS = {
    word: number
    for number, word in enumerate(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    )
}
_LIST_OF_NUMBERS = re.compile(r"[-+\d.e]+(,[-+\d.e]+)+")
_DECIMAL_COMMA = re.compile(r"\d,\d+(e-\d+)?")
_FRACTIONS = re.compile(r"lr|.*learning_rate|.*beta|.*ratio|.*decay|.*dropout|temperature|.*_coef")


@dataclass
class TypedLine:
    """What a line sets, whoever's words it has."""

    verb: str = "run"  # the verb of launch that is meant
    file: Path | None = None  # of another tool
    method: str = ""  # a stage that a word names: sft, dpo, rm or rlvr
    settings: dict[str, Any] = field(default_factory=dict)  # by the names of other tools
    overrides: dict[str, str] = field(default_factory=dict)  # by launch's own keys
    foreign: list[str] = field(default_factory=list)  # what launch does not have, as typed
    notes: list[str] = field(default_factory=list)  # how a word was understood

    @property
    def names_data(self) -> bool:
        return "dataset_name" in self.settings or "data" in self.overrides

    @property
    def names_model(self) -> bool:
        model = {"model", "model.path"} & self.overrides.keys()
        return "model_name_or_path" in self.settings or bool(model)


def read_line(argv: Sequence[str]) -> TypedLine:
    """Read the arguments of a line. A name that is misspelt is the nearest one of any tool."""
    typed = TypedLine()
    words = list(argv)
    while len(words) > 1 and words[0] in _TOOLS:
        typed.foreign.append(words.pop(0))
    if words and is_bare_word(words[0]) and _take_verb(typed, words[0]):
        words.pop(0)
    for name, values in _split(words):
        if name:
            _take_setting(typed, name, values)
        else:
            _take_word(typed, values[0])
    return typed


def _split(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each name with its values; a word without a name has the name ""."""
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word in ("--json", *MULTIRUN):
            continue
        name, equals, value = word.partition("=")
        if word.startswith("-") and not equals:
            most = len(words) if _plain(name) in _LISTS else 1
            values: list[str] = []
            while position < len(words) and len(values) < most and is_bare_word(words[position]):
                values.append(words[position])
                position += 1
            yield name, values or ["true"]
        elif equals:
            values = [value]
            while (
                _plain(name) in _LISTS and position < len(words) and is_bare_word(words[position])
            ):
                values.append(words[position])
                position += 1
            yield name, values
        else:
            yield "", [word]


def _take_verb(typed: TypedLine, word: str) -> bool:
    """Take the first word as the verb; return whether it is one."""
    if word in VERBS:
        typed.verb = word
        return True
    meant = explain_verb(word)
    if meant in VERBS and not _METHODS.fullmatch(word):
        typed.verb = meant
        typed.foreign.append(word)
        return True
    return False


def _take_word(typed: TypedLine, word: str) -> None:
    """Take a word without a name: a file, a method, a recipe's name."""
    if word.endswith(_FILES):
        typed.file = Path(word)
        return
    typed.foreign.append(word)
    if word.endswith(DATA_FILES) or NAME_AFTER_FILE.fullmatch(word):
        _take_data(typed, word)
    elif not _take_method(typed, word):
        typed.notes.append(f"'{word}' was not understood")


def _take_method(typed: TypedLine, word: str) -> bool:
    """Take the name of a method or of a recipe (`lora_dpo_single_device`)."""
    plain = _plain(word)
    if plain in group_options("stage") and plain not in KINDS:
        typed.overrides["stage"] = plain
        return True
    parts = plain.split("_")
    methods = [part for part in parts if _METHODS.fullmatch(part)]
    has_adapter = any(_ADAPTERS.fullmatch(part) for part in parts)
    if has_adapter:
        typed.settings.setdefault("adapter", "qlora" if "qlora" in parts else "lora")
    stage = explain_value("stage", plain)
    if methods:
        typed.method = methods[0]
    elif stage is not None:
        typed.method = str(stage.ways[0]).removeprefix("stage=").removeprefix("lora_")
    return bool(methods or stage or has_adapter)


def _take_setting(typed: TypedLine, written: str, values: list[str]) -> None:
    value = ",".join(values)
    own = _own_key(written)
    names_stage = value in group_options("stage") or value.endswith(_FILES)
    is_unknown_stage = own == "stage" and not names_stage
    if written.startswith("-") or own is None or is_unknown_stage:
        typed.foreign.append(written)
    name = _canonical(written)
    names_file = own == "stage" or _plain(written) in _FILE_NAMES
    if names_file and value.endswith(_FILES):
        typed.file = Path(value)
    elif own in ("data", "data.mix") and value.startswith(("[", "{")):
        typed.overrides[own] = value
    elif own in ("data", "data.mix") or name in _names_of("data"):
        _take_data(typed, value)
    elif own in ("model", "model.path") or name in _names_of("model"):
        _take_model(typed, own, value)
    elif own == "stage" and not written.startswith("-") and value in group_options("stage"):
        typed.overrides["stage"] = value
    elif _plain(written) in _METHOD_NAMES and _take_method(typed, value):
        pass
    elif own is not None:
        typed.overrides[own] = _own_value(own, value)
    elif name in _names_of("ranks") or name in _names_of("machines"):
        _take_ranks(typed, "nodes" if name in _names_of("machines") else "gpus", value)
    else:
        if name != _plain(written) and name != _plain(written).rpartition(".")[2]:
            typed.notes.append(f"{written} is read as {name}")
        typed.settings[name] = read_value(name, value)


def _take_data(typed: TypedLine, value: str) -> None:
    """Take data; a name behind a file (`rows.jsonl:alpaca`) says its form, which is recognised."""
    if value in group_options("data"):
        typed.overrides["data"] = value
        return
    behind = NAME_AFTER_FILE.fullmatch(value)
    if behind is not None and not Path(value).exists():
        value = behind[1]
        typed.notes.append(f"the form of {value} is recognised by its columns")
    typed.settings["dataset_name"] = value.split(",") if "," in value else value


def _take_model(typed: TypedLine, own: str | None, value: str) -> None:
    """Take a model: a group of launch stays one. Qwen's hub ids follow from its names."""
    if own == "model" and value in group_options("model"):
        typed.overrides["model"] = value
        return
    hub_id = hub_id_of(value)
    if hub_id is not None:
        typed.notes.append(f"{hub_id} is taken for the model {value}")
    typed.settings["model_name_or_path"] = hub_id or value


def hub_id_of(name: str) -> str | None:
    """Return the hub id of a model of Qwen, whose name follows from its size; None for any other."""
    qwen = re.fullmatch(r"qwen-?([\d.]+)-([\d.]+)b(-instruct)?", name.lower())
    if qwen is None:
        return None
    return f"Qwen/Qwen{qwen[1]}-{qwen[2]}B{'-Instruct' if qwen[3] else ''}"


def _take_ranks(typed: TypedLine, key: str, value: str) -> None:
    """Take a number of GPUs or machines; `T4` is the kind of one GPU."""
    if value.isdigit():
        typed.overrides[key] = value
        return
    meant = explain_value(key, value)
    if meant is not None:
        typed.overrides[key] = str(meant.ways[0]).partition("=")[2]
    elif re.fullmatch(r"\d(,\d)+", value):
        typed.overrides[key] = str(len(value.split(",")))
    else:
        typed.overrides[key] = "1"
        typed.notes.append(f"{value} is a kind of GPU: one is used, whichever this machine has")


def _own_value(key: str, value: str) -> str:
    """Return a value of launch's own key as launch has it."""
    if key == "gpus" and not value.isdigit():
        ranks = TypedLine()
        _take_ranks(ranks, key, value)
        return ranks.overrides[key]
    meant = explain_value(key, value)
    if meant is not None and meant.ways[0].sets:
        changed_key, _, changed = meant.ways[0].sets[0].partition("=")
        return changed if changed_key == key else value
    return value


def read_value(name: str, text: str) -> Any:
    """Return a value: a number that is written as a word or with a comma, a list, or as YAML has it."""
    text = text.strip()
    if text.lower() in _NUMBERS:
        return _NUMBERS[text.lower()]
    if _DECIMAL_COMMA.fullmatch(text) and _FRACTIONS.fullmatch(name):
        return float(text.replace(",", "."))
    if _LIST_OF_NUMBERS.fullmatch(text):
        return text  # a sweep
    if "," in text and not text.startswith(("[", "{")):
        return text.split(",")
    return _parse(text)


def _parse(text: str) -> Any:
    """Return a number, a boolean or a list, as YAML has it; `2e-5` stays a text, as it was typed."""
    try:
        value = load_yaml(text)
    except NotYamlError:
        return text
    return value if isinstance(value, int | float | list) else text


def is_sweep(value: Any) -> bool:
    """Return whether a value is several numbers, of which each is a run."""
    return isinstance(value, str) and _LIST_OF_NUMBERS.fullmatch(value) is not None


def _plain(name: str) -> str:
    """Return a name in lower case, with `_` between its words; the dots stay."""
    return re.sub(r"[^\w.]+", "_", name.strip("-+~")).strip("_").lower()


def _own_key(written: str) -> str | None:
    """Return launch's key of a name, with dashes in front or not; None if launch has none."""
    key = override_key(written).strip("-")
    if key in ("sweep", "restart", "detach", "pipeline"):
        return key
    if "." not in key:
        key = _plain(key)
    is_own = key in GROUPS or find_hint(RootConfig, key) is not None
    return key if is_own and key != "recipe" else None


def _canonical(written: str) -> str:
    """Return the name of any tool that is meant: the last part of a dotted one, or the nearest."""
    plain = _plain(written)
    known = _known()
    for name in (plain.replace(".", "_"), plain.rpartition(".")[2]):
        if name in known:
            return name
    near = nearest(plain.rpartition(".")[2], known, limit=1, cutoff=0.75)
    return near[0] if near else plain


@cache
def _known() -> frozenset[str]:
    """Return every name of a setting that is understood."""
    names = {*known_names(), *_METHOD_NAMES, *_FILE_NAMES}
    for row in KINDS.values():
        if row.trainer:
            names.update(locked_schema(row.trainer).fields)
    return frozenset(names)


@cache
def _names_of(topic: str) -> frozenset[str]:
    return frozenset(known_names(topic))
