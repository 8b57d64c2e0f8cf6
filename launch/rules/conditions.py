"""The conditions of the table's rows. The head of `table.yaml` explains each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from launch.config.line import format_value
from launch.config.ranges import Range, is_number
from launch.rules.facts import ABSENT, UNKNOWN, Facts, Source

# Each gets the facts, the name, its value and the operand.
Condition = Callable[[Facts, str, Any, Any], bool]


def holds(facts: Facts, name: str, conditions: Mapping[str, Any]) -> bool:
    """Return whether all conditions hold of a name. An unknown value fulfils none."""
    value = facts.value(name)
    for condition, operand in conditions.items():
        if value is UNKNOWN and condition not in _OF_SOURCE:
            return False
        if not CONDITIONS[condition](facts, name, value, operand):
            return False
    return True


def is_set(value: Any) -> bool:
    """Return whether a flag is given, or a key has another value than null."""
    return value is not ABSENT and value is not None


def _is_equal(facts: Facts, name: str, value: Any, operand: Any) -> bool:
    operands = operand if isinstance(operand, list) else [operand]
    return any(_are_same(value, each) for each in operands)


def _is_different(facts: Facts, name: str, value: Any, operand: Any) -> bool:
    return not _is_equal(facts, name, value, operand)


def _are_same(value: Any, operand: Any) -> bool:
    """Return whether a value is the one that a row has; a number is compared as a number."""
    if value is ABSENT or operand is None:
        return value is operand
    if is_number(value) and is_number(operand):
        return value == operand
    return format_value(value) == format_value(operand)


def _is_given(facts: Facts, name: str, value: Any, operand: bool) -> bool:
    return is_set(value) is operand


def _is_below(facts: Facts, name: str, value: Any, operand: float) -> bool:
    return is_number(value) and value < operand


def _is_above(facts: Facts, name: str, value: Any, operand: float) -> bool:
    return is_number(value) and value > operand


def _is_outside(facts: Facts, name: str, value: Any, operand: str) -> bool:
    return is_number(value) and not Range.parse(operand).contains(value)


def _contains(facts: Facts, name: str, value: Any, operand: str) -> bool:
    return isinstance(value, str) and operand in value


def _matches(facts: Facts, name: str, value: Any, operand: str) -> bool:
    """Return whether the value, or an item of a list, matches an expression as a whole."""
    return any(re.fullmatch(operand, text) for text in texts_of(value))


def _matches_not(facts: Facts, name: str, value: Any, operand: str) -> bool:
    return not _matches(facts, name, value, operand)


def _lacks_items(facts: Facts, name: str, value: Any, operand: Sequence[Any]) -> bool:
    """Return whether a list has none of the operand's items."""
    return bool(_known_list(value)) and set(operand).isdisjoint(value)


def _has_length(facts: Facts, name: str, value: Any, operand: str) -> bool:
    """Return whether a list that is not empty has an odd, or an even, number of values."""
    length = len(_known_list(value))
    return length > 0 and _PARITIES[length % 2] == operand


def _has_small_count(facts: Facts, name: str, value: Any, operand: int) -> bool:
    return any(small_counts(value, operand))


def _is_named(facts: Facts, name: str, value: Any, operand: bool) -> bool:
    """Return whether the value is among the names that the trainer knows for the flag, or, with the
    operand false, is not among them. Where the names are not known, neither is.
    """
    names = facts.known_names(name)
    return bool(names) and is_set(value) and (value in names) is operand


def _is_from(facts: Facts, name: str, value: Any, operand: str) -> bool:
    return facts.source(name) == operand


def _is_not_from(facts: Facts, name: str, value: Any, operand: str) -> bool:
    return facts.source(name) not in (None, operand)


_PARITIES = ("even", "odd")

CONDITIONS: Mapping[str, Condition] = {
    "is": _is_equal,
    "not": _is_different,
    "given": _is_given,
    "below": _is_below,
    "above": _is_above,
    "outside": _is_outside,
    "contains": _contains,
    "matches": _matches,
    "matches_not": _matches_not,
    "lacks": _lacks_items,
    "length": _has_length,
    "count_to": _has_small_count,
    "named": _is_named,
    "from": _is_from,
    "not_from": _is_not_from,
}
_OF_SOURCE = ("from", "not_from")  # they do not depend on the value
# The operands that a condition takes, where they are few.
_CHOICES: Mapping[str, Sequence[object]] = {
    "given": (True, False),
    "named": (True, False),
    "length": _PARITIES,
    "from": tuple(Source),
    "not_from": tuple(Source),
}
# Conditions whose operand is a number, and those whose operand is a regular expression.
_OF_NUMBERS = ("below", "above", "count_to")
_OF_EXPRESSIONS = ("matches", "matches_not")


def find_fault(condition: str, operand: Any) -> str | None:
    """Return what is wrong with a condition of a row; None if nothing is."""
    if condition not in CONDITIONS:
        return f"there is no condition '{condition}': {', '.join(CONDITIONS)}"
    choices = _CHOICES.get(condition)
    if choices is not None and operand not in choices:
        return f"'{condition}' takes {' or '.join(map(format_value, choices))}, got {operand}"
    if condition in _OF_NUMBERS and not is_number(operand):
        return f"'{condition}' takes a number, got {operand}"
    if condition in _OF_EXPRESSIONS:
        try:
            re.compile(operand)
        except (re.error, TypeError) as error:
            return f"'{condition}' takes a regular expression, got {operand}: {error}"
    if condition == "outside":
        try:
            Range.parse(str(operand))
        except ValueError as error:
            return str(error)
    return None


def texts_of(value: Any) -> list[str]:
    """Return a value as the texts that an expression is compared with: one for each item of a
    list. A flag that is not given is `None`.
    """
    items = value if isinstance(value, list | tuple) else [value]
    return ["None" if item is ABSENT else format_value(item) for item in items]


def small_counts(value: Any, most: int) -> Iterator[dict[str, str]]:
    """Yield the pairs of a list of names and counts whose count is at most `most`.

    Another list has no pairs.
    """
    if not isinstance(value, list | tuple):
        return
    has_odd_length = len(value) % 2 == 1 and UNKNOWN not in value
    if has_odd_length:
        return
    for name, amount in zip(value[::2], value[1::2], strict=False):
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
