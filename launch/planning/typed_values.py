"""Reads a value of a typed line: a number in words, with a comma or a `k`, a list, or a sweep."""

from __future__ import annotations

import re
from typing import Any

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
