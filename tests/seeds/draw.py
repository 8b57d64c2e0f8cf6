"""Draws faults for ./scripts/seeds --draw: from a number, a choice of functions in each room and a
change of each.
"""

from __future__ import annotations

import random
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.paths import ROOT
from tests.seeds.choice import choose_files, weigh_words
from tests.seeds.operators import Change, find_changes

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
LEAST = 8  # faults of a room
_FILES = "launch"  # the room of the modules beside the folders


@dataclass(frozen=True)
class Mutant:
    """A drawn fault, and the tests that could catch it."""

    area: str  # the room: a folder of launch/
    file: str
    change: Change
    weights: dict[str, float]  # of words, by which its tests are put in order
    tests: tuple[str, ...]  # files, and options of pytest that leave out some of their tests

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

    def without_tests(self, names: Iterable[str]) -> Mutant:
        """Return the fault without some of its tests."""
        left_out = (f"--deselect={name}" for name in sorted(names))
        return replace(self, tests=(*self.tests, *left_out))


@dataclass(frozen=True)
class Probe(Mutant):
    """A drawn fault in whose place the process ends: tests that pass do not reach the function."""

    def mutate(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        first = lines[self.change.lines[0] - 1]
        indentation = first[: len(first) - len(first.lstrip())]
        lines.insert(self.change.lines[0] - 1, f'{indentation}__import__("os")._exit(99)\n')
        return "".join(lines)


# the changes of a room's functions, by file and qualified name
Room = Mapping[tuple[str, str], Sequence[Change]]


def find_rooms(only: Collection[str] = ()) -> dict[str, Room]:
    """Return the rooms of launch/ by name, or those of some names."""
    rooms: dict[str, dict[tuple[str, str], list[Change]]] = {}
    for path in sorted((ROOT / "launch").rglob("*.py")):
        file = str(path.relative_to(ROOT))
        name = Path(file).parts[1] if len(Path(file).parts) > 2 else _FILES
        if only and name not in only:
            continue
        room = rooms.setdefault(name, {})
        for change in find_changes(path.read_text(encoding="utf-8")):
            room.setdefault((file, change.function), []).append(change)
    return {name: room for name, room in rooms.items() if room}


def draw(rooms: Mapping[str, Room], number: str, count: int) -> list[Mutant]:
    """Draw `count` faults in all, in each room in proportion to its places and at least LEAST; none
    twice.
    """
    total = sum(map(_places, rooms.values()))
    mutants = []
    for name, room in sorted(rooms.items()):
        drawn = random.Random(f"{number} {name}")
        share = max(LEAST, round(count * _places(room) / total))
        keys = sorted(room)
        functions = Counter(drawn.choices(keys, [len(room[key]) for key in keys], k=share))
        for (file, function), times in sorted(functions.items()):
            changes = room[file, function]
            chosen = drawn.sample(changes, min(times, len(changes)))
            text = (ROOT / file).read_text(encoding="utf-8")
            weights = weigh_words(text, function, changes[0].lines)
            tests = choose_files(file, weights)
            mutants += [Mutant(name, file, change, weights, tests) for change in chosen]
    return mutants


def _places(room: Room) -> int:
    return sum(map(len, room.values()))


def load_equivalent(file: Path = EQUIVALENT) -> list[dict[str, str]]:
    """Read the changes that change nothing. Raises ValueError for an entry with other keys."""
    entries: list[dict[str, str]] = tomllib.loads(file.read_text(encoding="utf-8")).get(
        "equivalent", []
    )
    for entry in entries:
        if set(entry) != {"file", "function", "change", "why"}:
            raise ValueError(f"{entry}: an equivalent change has file, function, change and why")
    return entries
