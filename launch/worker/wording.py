"""Phrases that messages are made of: counts with their noun, and errors on one line."""

from __future__ import annotations


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count_of(1, "step"), count_of(2, "forward pass")
    ('1 step', '2 forward passes')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}es" if noun.endswith("s") else f"{number} {noun}s"


def describe_error(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"
