"""What a user did that cannot work, as values: one `Problem` a mistake, one `UserError` for all of them at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

EXIT_DONE = 0
EXIT_FAILED = 1  # the run failed
EXIT_REFUSED = 2  # what was asked can't work: nothing was started
EXIT_STOPPED = 3  # a guard or a gate stopped it, or a width was not run
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Problem:
    """One mistake: its stable id (the word that `allow=[id]` takes), what is wrong, where it was said, the cure."""

    id: str
    message: str
    where: str | None = None
    cure: str | None = None

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        cure = f"; {self.cure}" if self.cure else ""
        return f"{place}{self.message}{cure} [{self.id}]"

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "message": self.message, "where": self.where, "cure": self.cure}


class UserError(Exception):
    """What was asked can't work; `__main__` prints every problem to stderr and exits 2, never a traceback."""

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        if not self.problems:
            raise ValueError("a UserError needs at least one problem")
        super().__init__("\n".join(str(problem) for problem in self.problems))


def nearest(word: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The known words most like `word`, best first; empty when nothing is near."""
    return difflib.get_close_matches(word, list(known), n=limit, cutoff=0.6)


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """`did you mean 'a' or 'b'?`, or None when nothing is near."""
    names = [f"'{name}'" for name in nearest(word, known)]
    return f"did you mean {' or '.join(names)}?" if names else None
