"""Which tests could notice a fault in a function: chosen by imports and words, so that nothing has
to be measured before.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from launch.commands.verbs import VERBS
from tests.finder import test_files
from tests.paths import ROOT

_MOST_FILES = 8
_IMPORT = re.compile(
    r"^ *(?:from ([\w.]+) import (\([^)]*\)|[\w ,]+)|import ([\w.]+))", re.MULTILINE
)
_COMMAND = re.compile(r"\b(?:launch|main)\(\s*\[?\s*\"(\w+)\"")
_FARTHEST = 3  # imports between a test and the module


def choose_files(file: str, weights: Mapping[str, float]) -> tuple[str, ...]:
    """Return test files for a module, the likeliest first: the one of its name, then those that
    reach it by few imports, by the weights of the words that they have.
    """
    neighbours = _room_tests(file)
    folder = Path(file).parent.relative_to("launch")
    own = str("tests" / folder / f"test_{Path(file).stem}.py")
    distances = dict.fromkeys(neighbours, _FARTHEST) | _distances(file)

    def rank(test: str) -> tuple[object, ...]:
        weight = weigh_text(_text_of(test), weights)
        return test != own, -weight, distances[test], test not in neighbours, test

    return tuple(sorted(distances, key=rank)[:_MOST_FILES])


def weigh_words(text: str, function: str, lines: range) -> dict[str, float]:
    """Return the words by which a test of a function can be known, each with its weight: the rarer
    it is in the tests, the more it tells.

    They are the words of the function's lines, and find_subjects.
    """
    body = text.splitlines()[lines.start - 1 : lines.stop - 1]
    words = {*re.findall(r"\w{4,}", "\n".join(body)), *find_subjects(text, function)}
    files, counts = _word_counts()
    return {word: math.log(files / counts[word]) for word in sorted(words & counts.keys())}


def weigh_text(text: str, weights: Mapping[str, float]) -> float:
    """Return the sum of the weights of the words that a text has, for a long one less."""
    words = set(re.findall(r"\w+", text))
    return sum(weights[word] for word in weights.keys() & words) / math.sqrt(len(words) or 1)


@cache
def _word_counts() -> tuple[int, Counter[str]]:
    """Return how many test files there are, and how many of them have each word."""
    counts: Counter[str] = Counter()
    files = test_files()
    for _, text in files:
        counts.update(set(re.findall(r"\w+", text)))
    return len(files), counts


def find_subjects(text: str, function: str) -> tuple[str, ...]:
    """Return the public names by which tests reach a function (a qualified name) of a module: its
    own, its class's, and those of the functions and classes that use it, the nearest first.
    """
    used = {
        node.name: {
            part.id if isinstance(part, ast.Name) else part.attr
            for part in ast.walk(node)
            if isinstance(part, ast.Name | ast.Attribute)
        }
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    found = function.split(".")[::-1]
    while new := sorted(name for name in used.keys() - found if used[name] & {*found}):
        found += new
    return tuple(name for name in found if not name.startswith("_"))


@cache
def _text_of(test: str) -> str:
    return (ROOT / test).read_text(encoding="utf-8")


def _room_tests(file: str) -> list[str]:
    """Return the test files of the module's room; a register may import it without its name."""
    room = Path(file).relative_to("launch").parts[0]
    return [str(path.relative_to(ROOT)) for path in (ROOT / "tests" / room).rglob("test_*.py")]


@cache
def _distances(file: str) -> dict[str, int]:
    """Return test files by the number of imports that lead to a module, up to _FARTHEST."""
    found: dict[str, int] = {}
    seen = {_module_of(file)}
    layer = set(seen)
    for distance in range(1, _FARTHEST + 1):
        layer = {user for module in layer for user in _users().get(module, ())} - seen
        seen |= layer
        for module in layer:
            if module.rpartition(".")[2].startswith("test_"):
                found[module.replace(".", "/") + ".py"] = distance
    return found


def _module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def _users() -> dict[str, set[str]]:
    """Return, for each module of launch/ and tests/, those that import it."""
    paths = [path for folder in ("launch", "tests") for path in (ROOT / folder).rglob("*.py")]
    files = {_module_of(str(path.relative_to(ROOT))): path for path in paths}
    users: dict[str, set[str]] = {}
    for module, path in files.items():
        for name in [*_imported(path), *_commands(path)]:
            used = name if name in files else name.rpartition(".")[0]
            users.setdefault(used, set()).add(module)
    return users


def _imported(path: Path) -> Iterator[str]:
    for package, names, module in _IMPORT.findall(path.read_text(encoding="utf-8")):
        yield from (
            [module] if module else (f"{package}.{name}" for name in re.findall(r"\w+", names))
        )


def _commands(path: Path) -> Iterator[str]:
    """Return the modules of the commands that a test runs by main() or the fixture `launch`."""
    for verb in _COMMAND.findall(path.read_text(encoding="utf-8")):
        if verb in VERBS:
            yield VERBS[verb].module().__name__
