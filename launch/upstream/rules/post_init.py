"""Follows a `__post_init__` of upstream on values of which some are unknown, and reports everything
that it raises.

Nothing of it is executed. Plain statements, `if`, loops over fixed names and calls of the class's
own functions are followed. Everything else is unknown: so is all that it assigns or could change,
and what it raises is undecided. A refusal is certain only where everything that it depends on is
known.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from launch.upstream.rules.source import Function

_MAX_STEPS = 20_000  # statements that are followed
_MAX_NUMBER = 2**63  # of arithmetic


class Doubt(IntEnum):
    """What something depends on that is not known; the greatest doubt counts."""

    NONE = 0
    MACHINE = 1  # the machine, or code that is not followed
    USER = 2  # a value of the user's


@dataclass(frozen=True)
class UnknownValue:
    """A value that is not known."""

    doubt: Doubt = Doubt.MACHINE
    is_set: bool = False  # it is not None
    truth: bool | None = None  # whether it counts as true, where that is known


@dataclass(frozen=True)
class Contradiction:
    """Values that `__post_init__` refuses together."""

    message: str
    where: str  # upstream's file:line
    flags: tuple[str, ...]  # the fields that its condition reads
    # None: depends on an unknown value; False: on the machine, or on code that is not followed
    certain: bool | None


class _EndError(Exception):
    """What follows is not reached, or is too much to be followed."""


def _are_json(texts: str | Sequence[str]) -> bool:
    try:
        for text in [texts] if isinstance(texts, str) else texts:
            json.loads(text)
    except ValueError:
        return False
    return True


_TYPES = {type_.__name__: type_ for type_ in (str, int, float, bool, list, tuple, dict)}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{function.__name__: function for function in (len, isinstance, sum, int, float, bool, list)},
    "json.loads": lambda text: UnknownValue(is_set=json.loads(text) is not None),
    "are_json": _are_json,  # for launch's rules
}
_OF_ANY_PARTS = ("len", "isinstance")  # the items of a list need not be known
_CONVERSIONS = ("int", "float", "json.loads")  # which refuse some values
_TEXT_METHODS = ("startswith", "endswith", "lower", "upper", "strip", "rstrip")
_COMPARISONS: Mapping[type, Callable[..., Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_ARITHMETIC: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def run_post_init(
    functions: Sequence[Function], constants: Mapping[str, Any], fields: Mapping[str, Any]
) -> list[Contradiction]:
    """Return what the first function raises for the values of an instance's fields.

    Upstream stops at the first raise; this goes on as if it had not happened. constants: of
    upstream's modules and classes; a text enum is {"enum": its values}.
    """
    follower = _Follower(fields, constants, functions)
    try:
        follower.follow_function(functions[0])
    except _EndError:
        pass
    except RecursionError:
        place = f"{functions[0].file}:{functions[0].node.lineno}"
        return [Contradiction("it is too deep to be followed", place, (), None)]
    return list(follower.found.values())


def check_rules(
    rules: Mapping[str, Mapping[str, Any]], fields: Mapping[str, Any]
) -> list[Contradiction]:
    """Return the rules that the values of the fields break: {file:line: `if`, a condition on
    fields, and `message`}.

    A rule is not broken where its condition raises an error.
    """
    found = []
    for where, rule in rules.items():
        follower = _Follower(fields, {}, ())
        follower.names = {**fields}
        follower.origins = {name: [name] for name in fields}
        try:
            value = follower.visit(ast.parse(rule["if"], mode="eval").body)
        except _EndError:
            continue
        if truth_of(value) is not False:
            found.append(follower.contradiction(where, rule["message"], doubt_of(value)))
    return found


def doubt_of(value: Any) -> Doubt:
    """Return what the unknown parts of a value depend on."""
    if isinstance(value, UnknownValue):
        return value.doubt
    parts = value.values() if isinstance(value, dict) else value
    return (
        max(map(doubt_of, parts), default=Doubt.NONE)
        if isinstance(value, list | tuple | dict)
        else Doubt.NONE
    )


def truth_of(value: Any) -> bool | None:
    """Return whether a value counts as true; None if that is not known."""
    return value.truth if isinstance(value, UnknownValue) else bool(value)


class _Follower(ast.NodeVisitor):
    """Follows a statement, or evaluates an expression, by `visit`; the one of a statement is True
    if it returns.
    """

    def __init__(
        self, fields: Mapping[str, Any], constants: Mapping[str, Any], functions: Sequence[Function]
    ) -> None:
        self.own = frozenset(fields)
        self.fields = {**fields}  # and other attributes of the instance
        self.constants = constants
        self.functions = functions
        self.calls: list[Function] = []  # the functions that are being followed
        self.names: dict[str, Any] = {}  # local ones
        self.origins: dict[
            str, list[str]
        ] = {}  # {local name: the fields that its value comes from}
        self.reads: list[
            str
        ] = []  # the fields that the conditions around the statement and itself have read
        self.around = 0  # how many of these are of the conditions
        self.branch = Doubt.NONE  # of the conditions around the statement
        self.left = Doubt.NONE  # whether the function has returned before
        self.is_shared = False  # the instance may be changed elsewhere
        self.steps = 0
        self.found: dict[str, Contradiction] = {}  # by file:line

    @property
    def doubt(self) -> Doubt:
        """What it depends on whether this statement is reached."""
        return max(self.branch, self.left)

    def record(self, node: ast.expr | ast.stmt, message: str, doubt: Doubt = Doubt.NONE) -> None:
        """Record that an error is raised here; a certain one replaces one that is not."""
        where = f"{self.calls[-1].file if self.calls else ''}:{node.lineno}"
        found = self.contradiction(where, message, max(doubt, self.doubt))
        if where not in self.found or (found.certain and not self.found[where].certain):
            self.found[where] = found

    def contradiction(self, where: str, message: str, doubt: Doubt) -> Contradiction:
        certain = {Doubt.NONE: True, Doubt.MACHINE: False, Doubt.USER: None}[doubt]
        flags = dict.fromkeys(name for name in self.reads if name in self.own)
        return Contradiction(" ".join(message.split()), where, tuple(flags), certain)

    def skip(self, node: ast.AST) -> UnknownValue:
        """Leave out code that is not followed, and return its unknown value.

        What it assigns and every list are unknown from then on; every field, too, if it has the
        instance itself.
        """
        parts = list(ast.walk(node))
        called = {part.func for part in parts if isinstance(part, ast.Call)}
        attributes = [
            part for part in parts if isinstance(part, ast.Attribute) and _is_self(part.value)
        ]
        bases = {part.value for part in attributes if part not in called}
        names = [part for part in parts if isinstance(part, ast.Name) and part not in bases]
        self.reads += [attribute.attr for attribute in attributes]
        self.reads += [origin for name in names for origin in self.origins.get(name.id, [])]
        read = [self.fields.get(attribute.attr) for attribute in attributes]
        doubt = max(
            Doubt.MACHINE, doubt_of(read), doubt_of([self.names.get(name.id) for name in names])
        )
        has_function = any(isinstance(part, _NESTED) for part in parts)
        if has_function:  # which could be called at any later place
            self.left = max(self.left, doubt)
        if has_function or any(name.id in ("self", "super") for name in names):
            self.is_shared = True
            self.fields = {name: _lost(value, doubt) for name, value in self.fields.items()}
        for scope in (self.fields, self.names):
            scope |= {
                name: _lost(value, doubt)
                for name, value in scope.items()
                if isinstance(value, list | dict)
            }
        for part in parts:
            self._skip_effect(part, UnknownValue(doubt))
        return UnknownValue(doubt)

    def _skip_effect(self, part: ast.AST, unknown: UnknownValue) -> None:
        if isinstance(part, ast.Raise | ast.Assert):
            self.record(part, _message_of(part), unknown.doubt)
        elif isinstance(part, ast.Return):
            self.left = max(self.left, unknown.doubt)
        elif isinstance(part, ast.alias):
            self.names[(part.asname or part.name).partition(".")[0]] = unknown
        elif isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            self.names[part.id] = unknown
        elif (
            isinstance(part, ast.Attribute)
            and _is_self(part.value)
            and not isinstance(part.ctx, ast.Load)
        ):
            self.fields[part.attr] = unknown
        elif isinstance(
            part, ast.ExceptHandler | ast.FunctionDef | ast.ClassDef | ast.MatchAs | ast.MatchStar
        ):
            self.names[str(part.name)] = unknown

    generic_visit = skip

    # Statements

    def follow_function(self, function: Function) -> UnknownValue:
        """Follow a function of the instance; its value is not followed, and neither are parameters
        beside `self`.
        """
        outer = self.names, self.origins, self.reads, self.branch, self.left
        self.names = {argument.arg: UnknownValue() for argument in function.node.args.args[1:]}
        self.origins = {}
        self.branch = self.doubt
        self.left = Doubt.NONE
        self.calls.append(function)
        self._follow(function.node.body)
        self.calls.pop()
        self.names, self.origins, self.reads, self.branch, self.left = outer
        return UnknownValue()

    def _follow(self, statements: Sequence[ast.stmt]) -> bool:
        """Follow statements; whether they are certain to return."""
        around = self.reads[: self.around]
        for statement in statements:
            self.steps += 1
            if self.steps > _MAX_STEPS:
                self.record(statement, "it is too long to be followed", Doubt.USER)
                raise _EndError
            self.reads = [*around]
            if self.visit(statement) is True:
                return True
        return False

    def visit_If(self, node: ast.If) -> bool:
        test = self.visit(node.test)
        truth = truth_of(test)
        outer = self.around, self.branch
        self.around = len(self.reads)
        returns = False
        if truth is None:
            self.branch = max(self.branch, doubt_of(test))
            self._follow(node.body)
            self._follow(node.orelse)
        else:
            returns = self._follow(node.body if truth else node.orelse)
        self.around, self.branch = outer
        return returns

    def visit_For(self, node: ast.For) -> Any:
        """Follow a loop over a tuple, which nothing changes meanwhile, or over an empty list."""
        items = self.visit(node.iter)
        items = () if items == [] else items
        if not isinstance(items, tuple) or any(
            isinstance(part, ast.Break | ast.Continue) for part in ast.walk(node)
        ):
            return self.skip(node)
        for item in items:
            self._assign(node.target, item)
            if self._follow(node.body):
                return True
        return self._follow(node.orelse)

    def visit_Return(self, node: ast.Return) -> bool:
        if node.value:
            self.visit(node.value)
        self.left = self.doubt
        return not self.doubt

    def visit_Raise(self, node: ast.Raise) -> None:
        self.record(node, _message_of(node))

    def visit_Assert(self, node: ast.Assert) -> None:
        test = self.visit(node.test)
        if not truth_of(test):
            self.record(node, _message_of(node), doubt_of(test))

    def visit_Expr(self, node: ast.Expr) -> None:
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.visit(node.value)
        for target in node.targets:
            self._assign(target, value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        before = ast.parse(ast.unparse(node.target), mode="eval").body
        self._assign(
            node.target, self.visit(ast.copy_location(ast.BinOp(before, node.op, node.value), node))
        )

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name) and not _is_self(target):
            before = self.origins.get(target.id, []) if self.doubt else []
            self.origins[target.id] = list(dict.fromkeys([*before, *self.reads[self.around :]]))
            self.names[target.id] = self._either(self.names.get(target.id, UnknownValue()), value)
        elif isinstance(target, ast.Attribute) and _is_self(target.value):
            new = self._either(self.fields.get(target.attr, UnknownValue()), value)
            self.fields[target.attr] = _lost(new, Doubt.MACHINE) if self.is_shared else new
        elif (
            isinstance(target, ast.Tuple)
            and isinstance(value, tuple)
            and len(target.elts) == len(value)
        ):
            for part, item in zip(target.elts, value, strict=True):
                self._assign(part, item)
        else:
            self.skip(target)

    def _either(self, before: Any, value: Any) -> Any:
        """Return the value that something has after this statement, which may not be reached."""
        if not self.doubt or repr(before) == repr(value):
            return value
        is_set = all(
            part.is_set if isinstance(part, UnknownValue) else part is not None
            for part in (before, value)
        )
        return UnknownValue(max(self.doubt, doubt_of(before), doubt_of(value)), is_set)

    # Expressions

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_Name(self, node: ast.Name) -> Any:
        if _is_self(node):
            return self.skip(node)
        self.reads += self.origins.get(node.id, [])
        return self.names[node.id] if node.id in self.names else _TYPES.get(node.id, UnknownValue())

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        name = ast.unparse(node)
        if _is_self(node.value) and node.attr in self.fields:
            self.reads.append(node.attr)
            return self.fields[node.attr]
        if name not in self.constants or self._is_local(name):
            return self.skip(node)
        value = self.constants[name]
        return tuple(value) if isinstance(value, list) else value

    def _is_local(self, name: str) -> bool:
        return name.partition(".")[0] in self.names

    def visit_List(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except ValueError:
            return self.skip(node)

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        return self.visit_List(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        ends = isinstance(node.op, ast.Or)  # the truth of a part after which no other is evaluated
        outer = self.branch
        doubt = Doubt.NONE
        for part in node.values:
            value = self.visit(part)
            truth = truth_of(value)
            if truth is ends:
                break
            if truth is None:
                doubt = max(doubt, doubt_of(value))
                self.branch = max(self.branch, doubt)
        self.branch = outer
        return (
            UnknownValue(max(doubt, doubt_of(value)), truth=ends if truth is ends else None)
            if doubt
            else value
        )

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        truth = truth_of(self.visit(node.test))
        return self.skip(node) if truth is None else self.visit(node.body if truth else node.orelse)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if not isinstance(node.op, ast.Not):
            return self.visit_List(node)  # a number
        value = self.visit(node.operand)
        truth = truth_of(value)
        return UnknownValue(doubt_of(value)) if truth is None else not truth

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        """Calculate with numbers; nothing that could become large."""
        values = [self.visit(node.left), self.visit(node.right)]
        is_small = all(
            isinstance(value, int | float) and abs(value) < _MAX_NUMBER for value in values
        )
        function = _ARITHMETIC.get(type(node.op))
        return self._compute(node, function, values) if function and is_small else self.skip(node)

    def visit_Compare(self, node: ast.Compare) -> Any:
        operands = [node.left, *node.comparators]
        if len(node.ops) > 1:  # 0 < x < 1
            pairs = zip(operands, node.ops, operands[1:], strict=False)
            parts: list[ast.expr] = [
                ast.Compare(left, [operation], [right]) for left, operation, right in pairs
            ]
            return self.visit(
                ast.BoolOp(ast.And(), [ast.copy_location(part, node) for part in parts])
            )
        values = [self.visit(operand) for operand in operands]
        (operation,) = node.ops
        if not isinstance(operation, ast.Is | ast.IsNot):
            return self._compute(node, _COMPARISONS[type(operation)], values)
        same = _is_same(*values)
        return same if isinstance(same, UnknownValue) else same is isinstance(operation, ast.Is)

    def _compute(
        self,
        node: ast.expr,
        function: Callable[..., Any],
        values: Sequence[Any],
        doubt: Doubt | None = None,
    ) -> Any:
        """Return a function's value; doubt: of its arguments. A certain error ends everything."""
        doubt = doubt_of(values) if doubt is None else doubt
        if doubt:
            return UnknownValue(doubt)
        try:
            return function(*values)
        except RecursionError:
            return UnknownValue()
        except Exception as error:
            self.record(node, f"{type(error).__name__}: {error}")
        if not self.doubt:
            raise _EndError
        return UnknownValue(self.doubt)

    def visit_Call(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func)
        own = self._own_function(ast.unparse(node))
        if own:
            return self.follow_function(own)
        if node.keywords or any(isinstance(part, ast.Starred) for part in node.args):
            return self.skip(node)
        if name in ("getattr", "setattr") and not self._is_local(name):
            return self._access_field(node)
        function: Any = None if self._is_local(name) else _FUNCTIONS.get(name)
        members = self.constants.get(name)
        if isinstance(members, dict):  # those of an enum; other values may be converted too
            function = lambda value: value if value in members["enum"] else UnknownValue()  # noqa: E731
        if isinstance(node.func, ast.Attribute) and node.func.attr in _TEXT_METHODS:
            text = self.visit(node.func.value)
            function = getattr(text, node.func.attr) if isinstance(text, str) else None
        if not function:
            return self.skip(node)
        values = [self.visit(part) for part in node.args]
        doubt = doubt_of(values)
        if doubt is Doubt.USER and (members or name in _CONVERSIONS):
            self.record(node, f"{name} refuses some values", doubt)
        if name in _OF_ANY_PARTS:
            doubt = max(
                value.doubt if isinstance(value, UnknownValue) else Doubt.NONE for value in values
            )
        return self._compute(node, function, values, doubt)

    def _own_function(self, call: str) -> Function | None:
        """Return the function of the class that is called; None for another one, and for one that
        is being followed.
        """
        for function in self.functions:
            name = function.node.name
            meant = [f"self.{name}()", f"{function.qualified_name}(self)"]
            if function not in self.calls and name == self.calls[-1].node.name:
                meant.append(f"super().{name}()")
            if call in meant:
                parameters = [argument.arg for argument in function.node.args.args]
                return function if function not in self.calls and parameters == ["self"] else None
        return None

    def _access_field(self, node: ast.Call) -> Any:
        """Read a field by `getattr`, or write it by `setattr`."""
        instance, *arguments = node.args
        name, *values = (self.visit(part) for part in arguments)
        is_write = ast.unparse(node.func) == "setattr"
        if not _is_self(instance) or not isinstance(name, str) or len(values) != is_write:
            return self.skip(node)
        field = ast.Attribute(instance, name)
        return self._assign(field, values[0]) if is_write else self.visit(field)


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _lost(value: Any, doubt: Doubt) -> UnknownValue:
    """Return the unknown value of what may have been changed elsewhere; a list stays one."""
    return UnknownValue(max(doubt, doubt_of(value)), is_set=isinstance(value, list | dict))


def _is_same(left: Any, right: Any) -> Any:
    """Return what `left is right` gives."""
    doubt = doubt_of([left, right])
    if left is None or right is None:
        other = right if left is None else left
        return (
            UnknownValue(doubt)
            if isinstance(other, UnknownValue) and not other.is_set
            else left is right
        )
    if doubt or bool not in (type(left), type(right)):
        return UnknownValue(doubt or Doubt.MACHINE)
    return left is right


def _message_of(node: ast.Raise | ast.Assert) -> str:
    """Return the message of an error, with `...` for what it inserts."""
    error = node.msg if isinstance(node, ast.Assert) else node.exc
    if isinstance(error, ast.Call) and error.args:
        error = error.args[0]
    if error is None:
        return "raised again" if isinstance(node, ast.Raise) else ast.unparse(node)
    parts = error.values if isinstance(error, ast.JoinedStr) else [error]
    is_text = isinstance(error, ast.JoinedStr | ast.Constant)
    texts = [str(part.value) if isinstance(part, ast.Constant) else "..." for part in parts]
    return "".join(texts) if is_text else ast.unparse(error)
