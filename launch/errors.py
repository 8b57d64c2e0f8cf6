"""A user's mistakes as values: a `Problem` for each, a `UserError` for all of them at once, and the exit codes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

EXIT_DONE = 0
EXIT_FAILED = 1  # the run failed
EXIT_REFUSED = 2  # the request can't work: nothing was started
EXIT_STOPPED = 3  # a guard, a gate or unmet evidence stopped it, or a width was not run
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Problem:
    """One mistake."""

    id: str  # stable; `allow=[id]` takes it
    message: str  # what is wrong
    where: str | None = None  # where it is set: an override, or a line of a file
    cure: str | None = None  # what to do

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        cure = f"; {self.cure}" if self.cure else ""
        return f"{place}{self.message}{cure} [{self.id}]"


class UserError(Exception):
    """The request can't work: `__main__` prints every problem to stderr and exits with 2, without a traceback."""

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        if not self.problems:
            raise ValueError("a UserError needs at least one problem")
        super().__init__("\n".join(str(problem) for problem in self.problems))


def path_problem(error: Exception, path: str, where: str | None = None) -> Problem:
    """Return the problem of a path that cannot be looked at: too long, no permission, of an unknown user's home."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).rstrip(".")
    return Problem("bad_path", f"'{path}' cannot be a path here: {reason}", where, "set another path")


def nearest(name: str, candidates: Iterable[str], limit: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return the candidates most similar to `name`, best first; empty if none is similar."""
    return difflib.get_close_matches(name, list(candidates), n=limit, cutoff=cutoff)


def did_you_mean(
    name: str, candidates: Iterable[str], *, prefix: str = "", limit: int = 3, cutoff: float = 0.6
) -> str | None:
    """Return `did you mean 'a' or 'b'?`, or None if no candidate is similar; `prefix` is put before each."""
    names = [f"'{prefix}{candidate}'" for candidate in nearest(name, candidates, limit, cutoff)]
    return f"did you mean {' or '.join(names)}?" if names else None
