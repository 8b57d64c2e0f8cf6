# ruff: noqa: UP006, UP007, UP035, UP045, PTH119, RET506 - old and odd spellings are what is tested
"""Dataclasses with every feature that the reader claims to follow; the real HfArgumentParser is
built from them too.
"""

import dataclasses as dc
import os
from dataclasses import InitVar, dataclass, field
from enum import StrEnum, auto
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Literal, Optional, Union

import helpers as h
from helpers import COLUMNS
from helpers import Colour as Paint

Mode = Literal["fast", "slow"]
DEFAULT_STEPS = 10 * 2


class Kind(StrEnum):
    ALPHA = auto()
    beta_kind = auto()


class Undecorated:
    ignored: int = 3


@dataclass
class Everything(h.Left, h.Right, Undecorated):
    """All the optional kinds."""

    counter: ClassVar[int] = 0
    not_annotated = 5

    overridden: int = 3
    """overridden here"""
    inherited_default: float
    name: str = os.path.basename(__file__)[: -len(".py")]
    maybe_int: Optional[int] = None
    steps: int = DEFAULT_STEPS
    rate: float = -1e-3
    on: bool = True
    off: bool = field(default=False, metadata={"help": "off" + " by default"})
    no_default_bool: Optional[bool] = None
    bool_with_default: bool | None = True
    mode: Mode = "fast"
    level: Literal[0, 1, "two"] = 1
    colour: Paint = Paint.GREEN
    kind: Kind | None = None
    maybe_kind: Optional[Kind] = Kind.beta_kind
    columns: list[str] = field(default_factory=lambda: COLUMNS)
    copied: List[str] = field(default_factory=lambda: list(COLUMNS))
    numbers: Optional[List[int]] = None
    paints: list[Paint] = field(default_factory=list)
    switches: list[bool] = field(default_factory=list)
    quirk: str | list[str] = "all"
    mapping: Optional[dict] = None
    json_text: dict | str | None = field(default_factory=dict)
    typed_mapping: Union[Dict[str, Any], str, None] = None
    either: dict | str = field(default_factory=dict)
    number_or_text: int | str = 4
    place: Path = Path("here")
    chosen: str = field(default="a", metadata={"choices": ["a", "b"], "help": f"one of {COLUMNS}"})
    picked: int = dc.field(default=1, metadata={"choices": (1, 2, 3)})
    leveled: str = field(default="low", metadata={"choices": h.levels().keys()})
    aliased: str = field(default="x", metadata={"aliases": ["--other-name", "--short"]})
    optional_value: Optional[str] = field(default=None, metadata={"nargs": "?", "const": "bare"})
    single: "Optional[int]" = 9
    hidden: int = field(default=1, init=False)
    passed: InitVar[int] = 2
    _private: int = 0

    def __post_init__(self, passed):
        if self.steps < 0 or not (0 <= self.rate + 1 <= 2):
            raise ValueError(f"steps must not be negative: {self.steps}")
        if self.mode == "slow":
            if self.on and self.maybe_int is not None:
                raise NotImplementedError("slow and on")
            elif len(self.columns) != 4:
                raise ValueError("slow needs four columns")
        assert self.chosen != "b" or self.picked in (1, 2), "b needs 1 or 2"
        self.steps += 1
        for name in ("numbers", "paints"):
            value = getattr(self, name)
            if isinstance(value, list) and len(value) > 2:
                raise ValueError(f"{name} is too long")
        if self.name.startswith("gpu"):
            self._check()

    def _check(self):
        try:
            float(self.name.replace("gpu", ""))
        except ValueError:
            raise ValueError("bad gpu name") from None
        if self.steps > 100:
            return
        if self.off:
            raise ValueError("gpu and off")


@dataclass(kw_only=True)
class Required:
    needed: str
    needed_choice: Literal["p", "q"] = field(metadata={"help": "needed"})
    factory_choice: Mode = field(default_factory=lambda: "fast")
    needed_list: list[float]
    after: int = 0
