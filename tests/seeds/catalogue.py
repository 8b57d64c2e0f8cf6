"""The list of seeded faults: seeds.toml as values, and what is wrong with it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import yaml

from tests.paths import ROOT

CATALOGUE = Path(__file__).parent / "seeds.toml"
AREAS = {
    "api": "runs that are started, watched and stopped from Python",
    "bench": "statistics and verdict of a bench",
    "cache": "digests and keys of what is reused",
    "config": "the command line, keys and their ranges",
    "data": "rows, formats and their shares",
    "diagnosis": "causes and cures of a failed run",
    "estimate": "memory and time before a run",
    "evaluation": "scores, and runs side by side",
    "evidence": "whether a requested setting is in effect",
    "gate": "rules between the widths of a rollout",
    "guard": "rules that stop a live run",
    "host": "the interpreter and the cards of this machine",
    "lint": "rules for commands that people already have",
    "merge": "an adapter into its base model",
    "pipeline": "stages that start from each other's models",
    "planner": "batch, flags and refused settings",
    "preflight": "checks of this machine",
    "reader": "logs, events and run folders",
    "redaction": "secrets that must not be written",
    "report": "the page of a run",
    "requeue": "Slurm: what is submitted, requeued and given up",
    "resume": "identity, checkpoints and what an earlier run means",
    "supervisor": "processes, tear-down and locks",
    "tune": "the search for the fastest setting",
    "upstream": "the verdict on flags, and the pin",
    "worker": "what runs inside the trainer's process",
}
_TEXTS = ("id", "area", "input", "right", "wrong", "file", "old", "new")


class Fault(Protocol):
    """A fault that can be put into a copy of the project."""

    @property
    def id(self) -> str: ...
    @property
    def area(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def tests(self) -> tuple[str, ...]:
        """Files, or pytest's node ids."""

    @property
    def behaviour(self) -> str: ...
    def mutate(self, text: str) -> str:
        """Return the file's text with the fault."""


@dataclass(frozen=True)
class Seed:
    """A fault of one place, described by behaviour, and the tests that catch it."""

    id: str
    area: str
    input: str
    right: str  # what the code does with the input
    wrong: str  # what it does with the fault
    file: str  # the place that has the duty now
    old: str  # occurs once in the file
    new: str
    tests: tuple[str, ...]  # files, or pytest's node ids

    @property
    def behaviour(self) -> str:
        return f"{self.input}: {self.right}; the fault: {self.wrong}"

    def mutate(self, text: str) -> str:
        """Return the file's text with the fault."""
        return text.replace(self.old, self.new)

    def find_faults(self, root: Path = ROOT) -> list[str]:
        """Say why the seed cannot be applied or its tests cannot be run, a line each."""
        return [*self._place_faults(root / self.file), *self._test_faults(root)]

    def _place_faults(self, path: Path) -> list[str]:
        text = path.read_text(encoding="utf-8") if path.is_file() else None
        count = text.count(self.old) if text else 0
        if text is None or count != 1:
            reason = (
                "the file is gone"
                if text is None
                else f"its old text occurs {count} times there, not once"
            )
            cure = (
                f"seed the same behaviour anew where it lives now, in tests/seeds/{CATALOGUE.name}"
            )
            return [
                (
                    f"seed {self.id} no longer applies in {self.file} ({reason}): {cure}. "
                    f"{self.behaviour}"
                )
            ]
        try:
            before, after = (_content(path, source) for source in (text, self.mutate(text)))
        except (SyntaxError, yaml.YAMLError) as error:
            return [f"seed {self.id} is a syntax error: {error}"]
        return [f"seed {self.id} changes nothing but comments or layout"] if before == after else []

    def _test_faults(self, root: Path) -> list[str]:
        faults = []
        for test in self.tests:
            file, _, node = test.partition("::")
            name = node.partition("[")[0].rpartition("::")[2]
            path = root / file
            text = (
                path.read_text(encoding="utf-8")
                if path.is_file()
                else ""
                if path.is_dir() and not node
                else None
            )
            if text is None or (
                name and not re.search(rf"^ *def {re.escape(name)}\(", text, re.MULTILINE)
            ):
                faults.append(
                    f"seed {self.id} names the test {test}, which is gone: name the test that "
                    "catches the fault now. "
                    f"{self.behaviour}"
                )
        return faults if self.tests else [f"seed {self.id} names no test"]


def load_seeds(file: Path = CATALOGUE) -> list[Seed]:
    """Read the list. Raises ValueError for a seed with other keys."""
    seeds = []
    for entry in tomllib.loads(file.read_text(encoding="utf-8"))["seed"]:
        if set(entry) != {*_TEXTS, "tests"} or not all(
            isinstance(entry[key], str) for key in _TEXTS
        ):
            raise ValueError(
                f"seed {entry.get('id')}: a seed has {', '.join(_TEXTS)} (texts) and tests (a list)"
            )
        seeds.append(Seed(**{**entry, "tests": tuple(entry["tests"])}))
    return seeds


def _content(path: Path, text: str) -> object:
    """Return what a file of Python or YAML holds, without comments and layout."""
    return ast.dump(ast.parse(text)) if path.suffix == ".py" else yaml.safe_load(text)


def find_faults(seeds: Iterable[Seed], root: Path = ROOT) -> list[str]:
    """Say what is wrong with these seeds, a line each."""
    return [fault for seed in seeds for fault in seed.find_faults(root)]
