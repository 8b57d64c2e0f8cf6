"""Replaces a function or a method of a library by one that calls it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put the decorated function in the place of `owner.name`. Its first argument is what it replaces.

    Raises AttributeError if `owner` has no such attribute.

    >>> import types
    >>> library = types.SimpleNamespace(double=lambda number: 2 * number)
    >>> @replaces(library, "double")
    ... def double_and_add(double, number):
    ...     return double(number) + 1
    >>> library.double(3)
    7
    """
    original = getattr(owner, name)

    def replace(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def replacement(*arguments: Any, **options: Any) -> Any:
            return function(original, *arguments, **options)

        setattr(owner, name, replacement)
        return replacement

    return replace
