"""Reads a value of a typed line: a number in words, with a comma or a `k`, a list, or a sweep; and writes
one with a unit as launch's key has it.
"""

from __future__ import annotations

import re
import typing
from typing import Any

from launch.config.nodes import find_hint
from launch.config.schema import RootConfig
from launch.config.yaml_nodes import NotYamlError, load_yaml

_NUMBERS = {
    word: number
    for number, word in enumerate(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    )
}
_LIST_OF_NUMBERS = re.compile(r"[-+\d.e]+(,[-+\d.e]+)+")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")
_THOUSANDS = re.compile(r"(\d+)k", re.IGNORECASE)
_OF_TOKENS = re.compile(r".*(len|length|seq|context|cutoff|tokens|block_size).*")
_TIME = re.compile(r"(\d+-)?\d+(:\d\d){1,2}")  # YAML reads a number of seconds
_DECIMAL_COMMA = re.compile(r"\d,\d+(e-\d+)?")
_FRACTIONS = re.compile(r"lr|.*learning_rate|.*beta|.*ratio|.*decay|.*dropout|temperature|.*_coef")
_DURATION = re.compile(
    r"(?:(\d+)\s*d(?:ays?)?)?\s*(?:(\d+)\s*h(?:ours?|rs?)?)?\s*(?:(\d+)\s*m(?:in(?:utes?)?)?)?",
    re.IGNORECASE,
)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([mgt])i?b?", re.IGNORECASE)
_GIB = {"m": 1 / 1024, "g": 1, "t": 1024}
_TIMES = ("cluster.time", "cluster.tokenize_time")
_NAMES = ("recipe.lora.modules_to_save", "recipe.lora.target_parameters")  # always a list
_NOTHING = ("none", "nil", "unlimited", "infinite", "inf")


def write_value(key: str, text: str) -> str:
    """Return a value as launch's key has it: `4k` tokens are 4096, `2d` is 2-00:00:00, `80GB` of a GPU
    is 80, `None` is null; any other text as it is.
    """
    duration = _DURATION.fullmatch(text) if key in _TIMES and text else None
    if duration is not None:
        return _as_time(duration)
    memory = _MEMORY.fullmatch(text)
    if memory is not None and key == "cluster.gpu_memory":
        return f"{float(memory[1]) * _GIB[memory[2].lower()]:g}"
    if memory is not None and key == "cluster.memory":
        return f"{memory[1]}{memory[2].upper()}"
    if key in _NAMES and text and text[0] not in "[{$":
        return f"[{text}]"
    if text.lower() in _NOTHING and _may_be_null(key):
        return "null"
    is_thousands = key.startswith("recipe.") and _THOUSANDS.fullmatch(text) is not None
    return str(read_value(key, text)) if is_thousands else text


def _as_time(duration: re.Match[str]) -> str:
    """Return days, hours and minutes as Slurm has them."""
    days, hours, minutes = (int(part or 0) for part in duration.groups())
    hours += days * 24 + minutes // 60
    clock = f"{hours % 24:02}:{minutes % 60:02}:00"
    return f"{hours // 24}-{clock}" if hours >= 24 else clock


def _may_be_null(key: str) -> bool:
    return type(None) in typing.get_args(find_hint(RootConfig, key))


def read_value(name: str, text: str) -> Any:
    """Return a value: a number that is written as a word or with a comma, a list, or as YAML has it."""
    text = text.strip()
    thousands = _THOUSANDS.fullmatch(text)
    if thousands is not None:
        return int(thousands[1]) * (1024 if _OF_TOKENS.fullmatch(name) else 1000)
    share = _SHARE.fullmatch(text)
    if share is not None:
        return float(share[1]) / 100
    if _DECIMAL_COMMA.fullmatch(text) and _FRACTIONS.fullmatch(name):
        return float(text.replace(",", "."))
    if _TIME.fullmatch(text) or _LIST_OF_NUMBERS.fullmatch(text):
        return text  # a limit of Slurm, a sweep
    if "," in text and not text.startswith(("[", "{")):
        return text.split(",")
    return _NUMBERS.get(text.lower(), _parse(text))


def _parse(text: str) -> Any:
    """Return a number, a boolean or a list, as YAML has it; `2e-5` stays a text, as it was typed."""
    try:
        value = load_yaml(text)
    except NotYamlError:
        return text
    return value if isinstance(value, int | float | list) else text


def is_sweep(value: Any) -> bool:
    """Return whether a value is several numbers, each for a run of its own."""
    return isinstance(value, str) and _LIST_OF_NUMBERS.fullmatch(value) is not None


def as_whole(value: Any) -> int | None:
    """Return a whole number; None for a fraction and anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() and not isinstance(value, bool) else None
