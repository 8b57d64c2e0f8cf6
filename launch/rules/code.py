"""`CodeRule`: a rule that needs code. Rules of planning, check, guards and gates have this form."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from launch.worker.finding import Finding, Fix


@dataclass(frozen=True)
class CodeRule:
    """One rule, as the lists of rules have it; a row of the table has the same names."""

    id: str  # of its finding; `allow=[id]` takes it
    summary: str  # why it exists, or what it detects, in a sentence
    judge: Callable[..., Any]  # the function, or the class of a rule with a state
    severity: str = "error"
    allow: bool = True

    def finish(self, finding: Finding, allow: Collection[str]) -> Finding:
        """Return a finding of the rule with its id; allowed, if `allow` has the id and the rule can
        be allowed.
        """
        named = replace(finding, id=finding.id or self.id)
        return named.apply_allow(allow) if self.allow else named


def summary_of(judge: Callable[..., Any]) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(judge) or "").partition("\n\n")[0].split())


# What a rule's function returns: `finish` adds the id.


def passed(message: str) -> Finding:
    """Return the result of a rule that is fulfilled."""
    return Finding("", message, severity="pass")


def skipped(message: str) -> Finding:
    """Return the result of a rule that does not apply here, or cannot decide, with the reason."""
    return Finding("", message, severity="skipped")


def warned(message: str, cure: Fix | str | None = None, where: str | None = None) -> Finding:
    """Return a result that is shown and stops nothing."""
    return Finding.warning("", message, where, cure)


def failed(message: str, cure: Fix | str | None = None, where: str | None = None) -> Finding:
    """Return a result that stops, unless `allow` has the id of the rule."""
    return Finding.error("", message, where, cure)
