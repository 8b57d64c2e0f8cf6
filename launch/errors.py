"""A user's mistakes as values: a `Problem` for each, a `UserError` for all of them at once, and the
exit codes.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

EXIT_DONE = 0
EXIT_FAILED = 1  # the run failed
EXIT_REFUSED = 2  # the request can't work: nothing was started
EXIT_STOPPED = 3  # a guard, a gate or unmet evidence stopped it, or a width was not run
EXIT_INTERRUPTED = 130


# what a way leaves to the reader, `name=NAME` or `cache=`, and where its next override begins
_PLACEHOLDER = re.compile(r"=(?:[A-Z][A-Z/_]*|\[[A-Z,]+\])?$")
_PLACE = re.compile(r"\{(\d)\}")
_NEXT = re.compile(r" (?=[a-z_]+(?:\.\w+)*=)")


@dataclass(frozen=True)
class Way:
    """One way out of a problem: overrides to set, a key or an option to remove, or a command to run
    first.
    """

    sets: tuple[str, ...] = ()
    removes: str | None = None
    runs: str | None = None  # in a shell: `launch check`, `export NAME=VALUE`

    @property
    def is_exact(self) -> bool:
        """Whether it can be followed as it is: no value is left to the reader."""
        return bool(self.sets or self.removes) and not any(
            _PLACEHOLDER.search(override) for override in self.sets
        )

    def __str__(self) -> str:
        return f"`{self.runs}`" if self.runs else " ".join(self.sets) or str(self.removes)


class Cure(str):
    """What to do about a problem: the ways out, and a sentence that names them at `{0}`, `{1}`.

    A way given as a text has overrides, `gpus=1 device=cuda`, the key of one to remove,
    `~recipe.liger`, or a command, `$ launch check`.
    """

    sentence: str
    ways: tuple[Way, ...]

    def __new__(cls, sentence: str, *ways: Way | str) -> Cure:
        parsed = [way if isinstance(way, Way) else parse_way(way) for way in ways]
        cure = super().__new__(cls, _PLACE.sub(lambda place: str(parsed[int(place[1])]), sentence))
        cure.sentence, cure.ways = sentence, tuple(parsed)
        return cure


def parse_way(text: str) -> Way:
    """Read a way from its text; see `Cure`."""
    if text.startswith("$ "):
        return Way(runs=text[2:])
    return Way(removes=text[1:]) if text.startswith("~") else Way(tuple(_NEXT.split(text)))


def set_any(*ways: str) -> Cure:
    """Return the cure `set A or B or C`."""
    return Cure(f"set {' or '.join(f'{{{place}}}' for place in range(len(ways)))}", *ways)


def ways_of(cure: str | None) -> tuple[Way, ...]:
    """Return the ways out that a cure names; () for one in words alone."""
    return cure.ways if isinstance(cure, Cure) else ()


@dataclass(frozen=True)
class Problem:
    """One mistake."""

    id: str  # stable; `allow=[id]` takes it
    message: str  # what is wrong
    where: str | None = None  # where it is set: an override, or a line of a file
    cure: str | None = None  # what to do; a `Cure` where overrides do it

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        cure = f"; {self.cure}" if self.cure else ""
        return f"{place}{self.message}{cure} [{self.id}]"


class UserError(Exception):
    """The request can't work: `__main__` prints every problem once to stderr and exits with 2,
    without a traceback.
    """

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        found = [problems] if isinstance(problems, Problem) else problems
        self.problems: tuple[Problem, ...] = tuple(dict.fromkeys(found))
        if not self.problems:
            raise ValueError("a UserError needs at least one problem")
        super().__init__("\n".join(str(problem) for problem in self.problems))


def refusal(id: str, message: str, where: str | None = None, cure: str | None = None) -> UserError:
    """Return the error of one problem, to raise it."""
    return UserError(Problem(id, message, where, cure))


def path_problem(error: Exception, path: str, where: str | None = None) -> Problem:
    """Return the problem of a path that cannot be looked at: too long, no permission, of an unknown
    user's home.
    """
    reason = getattr(error, "strerror", None) or str(error).rstrip(".")
    return Problem(
        "bad_path", f"'{path}' cannot be a path here: {reason}", where, "set another path"
    )


def nearest(name: str, candidates: Iterable[str], limit: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return the candidates most similar to `name`, best first; empty if none is similar."""
    own = _letters(name)
    shared = ((other, 2 * (own & _letters(other)).bit_count()) for other in candidates)
    near = [other for other, count in shared if count >= cutoff * (len(name) + len(other))]
    # 20 times as slow to exclude the others
    return difflib.get_close_matches(name, near, n=limit, cutoff=cutoff)


@lru_cache(maxsize=4096)
def _letters(text: str) -> int:
    """Return bits for a text's letters, so that two texts share at least as many bits as
    letters.
    """
    bits, seen = 0, Counter[int]()
    for letter in text:
        place = ord(letter) % 64
        bits |= 1 << (64 * seen[place] + place)
        seen[place] += 1
    return bits


def did_you_mean(
    name: str, candidates: Iterable[str], *, prefix: str = "", limit: int = 3, cutoff: float = 0.6
) -> str | None:
    """Return `did you mean 'a' or 'b'?`, or None if no candidate is similar; `prefix` is put before
    each.
    """
    names = [f"'{prefix}{candidate}'" for candidate in nearest(name, candidates, limit, cutoff)]
    return f"did you mean {' or '.join(names)}?" if names else None
