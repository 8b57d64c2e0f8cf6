"""`CodeRule`: a rule that needs code. Rules of check, guards and gates have this form."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CodeRule:
    """One rule, as the lists of rules have it; a row of the table has the same names."""

    id: str  # of its finding; `allow=[id]` takes it
    summary: str  # why it exists, or what it detects, in a sentence
    judge: Callable[..., Any]  # the function, or the class of a rule with a state
    severity: str = "error"
    allow: bool = True


def summary_of(judge: Callable[..., Any]) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(judge) or "").partition("\n\n")[0].split())
