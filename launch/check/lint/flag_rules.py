"""Applies the table of rules to the flags of a command: warnings about flags that a trainer's
parser accepts and the trainer ignores, refuses or misinterprets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.check.lint.trainer_commands import LintFinding, TrainerScript, warning
from launch.rules.engine import apply_rules, rules_for
from launch.rules.facts import ABSENT, UNKNOWN, Place, Source
from launch.rules.table import KNOWN_TO_LINT, is_flag


@dataclass(frozen=True)
class GivenFlags:
    """The flags that a command gives to a trainer: the facts of its rules."""

    script: TrainerScript
    # The values by flag name; UNKNOWN where a shell variable determines the value.
    values: Mapping[str, Any]
    is_complete: bool  # False if the command may give further flags, through a shell variable
    # The names among which the trainer looks up a flag's value, by flag; empty if unknown.
    names: Mapping[str, Sequence[str]]
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of the trainer's parser
    in_file: Collection[str] = ()  # the flags that the file of `--config` may set
    place: Place = Place.lint

    @property
    def trainer(self) -> str:
        return self.script.name

    @property
    def family(self) -> str:
        return "trl" if self.script.is_trl else "open_instruct"

    def value(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        if name in self.in_file:
            return UNKNOWN
        if name in KNOWN_TO_LINT:
            return getattr(self, name)
        is_absent = self.is_complete and is_flag(name)
        return ABSENT if is_absent else UNKNOWN  # a command has no recipe

    def default(self, flag: str) -> Any:
        return self.defaults.get(flag, UNKNOWN)

    def source(self, flag: str) -> Source | None:
        return Source.user if flag in self.values else None

    def known_names(self, flag: str) -> Sequence[str]:
        return self.names.get(flag) or ()

    def locate(self, name: str) -> str:
        return name


def find_flag_warnings(given: GivenFlags) -> list[LintFinding]:
    """Return every warning for one command, in the order of the table; the checker sets its
    line.
    """
    findings = apply_rules(given, rules_for(given))
    return [
        warning(finding.id, finding.message, 1, finding.where, cure=finding.cure)
        for finding in findings
    ]
