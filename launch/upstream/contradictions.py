"""What a trainer's `__post_init__` raises for given values, evaluated from the schema alone (see `post_init.py`).

Two kinds of values aren't known: `UNKNOWN` ones come from the command line (a shell variable), and `_MACHINE` ones from
anything else that the code looks at (the GPU, the environment, a function that isn't followed). A raise that hangs on the
first is undecided; one that hangs on the second only is an assumption about the machine.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from launch.upstream.conversion import UNKNOWN
from launch.upstream.schema import ParserClass, Program, Schema


class _Machine:
    def __repr__(self) -> str:
        return "MACHINE"


_MACHINE = _Machine()
_TYPES: Mapping[str, type] = {t.__name__: t for t in (str, int, float, bool, list, tuple, dict)}
_CALLS: Mapping[str, Callable[..., Any]] = {
    f.__name__: f for f in (len, int, float, str, bool, sum, min, max, abs, round, sorted, list, tuple, set, any, all)
}
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv},
    **{"%": operator.mod, "|": operator.or_, "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le},
    **{">": operator.gt, ">=": operator.ge, "is": operator.is_, "is not": operator.is_not},
    **{"in": lambda a, b: a in b, "not in": lambda a, b: a not in b},
}


@dataclass(frozen=True)
class Contradiction:
    """Values that `__post_init__` refuses together.

    message: upstream's own words. where: its file:line. flags: the fields that its condition looks at.
    certain: True; None where it hangs on a value that isn't known; False where it hangs on the machine.
    """

    message: str
    where: str
    flags: tuple[str, ...]
    certain: bool | None


def contradictions(schema: Schema, values: Mapping[str, Any], defaults_known: bool = True) -> list[Contradiction]:
    """What the parser's dataclasses raise when they are made with these values, `UNKNOWN` ones included.

    values: {field name: converted value} of the flags that are given. defaults_known=False: what isn't given is unknown
    too (it comes from a file that hasn't been read). Upstream stops at the first raise; here the others are told too.
    """
    found: list[Contradiction] = []
    for cls in schema.classes:
        if cls.post_init is not None:
            found.extend(_run(schema, cls, values, defaults_known))
    return found


def _run(schema: Schema, cls: ParserClass, values: Mapping[str, Any], defaults_known: bool) -> list[Contradiction]:
    state: dict[str, Any] = {}
    for name in cls.fields:
        item = schema.fields[name]
        if name in values:
            state[name] = values[name]
        elif item.in_parser and (item.required or not defaults_known):
            state[name] = UNKNOWN
        else:
            state[name] = _MACHINE if "default" in item.unknown else item.default
    run = _Run(frozenset(cls.fields), state)
    assert cls.post_init is not None
    run.execute([cls.post_init], "")
    return run.found


class _Raised(Exception):
    """The evaluated code raises: a failed conversion, an enum without such a value."""


@dataclass
class _Run:
    fields: frozenset[str]
    state: dict[str, Any]
    found: list[Contradiction] = field(default_factory=list)
    local: dict[str, Any] = field(default_factory=dict)
    certainty: bool | None = True
    reasons: list[str] = field(default_factory=list)

    def execute(self, body: list[Program], file: str) -> str:
        """Runs statements; returns how they end: next, return, break, continue or raise."""
        for statement in body:
            try:
                end = self.step(statement, file)
            except _Raised as problem:
                end = self.failed(statement, str(problem), file)
            if end != "next":
                return end
        return "next"

    def step(self, statement: Program, file: str) -> str:
        match statement:
            case ["set", _, name, value]:
                self.state[name] = self.value(value)
            case ["let", _, name, value]:
                self.local[name] = self.value(value)
            case ["setattr", _, name, value]:
                target = self.value(name)
                if isinstance(target, str):
                    self.state[target] = self.value(value)
                else:
                    self.forget(None)
            case ["if", _, test, then, otherwise]:
                return self.branch(test, then, otherwise, file)
            case ["raise", line, kind, message]:
                text = self.shown(message) or f"raises {kind}"
                return self.raise_(text, f"{file}:{line}", self.reasons)
            case ["for", _, names, iterable, inner]:
                return self.loop(names, self.value(iterable), inner, file)
            case ["try", _, inner, reraises]:
                return self.attempt(inner, reraises, file)
            case ["inline", other, inner]:
                outer, certainty = self.local, self.certainty
                self.local = {}
                end = self.execute(inner, other)
                self.local, self.certainty = outer, certainty
                return "next" if end == "return" else end
            case ["forget", _, names]:
                self.forget(names)
            case [("return" | "break" | "continue") as end]:
                return str(end)
        return "next"

    def failed(self, statement: Program, message: str, file: str) -> str:
        """An expression raised. What would have been assigned isn't known; the other conditions are still looked at."""
        looked_at = statement[2:3] if statement[0] == "if" else statement[2:]
        self.raise_(message, f"{file}:{statement[1]}", [*self.reasons, *self.read_by(looked_at)])
        if statement[0] in ("set", "let"):
            (self.state if statement[0] == "set" else self.local)[statement[2]] = _MACHINE
        return "next"

    def forget(self, names: list[str] | None) -> None:
        self.state.update(dict.fromkeys(self.state if names is None else names, _MACHINE))

    def raise_(self, message: str, where: str, flags: Iterable[str]) -> str:
        named = tuple(dict.fromkeys(name for name in flags if name in self.fields))
        self.found.append(Contradiction(message, where, named, self.certainty))
        return "raise"

    def branch(self, test: Program, then: list[Program], otherwise: list[Program], file: str) -> str:
        decided = self.truth(self.value(test))
        self.reasons.extend(names := list(self.read_by([test])))
        try:
            if isinstance(decided, bool):
                end = self.execute(then if decided else otherwise, file)
                return "next" if end == "raise" else end  # a person wants to hear of every contradiction at once
            return self.either(decided, then, otherwise, file)
        finally:
            del self.reasons[len(self.reasons) - len(names) :]

    def either(self, unknown: Any, then: list[Program], otherwise: list[Program], file: str) -> str:
        """Both branches, each on its own copy of the fields; afterwards only what they agree on is known."""
        before, certainty = (dict(self.state), dict(self.local)), self.certainty
        self.certainty = _weaker(certainty, unknown)
        first_end = self.execute(then, file)
        first = self.state, self.local
        self.state, self.local = dict(before[0]), dict(before[1])
        second_end = self.execute(otherwise, file)
        if "raise" in (first_end, second_end):
            # beyond this point the raise didn't happen
            self.certainty = certainty
            if second_end == "raise":
                self.state, self.local = first if first_end != "raise" else before
            return "next" if first_end == second_end else (first_end if second_end == "raise" else second_end)
        if first_end == second_end:
            self.certainty = certainty
            if first_end == "next":
                self.state = _merged(first[0], self.state, unknown)
                self.local = _merged(first[1], self.local, unknown)
            return first_end
        # one branch leaves early: what follows happens only if it doesn't
        if second_end != "next":
            self.state, self.local = first
        return "next"

    def loop(self, names: list[str], iterable: Any, body: list[Program], file: str) -> str:
        certainty = self.certainty
        try:
            return self.rounds(names, iterable, body, file)
        finally:
            self.certainty = certainty

    def rounds(self, names: list[str], iterable: Any, body: list[Program], file: str) -> str:
        if not isinstance(iterable, list | tuple | dict):
            self.certainty = _weaker(self.certainty, iterable)
            self.local.update(dict.fromkeys(names, _worse(iterable)))
            before = dict(self.state)
            self.execute(body, file)
            self.state = _merged(before, self.state, iterable)
            return "next"
        for element in iterable:
            parts = list(element) if len(names) > 1 and isinstance(element, list | tuple) else [element]
            if len(parts) != len(names):
                parts = [_MACHINE] * len(names)
            self.local.update(zip(names, parts, strict=True))
            end = self.execute(body, file)
            if end == "break":
                break
            if end in ("return", "raise"):
                return end
        return "next"

    def attempt(self, body: list[Program], reraises: bool, file: str) -> str:
        before = len(self.found)
        end = self.execute(body, file)
        if len(self.found) > before and not reraises:
            del self.found[before:]  # the handler takes it; what it does instead isn't followed
            self.forget(None)
            return "next"
        return end

    def read_by(self, program: Any) -> Iterator[str]:
        """The fields that a piece of program looks at."""
        if isinstance(program, list):
            if len(program) == 2 and program[0] == "field":
                yield program[1]
            else:
                for part in program:
                    yield from self.read_by(part)

    def truth(self, value: Any) -> Any:
        return value if _is_open(value) else bool(value)

    def value(self, node: Program) -> Any:
        try:
            return self.compute(node)
        except _Raised:
            raise
        except Exception as problem:  # the evaluated code's own failure, such as float("abc") or None > 1
            raise _Raised(f"{type(problem).__name__}: {problem}") from None

    def compute(self, node: Program) -> Any:
        match node:
            case ["const", value]:
                return value
            case ["field", name]:
                return self.state.get(name, _MACHINE)
            case ["local", name]:
                return self.local.get(name, _MACHINE)
            case ["getattr", name]:
                target = self.compute(name)
                return self.state.get(target, _MACHINE) if isinstance(target, str) else _worse(target)
            case ["and", parts]:
                return self.connected(parts, stop=False)
            case ["or", parts]:
                return self.connected(parts, stop=True)
            case ["not", part]:
                value = self.truth(self.compute(part))
                return value if _is_open(value) else not value
            case ["compare", left, rest]:
                return self.compared(left, rest)
            case ["choose", test, then, otherwise]:
                decided = self.truth(self.compute(test))
                if _is_open(decided):
                    return decided
                return self.compute(then if decided else otherwise)
            case ["list", parts]:
                return [self.compute(part) for part in parts]
            case ["text", parts]:
                return self.shown(node)
        return self.applied(node)

    def applied(self, node: Program) -> Any:
        """Forms whose result is open as soon as one of their arguments is."""
        match node:
            case ["bin", sign, left, right]:
                return _apply(_BINARY[sign], self.compute(left), self.compute(right))
            case ["index", owner, key]:
                return _apply(operator.getitem, self.compute(owner), self.compute(key))
            case ["call", name, arguments]:
                return _apply(_CALLS[name], *(self.compute(argument) for argument in arguments))
            case ["method", owner, name, arguments]:
                found = self.compute(owner)
                if not _is_open(found) and not isinstance(found, str | dict):
                    return _MACHINE
                return _apply(lambda o, *a: getattr(o, name)(*a), found, *(self.compute(a) for a in arguments))
            case ["isinstance", value, names]:
                return _apply(lambda v: isinstance(v, tuple(_TYPES[name] for name in names)), self.compute(value))
            case ["hasattr", value, name]:
                return _apply(hasattr, self.compute(value), self.compute(name))
            case ["json", value]:
                return _apply(json.loads, self.compute(value))
            case ["enum", name, members, value]:
                found = self.compute(value)
                if not _is_open(found) and found not in members:
                    raise _Raised(f"ValueError: {found!r} is not a valid {name}")
                return found
        return _MACHINE

    def connected(self, parts: list[Program], stop: bool) -> Any:
        """`and` / `or` in three-valued logic: one part that decides is enough, whatever the open ones are."""
        open_part: Any = None
        value: Any = None
        for part in parts:
            value = self.compute(part) if open_part is None else self.guarded(part)
            if _is_open(value):
                open_part = value if open_part is None or value is UNKNOWN else open_part
            elif bool(value) is stop:
                return value if open_part is None else stop
        return value if open_part is None else open_part

    def guarded(self, part: Program) -> Any:
        """A part that may not be reached at all: its own failure isn't one."""
        try:
            return self.compute(part)
        except Exception:
            return _MACHINE

    def compared(self, left: Program, rest: list[Program]) -> Any:
        first, result = self.compute(left), True
        for sign, node in rest:
            second = self.compute(node)
            held = self.truth(_apply(_BINARY[sign], first, second))
            if _is_open(held):
                result = held
            elif not held:
                return False
            first = second
        return result

    def shown(self, message: Program | None) -> str:
        """A message's text; values that aren't known stand as `?`."""
        if message is None:
            return ""
        kind = message[0]
        if kind == "text":
            return "".join(self.shown(part) for part in message[1])
        if kind == "bin" and message[1] == "+":
            return self.shown(message[2]) + self.shown(message[3])
        value = self.guarded(message[1] if kind in ("str", "repr") else message)
        if _is_open(value):
            return "?"
        return repr(value) if kind == "repr" else str(value)


def _is_open(value: Any) -> bool:
    return value is UNKNOWN or value is _MACHINE


def _holds_open(value: Any) -> Any:
    """The open value inside a list, or None."""
    if isinstance(value, list):
        inner = [found for part in value if (found := _holds_open(part)) is not None]
        return UNKNOWN if any(part is UNKNOWN for part in inner) else (inner[0] if inner else None)
    return value if _is_open(value) else None


def _apply(function: Callable[..., Any], *arguments: Any) -> Any:
    if function in (_CALLS["len"], operator.is_, operator.is_not) and not any(_is_open(a) for a in arguments):
        return function(*arguments)
    found = [opened for argument in arguments if (opened := _holds_open(argument)) is not None]
    if found:
        return UNKNOWN if any(part is UNKNOWN for part in found) else found[0]
    return function(*arguments)


def _worse(value: Any) -> Any:
    return UNKNOWN if value is UNKNOWN else _MACHINE


def _weaker(certainty: bool | None, unknown: Any) -> bool | None:
    """What a raise under this condition amounts to: `UNKNOWN` makes it undecided, the machine an assumption."""
    if unknown is not UNKNOWN:
        return False
    return None if certainty is True else certainty


def _merged(first: dict[str, Any], second: dict[str, Any], unknown: Any) -> dict[str, Any]:
    return {
        name: first[name] if name in first and name in second and _same(first[name], second[name]) else _worse(unknown)
        for name in (*first, *(name for name in second if name not in first))
    }


def _same(first: Any, second: Any) -> bool:
    return first is second or (type(first) is type(second) and bool(first == second))
