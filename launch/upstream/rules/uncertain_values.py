"""Values that are not known, or known only in part."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Doubt(IntEnum):
    """Why something is not known; with several reasons, the greatest counts."""

    NONE = 0  # it is known
    MACHINE = 1  # it depends on the machine, or on code that is not followed
    USER = 2  # it depends on a value of the user's


@dataclass(frozen=True)
class UncertainValue:
    """A value that is not known."""

    doubt: Doubt = Doubt.MACHINE
    is_set: bool = False  # whether it is known not to be None
    truth: bool | None = None  # whether it counts as true; None if that is not known


def doubt_of(value: Any) -> Doubt:
    """Return what the unknown parts of a value depend on."""
    if isinstance(value, UncertainValue):
        return value.doubt
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return Doubt.NONE
    return max((doubt_of(part) for part in value), default=Doubt.NONE)


def truth_of(value: Any) -> bool | None:
    """Return whether a value counts as true; None if that is not known."""
    return value.truth if isinstance(value, UncertainValue) else bool(value)


def is_certainly_set(value: Any) -> bool:
    """Return whether a value is known not to be None."""
    return value.is_set if isinstance(value, UncertainValue) else value is not None


def make_uncertain(value: Any, doubt: Doubt) -> UncertainValue:
    """Return the unknown value of something that may have been changed elsewhere.

    A list or a dictionary does not become None.
    """
    doubt = max(doubt, doubt_of(value))
    return UncertainValue(doubt, is_set=isinstance(value, list | dict))


def is_same(left: Any, right: Any) -> bool | UncertainValue:
    """Return the value of `left is right`."""
    doubt = doubt_of([left, right])
    if left is None or right is None:
        other = right if left is None else left
        if isinstance(other, UncertainValue) and not other.is_set:
            return UncertainValue(doubt)
        return left is right
    has_bool = isinstance(left, bool) or isinstance(right, bool)
    if doubt or not has_bool:
        # whether two equal numbers or texts are one object depends on the interpreter
        return UncertainValue(doubt or Doubt.MACHINE)
    return left is right
