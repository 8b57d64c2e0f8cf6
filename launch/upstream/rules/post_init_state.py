"""What the interpreter of a `__post_init__` knows at a statement: values, doubts and errors."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from launch.upstream.rules.source import Function
from launch.upstream.rules.uncertain_values import (
    Doubt,
    UncertainValue,
    doubt_of,
    is_certainly_set,
    make_uncertain,
)

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
# syntax that binds a variable, whose name it has as `name`
_BINDERS = (ast.ExceptHandler, ast.FunctionDef, ast.ClassDef, ast.MatchAs, ast.MatchStar)


@dataclass(frozen=True)
class Contradiction:
    """Values that `__post_init__` refuses together."""

    message: str
    where: str  # upstream's file:line
    flags: tuple[str, ...]  # the fields that its condition reads
    # None if it depends on an unknown value, False if it depends on the machine or on code that is
    # not followed
    certain: bool | None


class InterpreterState:
    """The values, the doubts and the errors up to the statement that is being followed."""

    def __init__(
        self, fields: Mapping[str, Any], constants: Mapping[str, Any], functions: Sequence[Function]
    ) -> None:
        self.flags = frozenset(fields)
        self.fields = {**fields}  # values of the fields, and of other attributes of the instance
        self.constants = constants
        self.functions = functions
        self.calls: list[Function] = []  # the functions that are being followed
        self.variables: dict[str, Any] = {}  # values of local variables
        # the fields from which the value of a local variable comes
        self.origins: dict[str, list[str]] = {}
        # the fields that the conditions around this statement have read, then those that it has
        # read itself
        self.reads: list[str] = []
        self.condition_reads = 0  # how many of `reads` the conditions have read
        self.branch_doubt = Doubt.NONE  # whether the conditions around this statement are known
        # whether it is known that the function has not returned before this statement
        self.return_doubt = Doubt.NONE
        self.has_escaped = False  # whether code that is not followed may change the instance
        self.steps = 0
        self.contradictions: dict[str, Contradiction] = {}  # by file:line

    @property
    def doubt(self) -> Doubt:
        """Why it is not known whether this statement is reached."""
        return max(self.branch_doubt, self.return_doubt)

    def record(self, node: ast.expr | ast.stmt, message: str, doubt: Doubt = Doubt.NONE) -> None:
        """Record that an error is raised here; a certain one replaces one that is not."""
        file = self.calls[-1].file if self.calls else ""
        where = f"{file}:{node.lineno}"
        contradiction = self.build_contradiction(where, message, max(doubt, self.doubt))
        earlier = self.contradictions.get(where)
        if earlier is None or (contradiction.certain and not earlier.certain):
            self.contradictions[where] = contradiction

    def build_contradiction(self, where: str, message: str, doubt: Doubt) -> Contradiction:
        """Return an error whose condition has read the fields in `reads`."""
        certain = {Doubt.NONE: True, Doubt.MACHINE: False, Doubt.USER: None}[doubt]
        flags = dict.fromkeys(name for name in self.reads if name in self.flags)
        one_line = " ".join(message.split())
        return Contradiction(one_line, where, tuple(flags), certain)

    def skip(self, node: ast.AST) -> UncertainValue:
        """Leave out code that is not followed, and return its unknown value.

        Whatever it assigns is unknown from then on, and so is every list and dictionary, which it
        could change. If it has the instance itself, every field is unknown.
        """
        parts = list(ast.walk(node))
        # `self.x(...)` passes the instance to the function; a plain `self.x` only reads a field
        called = {part.func for part in parts if isinstance(part, ast.Call)}
        fields = []
        field_bases = set()
        for part in parts:
            if isinstance(part, ast.Attribute) and is_self(part.value):
                fields.append(part.attr)
                if part not in called:
                    field_bases.add(part.value)
        names = [
            part.id for part in parts if isinstance(part, ast.Name) and part not in field_bases
        ]
        doubt = max(Doubt.MACHINE, self._read_all(fields, names))
        has_definition = any(isinstance(part, _DEFINITIONS) for part in parts)
        if has_definition:  # a function that it defines could be called anywhere later
            self.return_doubt = max(self.return_doubt, doubt)
        if has_definition or "self" in names or "super" in names:
            self._let_instance_escape(doubt)
        self._lose_containers(doubt)
        for part in parts:
            self._skip_effect(part, UncertainValue(doubt))
        return UncertainValue(doubt)

    def _let_instance_escape(self, doubt: Doubt) -> None:
        """Make every field unknown: code that is not followed has the instance."""
        self.has_escaped = True
        for name, value in self.fields.items():
            self.fields[name] = make_uncertain(value, doubt)

    def _lose_containers(self, doubt: Doubt) -> None:
        """Make every list and dictionary unknown."""
        for scope in (self.fields, self.variables):
            for name, value in scope.items():
                if isinstance(value, list | dict):
                    scope[name] = make_uncertain(value, doubt)

    def _read_all(self, fields: Sequence[str], names: Sequence[str]) -> Doubt:
        """Note that fields and local variables are read; return the doubt of their values."""
        self.reads += fields
        for name in names:
            self.reads += self.origins.get(name, [])
        values = [self.fields.get(field) for field in fields]
        values += [self.variables.get(name) for name in names]
        return doubt_of(values)

    def _skip_effect(self, part: ast.AST, unknown: UncertainValue) -> None:
        """Follow the effect that one part of skipped code may have."""
        if isinstance(part, ast.Raise | ast.Assert):
            self.record(part, message_of(part), unknown.doubt)
        elif isinstance(part, ast.Return):
            self.return_doubt = max(self.return_doubt, unknown.doubt)
        elif isinstance(part, ast.alias):
            imported = part.asname or part.name
            self.variables[imported.partition(".")[0]] = unknown
        elif isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            self.variables[part.id] = unknown
        elif isinstance(part, ast.Attribute) and is_self(part.value):
            if not isinstance(part.ctx, ast.Load):
                self.fields[part.attr] = unknown
        elif isinstance(part, _BINDERS):
            self.variables[str(part.name)] = unknown

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name) and not is_self(target):
            origins = self.reads[self.condition_reads :]
            if self.doubt:  # the variable may keep its earlier value
                origins = [*self.origins.get(target.id, []), *origins]
            self.origins[target.id] = list(dict.fromkeys(origins))
            before = self.variables.get(target.id, UncertainValue())
            self.variables[target.id] = self._merge(before, value)
        elif isinstance(target, ast.Attribute) and is_self(target.value):
            before = self.fields.get(target.attr, UncertainValue())
            after = self._merge(before, value)
            if self.has_escaped:
                after = make_uncertain(after, Doubt.MACHINE)
            self.fields[target.attr] = after
        elif _matches(target, value):
            for part, item in zip(target.elts, value, strict=True):
                self.assign(part, item)
        else:
            self.skip(target)

    def _merge(self, before: Any, value: Any) -> Any:
        """Return the value of something that was `before` and to which this statement assigns
        `value`, if it is reached.
        """
        if not self.doubt or repr(before) == repr(value):
            return value
        doubt = max(self.doubt, doubt_of(before), doubt_of(value))
        return UncertainValue(doubt, is_set=is_certainly_set(before) and is_certainly_set(value))


def _matches(target: ast.expr, value: Any) -> TypeGuard[ast.Tuple]:
    """Return whether a tuple of targets has as many parts as the tuple that is assigned to it."""
    if not isinstance(target, ast.Tuple) or not isinstance(value, tuple):
        return False
    return len(target.elts) == len(value)


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def message_of(node: ast.Raise | ast.Assert) -> str:
    """Return the message of an error, with `...` for the values that it inserts."""
    error = node.msg if isinstance(node, ast.Assert) else node.exc
    if isinstance(error, ast.Call) and error.args:
        error = error.args[0]
    if error is None:
        return "raised again" if isinstance(node, ast.Raise) else ast.unparse(node)
    if isinstance(error, ast.Constant):
        return str(error.value)
    if not isinstance(error, ast.JoinedStr):
        return ast.unparse(error)
    texts = [str(part.value) if isinstance(part, ast.Constant) else "..." for part in error.values]
    return "".join(texts)
