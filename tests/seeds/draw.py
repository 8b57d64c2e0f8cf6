"""Draws faults for ./scripts/seeds --draw: from a number, a choice of functions in each room and a
change of each.
"""

from __future__ import annotations

import random
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.finder import find_tests
from tests.paths import ROOT
from tests.seeds.contexts import Contexts, choose_tests
from tests.seeds.operators import Change, find_changes

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
LEAST = 8  # faults of a room
_BUDGET = 12.0  # seconds of tests for one fault
_FILES = "launch"  # the room of the modules beside the folders


@dataclass(frozen=True)
class Mutant:
    """A drawn fault, and the tests that could catch it."""

    area: str  # the room: a folder of launch/
    file: str
    change: Change
    tests: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"{self.file}:{self.change.line}"

    @property
    def difference(self) -> str:
        """The text before and after."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        old = " ".join(text[self.change.start : self.change.end].split())
        return f"{old} -> {' '.join(self.change.new.split())}"

    @property
    def behaviour(self) -> str:
        return f"{self.change.function}: {self.change.kind}: {self.difference}"

    def mutate(self, text: str) -> str:
        return self.change.apply(text)


@dataclass(frozen=True)
class Room:
    """The functions of a folder of launch/ that the quick suite reaches."""

    functions: dict[tuple[str, str], list[Change]]  # by file and qualified name
    unreached: int  # functions that only a training or a real Slurm reaches, which are not drawn


def find_rooms(contexts: Contexts, only: str | None = None) -> dict[str, Room]:
    """Return the rooms of launch/ by name, or one of them."""
    rooms: dict[str, Room] = {}
    for path in sorted((ROOT / "launch").rglob("*.py")):
        file = str(path.relative_to(ROOT))
        folder = Path(file).parts[1] if len(Path(file).parts) > 2 else _FILES
        if file in contexts.changed or only not in (None, folder):
            continue
        found: dict[tuple[str, str], list[Change]] = {}
        for change in find_changes(path.read_text(encoding="utf-8")):
            found.setdefault((file, change.function), []).append(change)
        reached = {
            key: changes
            for key, changes in found.items()
            if contexts.find_tests(file, changes[0].lines)
        }
        before = rooms.get(folder, Room({}, 0))
        rooms[folder] = Room(
            {**before.functions, **reached}, before.unreached + len(found) - len(reached)
        )
    return rooms


def draw(rooms: dict[str, Room], contexts: Contexts, number: str, count: int) -> list[Mutant]:
    """Draw `count` faults in all, in each room in proportion to its places and at least LEAST; none
    twice.
    """
    total = sum(_places(room) for room in rooms.values())
    mutants = []
    for name, room in sorted(rooms.items()):
        drawn = random.Random(f"{number} {name}")
        share = max(LEAST, round(count * _places(room) / total))
        keys = sorted(room.functions)
        functions = Counter(
            drawn.choices(keys, [len(room.functions[key]) for key in keys], k=share)
        )
        for (file, function), times in sorted(functions.items()):
            changes = room.functions[file, function]
            chosen = drawn.sample(changes, min(times, len(changes)))
            mutants += [
                Mutant(name, file, change, _tests_of(contexts, file, change)) for change in chosen
            ]
    return mutants


def _places(room: Room) -> int:
    return sum(map(len, room.functions.values()))


def _tests_of(contexts: Contexts, file: str, change: Change) -> tuple[str, ...]:
    """Return the tests that run the changed line, or its function where the line is reached by
    none.
    """
    tests = contexts.find_tests(file, range(change.line, change.line + 1))
    tests = tests or contexts.find_tests(file, change.lines)
    own = [str(path.relative_to(ROOT)) for path in find_tests(ROOT / file)]
    changed = [test for test in own if test in contexts.changed]
    known = [test for test in tests if test.partition("::")[0] not in changed]
    return (*changed, *choose_tests(known, contexts.seconds, own, _BUDGET))


def load_equivalent(file: Path = EQUIVALENT) -> list[dict[str, str]]:
    """Read the changes that change nothing. Raises ValueError for an entry with other keys."""
    entries: list[dict[str, str]] = tomllib.loads(file.read_text(encoding="utf-8")).get(
        "equivalent", []
    )
    for entry in entries:
        if set(entry) != {"file", "function", "change", "why"}:
            raise ValueError(f"{entry}: an equivalent change has file, function, change and why")
    return entries
