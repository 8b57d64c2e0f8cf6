# ruff: noqa: UP042, PIE796 - old and odd spellings are what is tested
"""What the synthetic trainer's classes get from another module."""

from dataclasses import dataclass, field
from enum import Enum

PREFIX = "col"
COLUMNS = [f"{PREFIX}_a", f"{PREFIX}_b", *("x", "y")]
LEVELS = {"low": object(), "high": object()}


class Colour(str, Enum):
    RED = "red"
    GREEN = "green"
    ALSO_RED = "red"


def levels():
    """The names of the levels."""
    return LEVELS


@dataclass
class Base:
    overridden: int = 1
    inherited_default: int = 7
    from_factory: list[int] = field(default_factory=lambda: [1, 2])
    mixed: float = 0.5


@dataclass
class Left(Base):
    mixed: float = 1.5
    left: str = "left"


@dataclass
class Right(Base):
    mixed: float = 2.5
    overridden: int = 2
