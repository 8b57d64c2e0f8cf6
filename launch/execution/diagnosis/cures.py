"""Find the cure of a failure among the known causes (known.yaml).

The class and the message of an exception map to what to change, computed from the plan where possible; for a process
that died without one, the lines that it printed last. A cure that other causes would need too says "possibly".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from launch.execution.diagnosis import advice
from launch.execution.diagnosis.advice import Situation
from launch.execution.diagnosis.known import KnownCause, known
from launch.execution.diagnosis.tracebacks import RaisedError

_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError")


@dataclass(frozen=True)
class Cure:
    """What to do against a known cause of failure."""

    id: str  # of the known cause
    text: str  # one sentence; an uncertain one begins with "possibly: "


def cure_for_errors(chain: Sequence[RaisedError], situation: Situation) -> tuple[RaisedError, Cure] | None:
    """Return the cure of the first known cause in a chain of exceptions, root first, and its exception.

    A certain cure goes before an uncertain one. That of a failed import which was handled is uncertain: libraries try
    imports, and what fails in the handler is the cause.
    """
    for is_certain in (True, False):
        for error in chain:
            is_doubted = error.was_handled and error.type in _IMPORT_ERRORS
            if is_doubted and is_certain:
                continue
            if cure := _find_cure(error, situation, is_certain=is_certain):
                return error, cure
            if is_doubted and (cure := _find_cure(error, situation, is_certain=True)):
                return error, replace(cure, text=f"{advice.POSSIBLY}{cure.text.removeprefix(advice.POSSIBLY)}")
    return None


def _find_cure(error: RaisedError, situation: Situation, *, is_certain: bool) -> Cure | None:
    for cause in known().causes:
        if cause.errors is None or cause.is_certain != is_certain or not cause.errors.fullmatch(error.type):
            continue
        if match := cause.pattern.search(error.message):
            return _compute_cure(cause, match, situation)
    return None


def cure_for_lines(lines: Sequence[str], situation: Situation) -> Cure | None:
    """Return the cure of the first known cause in what a process without an exception printed last."""
    for line in lines:
        for cause in known().causes:
            if cause.errors is None and (match := cause.pattern.search(line)):
                return _compute_cure(cause, match, situation)
    return None


def _compute_cure(cause: KnownCause, match: re.Match[str], situation: Situation) -> Cure:
    if cause.cure is not None:
        text = cause.cure.format(**match.groupdict())
    else:
        text = getattr(advice, str(cause.computed))(match, situation)
    is_marked = cause.is_certain or text.startswith(advice.POSSIBLY)
    return Cure(cause.id, text if is_marked else f"{advice.POSSIBLY}{text}")
