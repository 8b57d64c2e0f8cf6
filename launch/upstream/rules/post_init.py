"""Follows a `__post_init__` of upstream on values of which some are unknown, and reports everything that it raises.

Its statements are followed one by one (`expressions.py`); a `raise` is recorded, and the next statement is followed as
if it had not happened. A refusal is certain only where everything that it depends on is known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from launch.upstream.rules.expressions import Evaluator, Special, State, StatementError, has_part
from launch.upstream.rules.source import Function
from launch.upstream.rules.unknown import MACHINE, Kinds, Unknown, merged, merged_maps, truth_of, unknown_kinds

_MAX_STEPS = 20_000  # statements that are followed


@dataclass(frozen=True)
class Contradiction:
    """Values that `__post_init__` refuses together."""

    message: str
    where: str  # upstream's file:line
    flags: tuple[str, ...]  # the fields that its condition reads
    certain: bool | None  # None: depends on an unknown value; False: on the machine, or on code that is not followed


class _End(Enum):
    """How a block ends before its last statement."""

    RETURN = "return"
    RAISE = "raise"


class _TooLongError(Exception):
    """There are more statements than are followed."""


class _Follower(Evaluator, ast.NodeVisitor):
    def __init__(self, fields: Mapping[str, Any], constants: Mapping[str, Any], functions: Sequence[Function]) -> None:
        super().__init__(fields, constants)
        self.functions = functions
        self.calls: list[Function] = []
        self.exits: list[tuple[dict[str, Any], Any]] = []  # the fields and the value at each `return` of the function
        self.steps = 0

    def call_function(self, name: str, base: Any, arguments: Sequence[Any], origins: Sequence[list[str]]) -> Any:
        if name == "super" and not arguments:
            return Special.SUPER
        named = [function for function in self.functions if function.qualified_name == name]
        if isinstance(base, Special):
            arguments, origins = [Special.SELF, *arguments], [[], *origins]
            named = [function for function in self.functions if function.owner and function.node.name == name]
        if base is Special.SUPER:
            named = named[named.index(self.calls[-1]) + 1 :] if self.calls[-1] in named else []
        parameters = [argument.arg for argument in named[0].node.args.args] if named else []
        if not named or named[0] in self.calls or len(arguments) != len(parameters):
            return NotImplemented
        return self.follow_function(named[0], dict(zip(parameters, arguments, strict=True)), origins)

    def follow_function(self, function: Function, names: dict[str, Any], origins: Sequence[list[str]] = ()) -> Any:
        """Follow a function, whose parameters have these values, and return its value."""
        outer = self.state, self.file, self.exits, self.doubt
        self.state = State(self.state.fields, names, dict(zip(names, origins, strict=False)))
        self.file, self.exits = function.file, []
        self.calls.append(function)
        if self._follow(function.node.body) != _End.RETURN:
            self._exit(None)
        self.calls.pop()
        exits, kinds = self.exits, self.doubt
        self.state, self.file, self.exits, self.doubt = outer
        self.state.fields = merged_maps([fields for fields, _ in exits], kinds)
        return merged([value for _, value in exits], kinds)

    def _exit(self, value: Any) -> None:
        self.exits.append(({**self.state.fields}, value))

    def _follow(self, statements: Iterable[ast.stmt]) -> _End | None:
        for statement in statements:
            self.steps += 1
            if self.steps > _MAX_STEPS:
                raise _TooLongError
            self.reads = []
            try:
                end = self.visit(statement)
            except StatementError:
                end = None
                self.lose_targets(statement)
            if isinstance(end, _End):
                return end
        return None

    def visit_If(self, node: ast.If) -> _End | None:
        test = self.visit(node.test)
        truth = truth_of(test)
        self.conditions.append(self.reads)
        if truth is None:
            end = self._follow_one_of(unknown_kinds(test), node.body, node.orelse)
        else:
            end = self._follow(node.body if truth else node.orelse)
        self.conditions.pop()
        return None if end == _End.RAISE else end

    def _follow_one_of(self, kinds: Kinds, *blocks: Sequence[ast.stmt]) -> _End | None:
        """Follow blocks of which one is executed; which one depends on `kinds`."""
        before, outer, doubt = self.state, self.doubt, self.doubt
        returned = len(self.exits)
        ends = []
        for block in blocks:
            self.state, self.doubt = before.copy(), outer | kinds
            exits = len(self.exits)
            end = self._follow(block)
            if len(self.exits) > exits:  # so that what follows may not be reached
                doubt |= self.doubt
            if end is None:
                ends.append(self.state)
        self.state, self.doubt = before, doubt
        if not ends:
            return _End.RETURN if len(self.exits) > returned else None
        origins = {name: reads for state in ends for name, reads in state.origins.items()}
        names = merged_maps([state.names for state in ends], outer | kinds)
        self.state = State(merged_maps([state.fields for state in ends], outer | kinds), names, origins)
        return None

    def visit_For(self, node: ast.For) -> _End | None:
        items = self.visit(node.iter)
        origins = self.reads
        if not isinstance(items, list | tuple) or has_part(node, ast.Break, ast.Continue):
            self.generic_visit(node)
            return None
        for item in items:
            self.reads = origins
            self.assign(node.target, item)
            if self._follow(node.body) == _End.RETURN:
                return _End.RETURN
        return self._follow(node.orelse)

    def visit_Try(self, node: ast.Try) -> _End | None:
        """Follow the body, and the handler if it is certain to be reached."""
        catches = [handler.type and ast.unparse(handler.type) for handler in node.handlers]
        if catches not in ([None], ["Exception"]) or has_part(node, ast.Return):
            self.generic_visit(node)
            return None
        outer, self.raised = self.raised, {}
        self._follow(node.body)
        inside, self.raised = self.raised.values(), outer
        if inside and all(raised.kinds for raised in inside):
            self.generic_visit(node)
        elif inside:
            self.lose_targets(node)
            self._follow(node.handlers[0].body)
        else:
            self._follow(node.orelse)
        self._follow(node.finalbody)
        return None

    def visit_Raise(self, node: ast.Raise) -> _End:
        self.record(self.place_of(node), self._describe(node.exc))
        return _End.RAISE

    def visit_Assert(self, node: ast.Assert) -> None:
        test = self.visit(node.test)
        if not truth_of(test):
            self.record(self.place_of(node), self._text_of(node.msg), unknown_kinds(test))

    def visit_Return(self, node: ast.Return) -> _End:
        self._exit(self.visit(node.value) if node.value else None)
        return _End.RETURN

    def visit_Expr(self, node: ast.Expr) -> None:
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.visit(node.value)
        for target in node.targets:
            self.assign(target, value)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self.state.names[(alias.asname or alias.name).partition(".")[0]] = Unknown()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.visit_Import(node)

    def visit_Pass(self, node: ast.Pass) -> None: ...

    def generic_visit(self, node: ast.AST) -> Any:
        """Leave out code that is not understood; whatever it raises is undecided."""
        value = super().generic_visit(node)
        for part in ast.walk(node):
            if isinstance(part, ast.Raise):
                self.record(self.place_of(part), self._describe(part.exc), value.kinds)
            elif isinstance(part, ast.Assert):
                self.record(self.place_of(part), self._text_of(part.msg), value.kinds)
            elif isinstance(part, ast.Return):
                self._exit(Unknown(value.kinds))
                self.doubt |= value.kinds
        return value

    def _describe(self, error: ast.expr | None) -> str:
        """Return the message of an error that is raised."""
        kind = error.func if isinstance(error, ast.Call) else error
        text = self._text_of(error.args[0]) if isinstance(error, ast.Call) and len(error.args) == 1 else ""
        return text or f"raises {ast.unparse(kind) if kind else 'again'}"

    def _text_of(self, node: ast.expr | None) -> str:
        """Return a message's text, with `?` for what is not known; '' if there is none."""
        if isinstance(node, ast.JoinedStr):
            return "".join(map(self._text_of, node.values))
        is_part = isinstance(node, ast.FormattedValue)
        raised = {**self.raised}
        try:
            value = self.visit(node.value if isinstance(node, ast.FormattedValue) else node) if node else ""
        except StatementError:
            value = Unknown()
        self.raised = raised
        if isinstance(node, ast.FormattedValue) and not unknown_kinds(value):
            return repr(value) if node.conversion == ord("r") else str(value)
        return value if isinstance(value, str) else "?" if is_part else ""

    def check(self, condition: str, message: str, where: str) -> None:
        """Record a contradiction if a condition over the fields holds; where it raises an error it does not."""
        self.state.names, self.state.origins = self.state.fields, {name: [name] for name in self.own}
        self.reads = []
        raised = {**self.raised}
        try:
            value = self.visit(ast.parse(condition, mode="eval").body)
        except StatementError:
            self.raised = raised
            return
        if truth_of(value) is not False:
            self.record(where, message, unknown_kinds(value))

    def contradictions(self) -> list[Contradiction]:
        return [
            Contradiction(found.message, where, found.reads, None if found.kinds - MACHINE else not found.kinds)
            for where, found in self.raised.items()
        ]


def run_post_init(
    functions: Sequence[Function], constants: Mapping[str, Any], fields: Mapping[str, Any]
) -> list[Contradiction]:
    """Return what the first function raises for the values of an instance's fields.

    Upstream stops at the first raise; this reports the others too.
    """
    follower = _Follower(fields, constants, functions)
    parameters = [argument.arg for argument in functions[0].node.args.args]
    try:
        follower.follow_function(functions[0], dict.fromkeys(parameters, Unknown()) | {parameters[0]: Special.SELF})
    except (_TooLongError, RecursionError):
        place = f"{functions[0].file}:{functions[0].node.lineno}"
        return [Contradiction("it is too long to be followed", place, (), None)]
    return follower.contradictions()


def check_rules(rules: Mapping[str, Mapping[str, Any]], fields: Mapping[str, Any]) -> list[Contradiction]:
    """Return the rules that the values of the fields break: {file:line: `if`, a condition on fields, and `message`}."""
    follower = _Follower(fields, {}, ())
    for where, rule in rules.items():
        follower.check(rule["if"], rule["message"], where)
    return follower.contradictions()
