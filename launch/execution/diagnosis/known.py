"""Read known.yaml: what libraries print when a run fails, and what to do about it. It is read when a run has failed."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from launch.worker.json_codec import from_json

FILE = Path(__file__).with_name("known.yaml")
_PHRASES = {"fatal", "survived", "progress_bar", "peer_died"}


@dataclass(frozen=True)
class KnownCause:
    """A cause of failure that is recognised by an exception or, without one, by a line printed last."""

    id: str
    pattern: str  # searched in the message, or in each line
    errors: str | None = None  # matches the exception's whole class; None: of a process without an exception
    raised_in: str | None = None  # matches a package whose code the exception passed through; None: any
    cure: str | None = None  # {name} is a group of the pattern
    computed: str | None = None  # instead of `cure`: the function of launch.execution.diagnosis.advice that returns it
    certain: bool = True


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
    causes = []
    for number, entry in enumerate(content["causes"], start=1):
        try:
            causes.append(_parse_cause(entry))
        except (ValueError, re.error) as error:
            id = entry.get("id") if isinstance(entry, dict) else None
            raise ValueError(f"{path}: cause {number} ({id}): {error}") from error
    phrases = {name: re.compile(pattern) for name, pattern in content["phrases"].items()}
    return Known(tuple(causes), phrases, {extra: tuple(names) for extra, names in content["packages"].items()})


def _parse_cause(entry: Any) -> KnownCause:
    """Return an entry. Raises ValueError or re.error for a wrong one."""
    cause = from_json(KnownCause, entry)
    if unknown := entry.keys() - (keys := {field.name for field in fields(KnownCause)}):
        raise ValueError(f"unknown key {', '.join(sorted(unknown))}; the keys are {', '.join(sorted(keys))}")
    if (cause.cure is None) == (cause.computed is None):
        raise ValueError("must have either a cure or the name of a function that computes one")
    re.compile(cause.errors or "")
    re.compile(cause.raised_in or "")
    groups = re.compile(cause.pattern).groupindex
    try:
        (cause.cure or "").format(**dict.fromkeys(groups, ""))
    except (LookupError, ValueError) as error:
        raise ValueError(f"the cure uses {error}, which is not a named group of the pattern") from error
    return cause
