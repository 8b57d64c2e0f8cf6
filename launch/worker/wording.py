"""Phrases that messages are made of: counts with their noun, and errors on one line."""

from __future__ import annotations


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count_of(1, "step"), count_of(2, "forward pass")
    ('1 step', '2 forward passes')
    """
    return f"{number} {noun_for(number, noun)}"


def noun_for(number: int, noun: str) -> str:
    """Return the noun in the singular for 1, and in the plural for any other number.

    >>> noun_for(1, "step"), noun_for(2, "step"), noun_for(0, "forward pass")
    ('step', 'steps', 'forward passes')
    """
    if number == 1:
        return noun
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def describe_error(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"
