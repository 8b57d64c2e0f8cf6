"""Evaluates expressions of a compiled `__post_init__` (see `reader/post_init.py`) in three-valued logic.

The unknown values are those of `UnknownValue`.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from launch.upstream.rules.conversion import UNKNOWN, UnknownValue
from launch.upstream.schema import Program

MAYBE_NONE, MACHINE = UnknownValue.MAYBE_NONE, UnknownValue.MACHINE
TYPES: Mapping[str, type] = {t.__name__: t for t in (str, int, float, bool, list, tuple, dict)}
CALLS: Mapping[str, Callable[..., Any]] = {
    f.__name__: f for f in (len, int, float, str, bool, sum, min, max, abs, round, sorted, list, tuple, set, any, all)
}
OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "|": operator.or_,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "is": operator.is_,
    "is not": operator.is_not,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}


class EvaluatedCodeError(Exception):
    """The evaluated code raises, such as a failed conversion or a value that an enum lacks."""


@dataclass
class PostInitState:
    """The fields and local names of a dataclass instance during its `__post_init__`; evaluates expressions on them."""

    fields: dict[str, Any]
    locals: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict)  # {local name: the fields its value comes from}

    def copy(self) -> PostInitState:
        return PostInitState(dict(self.fields), dict(self.locals), dict(self.origins))

    def merged(self, other: PostInitState, unknown: Any) -> PostInitState:
        """Return the state after one of two branches, where it is unknown which."""
        return PostInitState(
            _merge(self.fields, other.fields, unknown),
            _merge(self.locals, other.locals, unknown),
            {**self.origins, **other.origins},
        )

    def evaluate(self, node: Program) -> Any:
        """Evaluate an expression, maybe to an unknown value. Raises EvaluatedCodeError where the code itself raises."""
        try:
            return self.compute(node)
        except EvaluatedCodeError:
            raise
        except Exception as error:  # the evaluated code fails, such as float("abc") or None > 1
            raise EvaluatedCodeError(f"{type(error).__name__}: {error}") from None

    def truth(self, node: Program) -> Any:
        """Evaluate an expression as a condition: True, False or an unknown value."""
        return _truth(self.evaluate(node))

    def fields_read_by(self, program: Any) -> Iterator[str]:
        """Yield the fields that a part of a program reads."""
        match program:
            case ["field", str(name)]:
                yield name
            case ["local", str(name)]:
                yield from self.origins.get(name, ())
            case ["getattr", node]:
                target = self.try_compute(node)
                if isinstance(target, str):
                    yield target
            case list():
                for part in program:
                    yield from self.fields_read_by(part)

    def compute(self, node: Program) -> Any:  # noqa: PLR0911, PLR0912 - one branch per form of expression
        match node:
            case ["const", value]:
                return value
            case ["field", name]:
                return self.fields.get(name, MACHINE)
            case ["local", name]:
                return self.locals.get(name, MACHINE)
            case ["compare", left, rest]:
                return self.compare(left, rest)
            case [("and" | "or") as word, parts]:
                return self.short_circuit(parts, stop=word == "or")
            case ["not", part]:
                value = _truth(self.compute(part))
                return value if is_unknown(value) else not value
            case ["call", name, arguments]:
                return _apply(CALLS[name], *map(self.compute, arguments))
            case ["list", parts]:
                return [self.compute(part) for part in parts]
            case ["choose", test, then, otherwise]:
                decided = _truth(self.compute(test))
                return decided if is_unknown(decided) else self.compute(then if decided else otherwise)
            case ["bin", sign, left, right]:
                return _apply(OPERATORS[sign], self.compute(left), self.compute(right))
            case ["index", owner, key]:
                return _apply(operator.getitem, self.compute(owner), self.compute(key))
            case ["method", owner, name, arguments]:
                value = self.compute(owner)
                if not is_unknown(value) and not isinstance(value, str | dict):
                    return MACHINE
                return _apply(lambda own, *rest: getattr(own, name)(*rest), value, *map(self.compute, arguments))
            case ["isinstance", part, names]:
                types = tuple(TYPES[name] for name in names)
                return _apply(lambda computed: isinstance(computed, types), self.compute(part))
            case ["getattr", part]:
                target = self.compute(part)
                return self.fields.get(target, MACHINE) if isinstance(target, str) else derived_unknown(target)
            case ["hasattr", part, name]:
                return _apply(hasattr, self.compute(part), self.compute(name))
            case ["json", part]:
                return _apply(json.loads, self.compute(part))
            case ["enum", name, members, part]:
                value = self.compute(part)
                if not is_unknown(value) and value not in members:
                    raise EvaluatedCodeError(f"ValueError: {value!r} is not a valid {name}")
                return value
            case ["text", parts]:
                return "".join(map(self.render_message, parts))
        return MACHINE

    def try_compute(self, node: Program) -> Any:
        """Evaluate an expression that may not be reached: its failure does not count."""
        try:
            return self.compute(node)
        except Exception:
            return MACHINE

    def compare(self, left: Program, rest: list[tuple[str, Program]]) -> Any:
        first, result = self.compute(left), True
        for sign, node in rest:
            second = self.compute(node)
            holds = _truth(_apply(OPERATORS[sign], first, second))
            if is_unknown(holds):
                result = holds
            elif not holds:
                return False
            first = second
        return result

    def short_circuit(self, parts: list[Program], stop: bool) -> Any:
        """Evaluate `and` / `or` in three-valued logic: one deciding part is enough, whatever the unknown ones are."""
        unknown: Any = None
        value: Any = None
        for part in parts:
            value = self.compute(part) if unknown is None else self.try_compute(part)
            if is_unknown(value):
                unknown = value if unknown is None or value is not MACHINE else unknown
            elif bool(value) is stop:
                return value if unknown is None else stop
        return value if unknown is None else unknown

    def render_message(self, message: Program | None) -> str:
        """Return a message's text, with `?` for unknown values."""
        if message is None:
            return ""
        kind = message[0]
        if kind == "text":
            return "".join(self.render_message(part) for part in message[1])
        if kind == "bin" and message[1] == "+":
            return self.render_message(message[2]) + self.render_message(message[3])
        value = self.try_compute(message[1] if kind in ("str", "repr") else message)
        if is_unknown(value):
            return "?"
        return repr(value) if kind == "repr" else str(value)


