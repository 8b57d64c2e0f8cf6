"""Reads the YAML file that a command gives to its trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.config.yaml_nodes import NotYamlError, Positions, load_yaml, yaml_positions
from launch.worker.finding import Finding

# The ids of problems that are about a key of the file.
_ABOUT_CONTENT = frozenset({"unknown_key", "dropped_key", "bad_value", "wrong_type"})
MAX_CONFIG = 1_000_000  # bytes; a larger file is data, and is not read


@dataclass(frozen=True)
class ConfigFile:
    """A YAML file of flags."""

    path: Path
    option: str  # that names it; "" for the first argument
    line: int  # of the command's file, where it is named
    values: Mapping[str, Any] | None  # None if it cannot be read
    problem: str | None = None  # why the trainer cannot read it
    positions: Positions | None = None

    def with_place(self, problem: Finding) -> Finding:
        """Return a problem of the file's content with its file:line in the message."""
        if problem.id not in _ABOUT_CONTENT:
            return problem
        line = None
        if self.positions is not None and problem.where:
            line = self.positions.of((problem.where,))
        place = f"{self.path}:{line}" if line else str(self.path)
        return replace(problem, message=f"{place}: {problem.message}")


def read_config(path: Path, option: str, line: int) -> ConfigFile:
    """Read a file. One that is too large or can't be opened has neither values nor a problem."""
    try:
        if path.stat().st_size > MAX_CONFIG:
            return ConfigFile(path, option, line, None)
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ConfigFile(path, option, line, None)
    try:
        content = load_yaml(text)
    except NotYamlError as fault:
        place = f"{path}:{fault.line}" if fault.line else str(path)
        message = f"{place}: it is not YAML: {fault.reason}"
        return ConfigFile(path, option, line, None, message)
    if not isinstance(content, Mapping):
        message = f"{path}: it is not a map of flags"
        return ConfigFile(path, option, line, None, message)
    return ConfigFile(path, option, line, content, positions=yaml_positions(text))
