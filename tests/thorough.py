"""What `./scripts/test --all` leaves to `./scripts/test --thorough`: more cases of the same kind.

The marked cases are further trainers, templates, shapes of data, ends and faults of what a test of
`--all` shows once, and tests that take minutes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")


def mark_others(cases: Sequence[T], kept: Collection[T]) -> list[ParameterSet]:
    """Return pytest's parameters of `cases`; those that are not in `kept` are marked as thorough.

    A case is the value of a parameter, or a tuple of the values of several.
    """
    unknown = [case for case in kept if case not in cases]
    assert not unknown, unknown
    parameters = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marks = () if case in kept else (pytest.mark.thorough,)
        parameters.append(pytest.param(*values, marks=marks))
    return parameters


def selected(request: pytest.FixtureRequest, cases: Sequence[T]) -> list[T]:
    """Return the cases that are parameters of the requesting module's tests in this session, in the
    order of `cases`: a fixture prepares those alone.
    """
    used = []
    for item in request.session.items:
        if item.path == request.path and isinstance(item, pytest.Function):
            callspec = getattr(item, "callspec", None)
            used.append(tuple(callspec.params.values()) if callspec else ())
    return [case for case in cases if (case if isinstance(case, tuple) else (case,)) in used]
