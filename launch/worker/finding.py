"""`Finding`: what a check found, its `Fix`, and how it is shown as text, as JSON and on a page."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

Severity = Literal["pass", "skipped", "warn", "fail"]

# An override whose value the reader has to fill in: `name=NAME`, `steps=[A,B]` or `cache=`.
_OPEN_VALUE = re.compile(r"=(?:[A-Z][A-Z/_]*|\[[A-Z,]+\])?$")
# The space before the next override; the value of an override may have spaces too.
_NEXT_OVERRIDE = re.compile(r" (?=[a-z_]+(?:\.\w+)*=)")
_PLACE_OF_ACTION = re.compile(r"\{(\d)\}")
_LEVELS = {"fail": "error", "warn": "warning"}
_UNCERTAIN = "possibly: "  # how a cure begins that may not be the right one


@dataclass(frozen=True)
class Action:
    """One action that solves a problem: set overrides, remove something, or run a command first.

    One of the three fields is set.
    """

    sets: tuple[str, ...] = ()  # overrides: `gpus=1`
    removes: str | None = None  # a key or an option
    runs: str | None = None  # a shell command: `launch check`, `export NAME=VALUE`

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read an action from its text.

        The text has overrides (`gpus=1 device=cuda`), the key of an override to remove
        (`~recipe.liger`), or a command (`$ launch check`).
        """
        if text.startswith("$ "):
            return cls(runs=text[2:])
        if text.startswith("~"):
            return cls(removes=text[1:])
        return cls(tuple(_NEXT_OVERRIDE.split(text)))

    @property
    def is_exact(self) -> bool:
        """Whether it changes a command line without a value from the reader."""
        changes_line = bool(self.sets or self.removes)
        has_open_value = any(_OPEN_VALUE.search(override) for override in self.sets)
        return changes_line and not has_open_value

    def __str__(self) -> str:
        if self.runs:
            return f"`{self.runs}`"
        return " ".join(self.sets) or str(self.removes)


@dataclass(frozen=True)
class Fix:
    """What to do about a finding: a sentence, in which `{0}`, `{1}` stand for its actions."""

    sentence: str
    actions: tuple[Action, ...] = ()

    @classmethod
    def of(cls, sentence: str, *actions: Action | str) -> Fix:
        """Return a fix; an action that is given as a text is read by `Action.parse`."""
        parsed = [item if isinstance(item, Action) else Action.parse(item) for item in actions]
        return cls(sentence, tuple(parsed))

    def __str__(self) -> str:
        if not self.actions:
            return self.sentence
        return _PLACE_OF_ACTION.sub(self._show_action, self.sentence)

    def _show_action(self, place: re.Match[str]) -> str:
        """Return an action as a shell takes it: a list of data sets in quotes."""
        action = self.actions[int(place[1])]
        is_quoted = self.sentence[: place.start()].endswith("'")
        if is_quoted or not action.sets:
            return str(action)
        return " ".join(f"'{item}'" if "{" in item else item for item in action.sets)


@dataclass(frozen=True)
class Finding:
    """What a check found: a mistake of the user, or the result of a rule, a guard or a gate."""

    id: str  # stable; `allow=[id]` takes that of a failure
    message: str
    where: str | None = None  # the place: an override, a key, a flag, a line of a file
    cure: Fix | None = None
    severity: Severity = "fail"
    # The measurements that the finding is based on.
    numbers: Mapping[str, Any] = field(default_factory=dict, hash=False)
    allowed: bool = False  # `allow=[id]` overrides the failure

    @classmethod
    def error(
        cls, id: str, message: str, where: str | None = None, cure: Fix | str | None = None
    ) -> Self:
        """Return a failure; a cure that is given as a text has no actions."""
        return cls(id, message, where, Fix(cure) if isinstance(cure, str) else cure)

    @classmethod
    def warning(
        cls, id: str, message: str, where: str | None = None, cure: Fix | str | None = None
    ) -> Self:
        return cls.error(id, message, where, cure).as_warning()

    @property
    def stops(self) -> bool:
        """Whether it ends the command or the run."""
        return self.severity == "fail" and not self.allowed

    def as_warning(self) -> Self:
        """Return a copy that stops nothing."""
        return replace(self, severity="warn")

    def apply_allow(self, allow: Collection[str]) -> Self:
        """Return a copy that is allowed if it is a failure and its id is in `allow`."""
        return replace(self, allowed=self.severity == "fail" and self.id in allow)

    @property
    def level(self) -> str:
        """The first word of a message: error, warning or allowed; "" for all other findings."""
        return "allowed" if self.allowed else _LEVELS.get(self.severity, "")

    @property
    def statement(self) -> str:
        """Where it is set, and the message."""
        return f"{self.where}: {self.message}" if self.where else self.message

    @property
    def heading(self) -> str:
        """`error: STATEMENT [id]`, for a list that has the cure in the next line."""
        if not self.level:
            return self.statement
        return f"{self.level}: {self.statement}{self._bracketed_id}"

    @property
    def cure_line(self) -> str:
        """`cure: CURE [id]`, for the line below the message."""
        label = "" if self._is_cure_uncertain else "cure: "
        return f"{label}{self.cure}{self._bracketed_id}"

    def __str__(self) -> str:
        """`STATEMENT; CURE [id]`: one line, for a terminal, a log and Markdown."""
        cure = f"; {self.cure}" if self.cure else ""
        allowed = ", allowed" if self.allowed else ""
        return f"{self.statement}{cure}{self._bracketed_id}{allowed}"

    def html(self) -> str:
        """Return what a page shows inside of a paragraph; the numbers are a table of their own."""
        where = f"{html.escape(self.where)}: " if self.where else ""
        text = f"{where}<strong>{html.escape(self.message)}</strong>"
        if self.id:
            text += f" <code>{html.escape(self.id)}</code>"
        if self.allowed:
            text += ", allowed"
        if self.cure:
            label = "" if self._is_cure_uncertain else "<strong>Cure: </strong>"
            text += f"<br>{label}{html.escape(str(self.cure))}"
        return text

    @property
    def _bracketed_id(self) -> str:
        return f" [{self.id}]" if self.id else ""

    @property
    def _is_cure_uncertain(self) -> bool:
        return str(self.cure).startswith(_UNCERTAIN)

    def json_fields(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "severity": self.severity,
            "message": self.message,
            "where": self.where,
            "cure": None if self.cure is None else str(self.cure),
            "allowed": self.allowed,
            "numbers": self.numbers,
        }

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Finding:
        """Return the finding in a record; a part that is missing or damaged is left out."""
        cure = entry.get("cure")
        numbers = entry.get("numbers")
        severity: Severity = "fail"
        if entry.get("severity") in get_args(Severity):
            severity = entry["severity"]
        return Finding(
            id=str(entry.get("id") or ""),
            message=str(entry.get("message") or ""),
            where=str(entry["where"]) if entry.get("where") else None,
            cure=Fix(str(cure)) if cure else None,
            severity=severity,
            numbers=numbers if isinstance(numbers, dict) else {},
            allowed=entry.get("allowed") is True,
        )
