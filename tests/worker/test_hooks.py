"""A library's function is replaced by one that gets it first, and keeps its name, its marks and its
signature.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from launch.worker.hooks import replaces


class Library:
    def scale(self, number: int, factor: int = 2) -> int:
        """Scale a number."""
        return number * factor


def test_replacements_nest_and_look_like_the_original() -> None:
    library: Any = type("Copy", (), {"scale": Library.scale})

    @replaces(library, "scale")
    def add_one(scale: Any, self: Any, *arguments: Any, **options: Any) -> int:
        return int(scale(self, *arguments, **options)) + 1

    add_one.mark = True  # type: ignore[attr-defined]

    @replaces(library, "scale")
    def negate(scale: Any, self: Any, *arguments: Any, **options: Any) -> int:
        return -int(scale(self, *arguments, **options))

    assert library().scale(3, factor=5) == -16
    assert library.scale.mark
    assert library.scale.__doc__ == "Scale a number."
    assert inspect.signature(library.scale) == inspect.signature(Library.scale)


def test_what_is_gone_is_not_replaced() -> None:
    with pytest.raises(AttributeError, match="gone"):
        replaces(Library, "gone")
