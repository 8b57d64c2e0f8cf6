"""Warns about flags that a trainer's parser accepts and the trainer ignores or misinterprets.

cautions.yaml lists them, with conditions on the values that a command gives. Advice on single flags
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
    """Return the cautions that are shipped. A test checks each of them by a command."""
    entries = load_yaml(FILE.read_text(encoding="utf-8"))
    return tuple(Caution(**entry) for entry in entries)


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
    """Yield the caution's messages: one if its conditions hold, or one for each small count."""
    message_values: list[dict[str, Any]] = [{"value": given.values.get(caution.flag)}]
    for flag, needed in caution.when.items():
        condition = "is"
        operand = needed
        if isinstance(needed, dict):
            condition, operand = next(iter(needed.items()))
        if condition == "count_to":
            message_values = list(_small_counts(given.values.get(flag), operand))
            continue
        holds = _CONDITIONS[condition]
        if not holds(given, flag, given.known_value(flag), operand):
            return
    for values in message_values:
        yield caution.message.format(**values)


def _small_counts(values: Any, most: int) -> Iterator[dict[str, str]]:
    """Yield the pairs of a list of names and counts whose count is at most `most`.

    Another list has no pairs.
    """
    if not isinstance(values, list | tuple):
        return
    has_odd_length = len(values) % 2 == 1 and UNKNOWN not in values
    if has_odd_length:
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
    """Return the items of a list; none of a list with an unknown item, or of another value."""
    if not isinstance(value, list | tuple) or UNKNOWN in value:
        return []
    return list(value)


# The conditions of cautions.yaml. Each gets the given flags, the flag, its value (None if it is
# unknown or absent) and the operand.


def _is_equal(given: GivenFlags, flag: str, value: Any, operand: Any) -> bool:
    return value == operand and isinstance(value, type(operand))


def _is_different(given: GivenFlags, flag: str, value: Any, operand: Any) -> bool:
    """Return whether the value is another one, or the flag is absent."""
    return given.is_absent(flag) if value is None else value != operand


def _is_given(given: GivenFlags, flag: str, value: Any, operand: bool) -> bool:
    """Return whether the flag is given, or is absent if the operand is false."""
    return value is not None if operand else given.is_absent(flag)


def _is_below(given: GivenFlags, flag: str, value: Any, operand: float) -> bool:
    return isinstance(value, int | float) and value < operand


def _is_above(given: GivenFlags, flag: str, value: Any, operand: float) -> bool:
    return isinstance(value, int | float) and value > operand


def _contains(given: GivenFlags, flag: str, value: Any, operand: str) -> bool:
    return isinstance(value, str) and operand in value


def _lacks_items(given: GivenFlags, flag: str, value: Any, operand: Sequence[Any]) -> bool:
    """Return whether a list has none of the operand's items."""
    return bool(_known_list(value)) and set(operand).isdisjoint(value)


def _has_odd_length(given: GivenFlags, flag: str, value: Any, operand: Any) -> bool:
    return len(_known_list(value)) % 2 == 1


def _is_unknown_name(given: GivenFlags, flag: str, value: Any, operand: Any) -> bool:
    """Return whether the value is not among the names that the trainer knows for the flag."""
    names = given.names.get(flag) or ()
    return bool(names) and value is not None and value not in names


_CONDITIONS: Mapping[str, Callable[[GivenFlags, str, Any, Any], bool]] = {
    "is": _is_equal,
    "not": _is_different,
    "given": _is_given,
    "below": _is_below,
    "above": _is_above,
    "contains": _contains,
    "lacks": _lacks_items,
    "length": _has_odd_length,
    "named": _is_unknown_name,
}
