"""The record of a bench, a rollout or a search: a JSON file that is rewritten while others read it."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from launch.errors import Problem, UserError
from launch.files import load_json, write_file
from launch.redact import Redactor
from launch.worker.json_codec import to_json

T = TypeVar("T")


class TrialRecord(ABC):
    """What a bench, a rollout or a search records: a JSON file, and texts for people beside it."""

    @property
    @abstractmethod
    def path(self) -> Path: ...

    @abstractmethod
    def as_json(self) -> dict[str, Any]: ...

    def write(self, redactor: Redactor, texts: Mapping[str, str]) -> None:
        """Write the JSON to `path` and `texts`, by file name, beside it; each file whole or not at all."""
        clean = to_json(redactor.redact_object(self.as_json()))
        files = {self.path.name: json.dumps(clean, indent=2, ensure_ascii=False, allow_nan=False) + "\n"}
        files |= {name: redactor.redact_text(text) for name, text in texts.items()}
        for name, content in files.items():
            write_file(self.path.with_name(name), content)


def read_record(path: Path, parse: Callable[[Any], T], problem_id: str) -> T | None:
    """Parse an earlier record; None without one. Raises UserError (`problem_id`) when it cannot be read or parsed."""
    try:
        return parse(load_json(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{path} cannot be read: {type(error).__name__}"
        raise UserError(Problem(problem_id, message, "name", "choose another name=, or move the folder")) from None


def another_record(problem_id: str, message: str) -> UserError:
    """The error for a folder that holds the record of something else."""
    return UserError(Problem(problem_id, message, "name", "choose another name=, or leave it out"))


def changed_versions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs between two environments.

    >>> changed_versions({"torch": "2.11.0"}, {"torch": "2.13.0"})
    ['torch was 2.11.0, is 2.13.0']
    """
    return [
        f"{name} was {before.get(name)}, is {after.get(name)}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def utc_now() -> str:
    """The time in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
