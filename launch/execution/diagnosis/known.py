"""Read known.yaml: what libraries print when a run fails, and what to do about it.

It is read once a run has failed. tests/execution/diagnosis/test_known.py checks its entries.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.worker.json_codec import from_json

KNOWN_FILE = Path(__file__).with_name("known.yaml")


@dataclass(frozen=True)
class KnownCause:
    """A cause of failure. An exception shows it or, without one, a line printed last."""

    id: str
    pattern: str  # regular expression, searched in the exception's message or in each last line
    # A regular expression that matches the exception's whole class name; None for a cause that shows
    # in a process without an exception.
    errors: str | None = None
    # A regular expression that matches a package whose code the exception passed through; None for
    # any package.
    raised_in: str | None = None
    cure: str | None = None  # {name} stands for a group of the pattern
    computed: str | None = None  # the method of advice.Situation that returns it, instead of `cure`
    certain: bool = True  # whether the cure helps whenever the pattern matches


@dataclass(frozen=True)
class Known:
    """The content of known.yaml."""

    causes: tuple[KnownCause, ...]
    phrases: Mapping[str, re.Pattern[str]]  # fatal, survived, warning, progress_bar, peer_died
    packages: Mapping[str, tuple[str, ...]]  # {extra of pyproject.toml: import names}


@functools.cache
def known() -> Known:
    from launch.config.yaml_nodes import load_yaml  # slow to import

    content: Any = load_yaml(KNOWN_FILE.read_text(encoding="utf-8"))
    causes = tuple(from_json(KnownCause, entry) for entry in content["causes"])
    phrases = {name: re.compile(pattern) for name, pattern in content["phrases"].items()}
    packages = {extra: tuple(names) for extra, names in content["packages"].items()}
    return Known(causes, phrases, packages)
