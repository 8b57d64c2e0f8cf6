"""Read known.yaml: what libraries print when a run fails, and what to do about it. It is read when a run has failed."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("known.yaml")
_PHRASES = {"fatal", "survived", "progress_bar", "peer_died"}
_KEYS = {"id", "errors", "pattern", "cure", "computed", "certain"}


@dataclass(frozen=True)
class KnownCause:
    """A cause of failure that is recognised by an exception or, without one, by a line printed last."""

    id: str
    errors: re.Pattern[str] | None  # fullmatch with the exception's class; None: of a process without an exception
    pattern: re.Pattern[str]  # searched in the message, or in each line
    cure: str | None  # {name} is a group of the pattern
    computed: str | None  # instead of `cure`: the function of launch.execution.diagnosis.advice that returns it
    is_certain: bool


@dataclass(frozen=True)
class Known:
    """The content of known.yaml."""

    causes: tuple[KnownCause, ...]
    phrases: Mapping[str, re.Pattern[str]]
    packages: Mapping[str, tuple[str, ...]]  # by extra of pyproject.toml


@functools.cache
def known() -> Known:
    return load_known(FILE)


def load_known(path: Path) -> Known:
    """Read such a file. Raises ValueError with the entry at fault."""
    from launch.config.yaml_nodes import load_yaml  # slow to import

    content = load_yaml(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.keys() != {"causes", "phrases", "packages"}:
        raise ValueError(f"{path}: must have causes, phrases and packages, and nothing else")
    if content["phrases"].keys() != _PHRASES:
        raise ValueError(f"{path}: phrases must be {', '.join(sorted(_PHRASES))}")
    phrases = {name: _compile(pattern, f"{path}: phrase {name}") for name, pattern in content["phrases"].items()}
    causes = [_parse_cause(entry, f"{path}: cause {number}") for number, entry in enumerate(content["causes"], start=1)]
    return Known(tuple(causes), phrases, {extra: tuple(names) for extra, names in content["packages"].items()})


def _parse_cause(entry: Any, where: str) -> KnownCause:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        raise ValueError(f"{where}: must be an object with an id")
    where = f"{where} ({entry['id']})"
    if unknown := entry.keys() - _KEYS:
        raise ValueError(f"{where}: unknown key {', '.join(sorted(unknown))}; the keys are {', '.join(sorted(_KEYS))}")
    if ("cure" in entry) == ("computed" in entry):
        raise ValueError(f"{where}: must have either a cure or the name of a function that computes one")
    texts = {key: entry[key] for key in _KEYS - {"certain"} if key in entry}
    if wrong := [key for key, value in texts.items() if not isinstance(value, str)]:
        raise ValueError(f"{where}: {', '.join(sorted(wrong))} must be text")
    if not isinstance(entry.get("certain", True), bool):
        raise ValueError(f"{where}: certain must be true or false")
    pattern = _compile(entry.get("pattern"), f"{where}, pattern")
    try:
        entry.get("cure", "").format(**dict.fromkeys(pattern.groupindex, ""))
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{where}: the cure uses {error}, which is not a named group of the pattern") from error
    return KnownCause(
        id=entry["id"],
        errors=_compile(entry["errors"], f"{where}, errors") if "errors" in entry else None,
        pattern=pattern,
        cure=entry.get("cure"),
        computed=entry.get("computed"),
        is_certain=entry.get("certain", True),
    )


def _compile(pattern: Any, where: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(f"{where}: not a regular expression: {error}") from error
