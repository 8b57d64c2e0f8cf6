"""Warns about flags that a trainer's parser accepts and the trainer ignores or misinterprets.

cautions.yaml has them, with conditions on the values that a command gives. Advice on single flags
is in the trainers' YAML files (`configs/tulu/trainer/`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from launch.check.lint.trainer_commands import LintFinding, TrainerScript, warning
from launch.config.yaml_nodes import load_yaml
from launch.upstream.rules.conversion import UNKNOWN
from launch.upstream.trainers import trainer_files

FILE = Path(__file__).with_name("cautions.yaml")
_CURE = re.compile(r"; (?:say|set) ")  # introduces the cure, which refers to launch's own keys


@dataclass(frozen=True)
class GivenFlags:
    """The flags that a command gives to a trainer."""

    trainer: TrainerScript
    # The values by flag name; UNKNOWN where a shell variable determines the value.
    values: Mapping[str, Any]
    is_complete: bool  # False if the command may give further flags, through a shell variable
    # The names among which the trainer looks up a flag's value, by flag; empty if unknown.
    names: Mapping[str, Sequence[str]]

    def known_value(self, flag: str) -> Any:
        """Return the value, or None if it is not given or unknown."""
        value = self.values.get(flag)
        return None if value is UNKNOWN else value

    def is_absent(self, flag: str) -> bool:
        return self.is_complete and flag not in self.values


@dataclass(frozen=True)
class Caution:
    """An entry of cautions.yaml, which explains each field."""

    id: str
    flag: str
    when: Mapping[str, Any]  # flag -> its value, or {condition: operand}
    message: str
    trainers: Sequence[str] = ()


@cache
def cautions() -> tuple[Caution, ...]:
    """The cautions that are shipped; a test holds each of them to a command."""
    return tuple(Caution(**entry) for entry in load_yaml(FILE.read_text(encoding="utf-8")))


def find_unusable(trainer: TrainerScript, flags: Iterable[str]) -> Iterator[LintFinding]:
    """Yield a warning for each flag that does nothing or does not work.

    The checker sets its line.
    """
    advice = trainer_files().get(trainer.name, {})
    refused = advice.get("refused") or {}
    ignored = advice.get("ignored_flags") or ()
    for flag in flags:
        if flag in refused:
            yield warning("does_not_work", _CURE.split(refused[flag])[0], 1, flag)
        elif flag in ignored:
            script = trainer.script.rpartition("/")[2]
            yield warning("never_read", f"{script} accepts {flag} and never reads it", 1, flag)


def find_cautions(given: GivenFlags) -> list[LintFinding]:
    """Return every warning for one command, in the order of the file; the checker sets its line."""
    if given.trainer.is_trl:
        return []
    findings: list[LintFinding] = []
    for caution in cautions():
        if caution.trainers and given.trainer.name not in caution.trainers:
            continue
        messages = _messages(caution, given)
        findings += [warning(caution.id, message, 1, caution.flag) for message in messages]
    return findings


def _messages(caution: Caution, given: GivenFlags) -> Iterator[str]:
    """Yield the message once for each way in which the conditions hold."""
    facts: list[dict[str, Any]] = [{"value": given.values.get(caution.flag)}]
    for flag, needed in caution.when.items():
        condition = "is"
        operand = needed
        if isinstance(needed, dict):
            condition, operand = next(iter(needed.items()))
        if condition == "count_to":
            facts = list(_small_counts(given.values.get(flag), operand))
        elif not _CONDITIONS[condition](given, flag, given.known_value(flag), operand):
            return
    for values in facts:
        yield caution.message.format(**values)


def _small_counts(values: Any, most: int) -> Iterator[dict[str, str]]:
    """Yield the pairs of a list of names and counts whose count is at most `most`.

    Another list has no pairs.
    """
    if not isinstance(values, list | tuple) or (UNKNOWN not in values and len(values) % 2):
        return
    for name, amount in zip(values[::2], values[1::2], strict=False):
        if isinstance(amount, str) and amount.isdecimal() and int(amount) <= most:
            samples = "one sample" if int(amount) == 1 else f"{amount} samples"
            yield {
                "value": amount,
                "samples": samples,
                "name": name if isinstance(name, str) else "the dataset",
            }


def _known_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) and UNKNOWN not in value else []


# Whether a condition holds, by its name. The function gets the given flags, the flag, its value
# (None if unknown or absent) and the operand.
_CONDITIONS: dict[str, Callable[[GivenFlags, str, Any, Any], bool]] = {
    "is": lambda _, flag, value, operand: value == operand and isinstance(value, type(operand)),
    "not": lambda given, flag, value, operand: (
        given.is_absent(flag) if value is None else value != operand
    ),
    "given": lambda given, flag, value, operand: (
        value is not None if operand else given.is_absent(flag)
    ),
    "below": lambda _, flag, value, operand: isinstance(value, int | float) and value < operand,
    "above": lambda _, flag, value, operand: isinstance(value, int | float) and value > operand,
    "contains": lambda _, flag, value, operand: isinstance(value, str) and operand in value,
    "lacks": lambda _, flag, value, operand: (
        bool(_known_list(value)) and set(operand).isdisjoint(value)
    ),
    "length": lambda _, flag, value, operand: len(_known_list(value)) % 2 == 1,
    "named": lambda given, flag, value, _: (
        value is not None and value not in (given.names.get(flag) or (value,))
    ),
}
