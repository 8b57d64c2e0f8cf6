"""What the rules of the table are applied to: the settings of a plan, or the flags of a command."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

from launch.upstream.rules import conversion


class Place(StrEnum):
    """Where rules are applied."""

    plan = "plan"
    lint = "lint"


class Source(StrEnum):
    """Who gives a flag."""

    user = "user"  # a script, or `flags.NAME=`
    recipe = "recipe"  # and every other key of the configuration
    launch = "launch"  # the trainer's file, or a computed value


class Absent:
    """The value of a flag that is certainly not given."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()
UNKNOWN = conversion.UNKNOWN  # a value that can't be known here


class Facts(Protocol):
    """The values of names. A name with a dot is a key of the configuration (`recipe.liger`), a word
    of SETTINGS is a property of the run, and any other name is a flag of the trainer.
    """

    @property
    def place(self) -> Place: ...

    @property
    def trainer(self) -> str: ...

    @property
    def family(self) -> str:
        """Return `open_instruct` or `trl`."""

    def value(self, name: str) -> Any:
        """Return a value; UNKNOWN if it can't be known here, ABSENT if the flag is not given."""

    def default(self, flag: str) -> Any:
        """Return the value that a flag has without being given; UNKNOWN if that is not known."""

    def source(self, flag: str) -> Source | None:
        """Return who gives a flag; None if it is not known to be given."""

    def known_names(self, flag: str) -> Sequence[str]:
        """Return the names that the trainer knows for a flag; none if they are unknown here."""

    def locate(self, name: str) -> str | None:
        """Return where a name is set, as a message shows it."""