def _truth(value: Any) -> Any:
    return value if is_unknown(value) else bool(value)


def is_unknown(value: Any) -> bool:
    return isinstance(value, UnknownValue)


def _contained_unknown(value: Any) -> Any:
    """Return the unknown value inside a list, or None."""
    if isinstance(value, list):
        inner = [unknown for part in value if (unknown := _contained_unknown(part)) is not None]
        return MAYBE_NONE if any(part is not MACHINE for part in inner) else (MACHINE if inner else None)
    return value if is_unknown(value) else None


def _apply(function: Callable[..., Any], *arguments: Any) -> Any:
    if function in (operator.is_, operator.is_not) and UNKNOWN in arguments and None in arguments:
        return function is operator.is_not  # a value of the command line is never None
    if function in (CALLS["len"], operator.is_, operator.is_not) and not any(is_unknown(a) for a in arguments):
        return function(*arguments)
    unknowns = [unknown for argument in arguments if (unknown := _contained_unknown(argument)) is not None]
    if unknowns:
        return MAYBE_NONE if any(unknown is not MACHINE for unknown in unknowns) else MACHINE
    return function(*arguments)


def derived_unknown(value: Any) -> Any:
    """Return the unknown value of anything that depends on this one."""
    return MACHINE if value is MACHINE else MAYBE_NONE


def _merge(first: dict[str, Any], second: dict[str, Any], unknown: Any) -> dict[str, Any]:
    names = (*first, *(name for name in second if name not in first))
    agreed = {name for name in first if name in second and _is_same(first[name], second[name])}
    return {name: first[name] if name in agreed else derived_unknown(unknown) for name in names}


def _is_same(first: Any, second: Any) -> bool:
    return first is second or (type(first) is type(second) and bool(first == second))
