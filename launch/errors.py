"""A user's mistakes: a `UserError` with a finding for each of them, and the exit codes."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from launch.worker.finding import Action, Finding, Fix

EXIT_DONE = 0
EXIT_FAILED = 1  # the run failed
EXIT_REFUSED = 2  # the request can't work: nothing was started
EXIT_STOPPED = 3  # a guard, a gate or unmet evidence stopped it, or a width was not run
EXIT_INTERRUPTED = 130


def set_any(*actions: str) -> Fix:
    """Return the cure `set A or B or C`."""
    placeholders = [f"{{{index}}}" for index in range(len(actions))]
    return Fix.of(f"set {' or '.join(placeholders)}", *actions)


def actions_of(cure: Fix | None) -> tuple[Action, ...]:
    """Return the actions of a cure; () for one that is a sentence alone."""
    return cure.actions if cure else ()


class UserError(Exception):
    """The request cannot work.

    `__main__` prints every problem once to stderr and exits with 2, without a traceback.
    """

    def __init__(self, problems: Finding | Sequence[Finding]) -> None:
        found = [problems] if isinstance(problems, Finding) else problems
        self.problems: tuple[Finding, ...] = tuple(dict.fromkeys(found))
        if not self.problems:
            raise ValueError("a UserError needs at least one problem")
        super().__init__("\n".join(str(problem) for problem in self.problems))


def refusal(
    id: str, message: str, where: str | None = None, cure: Fix | str | None = None
) -> UserError:
    """Return the error of one problem, to raise it."""
    return UserError(Finding.error(id, message, where, cure))


def path_problem(error: Exception, path: str, where: str | None = None) -> Finding:
    """Return the problem of a path that cannot be opened.

    It may be too long, forbidden, or below the home of an unknown user.
    """
    reason = getattr(error, "strerror", None) or str(error).rstrip(".")
    message = f"'{path}' cannot be a path here: {reason}"
    return Finding.error("bad_path", message, where, "set another path")


def nearest(name: str, candidates: Iterable[str], limit: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return the candidates most similar to `name`, best first; empty if none is similar."""
    letters = _letters(name)
    similar = []
    for candidate in candidates:
        # SequenceMatcher's ratio is at most this, and takes 20 times as long to compute.
        common = (letters & _letters(candidate)).bit_count()
        if 2 * common >= cutoff * (len(name) + len(candidate)):
            similar.append(candidate)
    return difflib.get_close_matches(name, similar, n=limit, cutoff=cutoff)


def misspelt(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that `name` is with a typing error or two: letters that are missing, that are
    too many, changed, or swapped. None if it may be a word of its own.
    """
    most = 1 if len(name) < 8 else 2
    near = [
        (edits, candidate)
        for candidate in candidates
        if abs(len(candidate) - len(name)) <= most
        and (edits := _count_edits(name, candidate)) <= most
    ]
    return min(near)[1] if near and len(name) > 3 else None


def _count_edits(first: str, second: str) -> int:
    """Count the letters that are inserted, removed, changed or swapped between two words."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        following = [i]
        for j, other in enumerate(second, 1):
            edits = min(row[j] + 1, following[j - 1] + 1, row[j - 1] + (letter != other))
            is_swapped = i > 1 and j > 1 and letter == second[j - 2] and first[i - 2] == other
            following.append(min(edits, before[j - 2] + 1) if is_swapped else edits)
        before = row
        row = following
    return row[-1]


@lru_cache(maxsize=4096)
def _letters(text: str) -> int:
    """Return bits for a text's letters; two texts share at least as many bits as letters."""
    bits = 0
    seen = Counter[int]()
    for letter in text:
        place = ord(letter) % 64
        bits |= 1 << (64 * seen[place] + place)
        seen[place] += 1
    return bits


def did_you_mean(
    name: str, candidates: Iterable[str], *, prefix: str = "", limit: int = 3, cutoff: float = 0.6
) -> str | None:
    """Return `did you mean 'a' or 'b'?`, or None if no candidate is similar.

    `prefix` is put before each candidate.
    """
    names = [f"'{prefix}{candidate}'" for candidate in nearest(name, candidates, limit, cutoff)]
    return f"did you mean {' or '.join(names)}?" if names else None
