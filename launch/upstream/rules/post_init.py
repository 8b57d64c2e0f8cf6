"""Find what a `__post_init__` of upstream raises for values of which some are unknown.

It is interpreted from its syntax tree, and not executed. Plain statements, `if`, loops over fixed
names and calls of the class's own functions are followed. The value of other code is unknown, and
so are the variables and fields that it assigns or could change; whether it raises is undecided. An
error is certain only if everything that it depends on is known.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeGuard

from launch.upstream.rules.source import Function

_MAX_STEPS = 20_000  # statements that are followed
_MAX_NUMBER = 2**63  # whole numbers that are operands of arithmetic are smaller


class Doubt(IntEnum):
    """Why something is not known; with several reasons, the greatest counts."""

    NONE = 0  # it is known
    MACHINE = 1  # it depends on the machine, or on code that is not followed
    USER = 2  # it depends on a value of the user's


@dataclass(frozen=True)
class UncertainValue:
    """A value that is not known."""

    doubt: Doubt = Doubt.MACHINE
    is_set: bool = False  # whether it is known not to be None
    truth: bool | None = None  # whether it counts as true; None if that is not known


@dataclass(frozen=True)
class Contradiction:
    """Values that `__post_init__` refuses together."""

    message: str
    where: str  # upstream's file:line
    flags: tuple[str, ...]  # the fields that its condition reads
    # None if it depends on an unknown value, False if it depends on the machine or on code that is
    # not followed
    certain: bool | None


class _EndError(Exception):
    """The following code is not reached, or is too long to be followed."""


def _are_json(texts: str | Sequence[str]) -> bool:
    """Return whether each text is JSON."""
    if isinstance(texts, str):
        texts = [texts]
    try:
        for text in texts:
            json.loads(text)
    except ValueError:
        return False
    return True


_TYPES = {type_.__name__: type_ for type_ in (str, int, float, bool, list, tuple, dict)}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{function.__name__: function for function in (len, isinstance, sum, int, float, bool, list)},
    "json.loads": lambda text: UncertainValue(is_set=json.loads(text) is not None),
    "are_json": _are_json,  # for launch's rules
}
_OF_ANY_PARTS = ("len", "isinstance")  # functions of a list whose items need not be known
_CONVERSIONS = ("int", "float", "json.loads")  # functions that refuse some values
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

    Upstream stops at the first error; this continues after it. `constants` are those of upstream's
    modules and classes, of which a text enum is {"enum": its values}.
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
    """Return the rules that the values of the fields break.

    Rules are given by file:line; each has `if`, a condition on fields, and `message`. A rule whose
    condition raises an error is not broken.
    """
    broken = []
    for where, rule in rules.items():
        follower = _Follower(fields, {}, ())
        follower.names = {**fields}
        follower.origins = {name: [name] for name in fields}
        try:
            value = follower.visit(ast.parse(rule["if"], mode="eval").body)
        except _EndError:
            continue
        if truth_of(value) is not False:
            broken.append(follower.contradiction(where, rule["message"], doubt_of(value)))
    return broken


def doubt_of(value: Any) -> Doubt:
    """Return what the unknown parts of a value depend on."""
    if isinstance(value, UncertainValue):
        return value.doubt
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return Doubt.NONE
    return max((doubt_of(part) for part in value), default=Doubt.NONE)


def truth_of(value: Any) -> bool | None:
    """Return whether a value counts as true; None if that is not known."""
    return value.truth if isinstance(value, UncertainValue) else bool(value)


def _is_small_number(value: object) -> bool:
    """Return whether a value is a number that arithmetic cannot make large: a float, NaN and
    infinities included, or a whole number below _MAX_NUMBER.
    """
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < _MAX_NUMBER)


class _Follower(ast.NodeVisitor):
    """An interpreter. `visit` follows a statement, or evaluates an expression.

    For a statement it returns True if the function is certain to return there.
    """

    def __init__(
        self, fields: Mapping[str, Any], constants: Mapping[str, Any], functions: Sequence[Function]
    ) -> None:
        self.flags = frozenset(fields)
        self.fields = {**fields}  # values of the fields, and of other attributes of the instance
        self.constants = constants
        self.functions = functions
        self.calls: list[Function] = []  # the functions that are being followed
        self.names: dict[str, Any] = {}  # values of local variables
        # the fields from which the value of a local variable comes
        self.origins: dict[str, list[str]] = {}
        # the fields that were read by the conditions around this statement, and then by itself
        self.reads: list[str] = []
        self.around = 0  # how many of `reads` are of the conditions
        self.branch = Doubt.NONE  # whether the conditions around this statement are known
        self.left = Doubt.NONE  # whether it is known that the function has not returned before
        self.is_shared = False  # whether code that is not followed may change the instance
        self.steps = 0
        self.found: dict[str, Contradiction] = {}  # by file:line

    @property
    def doubt(self) -> Doubt:
        """Why it is not known whether this statement is reached."""
        return max(self.branch, self.left)

    def record(self, node: ast.expr | ast.stmt, message: str, doubt: Doubt = Doubt.NONE) -> None:
        """Record that an error is raised here; a certain one replaces one that is not."""
        file = self.calls[-1].file if self.calls else ""
        where = f"{file}:{node.lineno}"
        contradiction = self.contradiction(where, message, max(doubt, self.doubt))
        earlier = self.found.get(where)
        if earlier is None or (contradiction.certain and not earlier.certain):
            self.found[where] = contradiction

    def contradiction(self, where: str, message: str, doubt: Doubt) -> Contradiction:
        """Return an error whose condition has read the fields in `reads`."""
        certain = {Doubt.NONE: True, Doubt.MACHINE: False, Doubt.USER: None}[doubt]
        flags = dict.fromkeys(name for name in self.reads if name in self.flags)
        return Contradiction(" ".join(message.split()), where, tuple(flags), certain)

    def skip(self, node: ast.AST) -> UncertainValue:
        """Leave out code that is not followed, and return its unknown value.

        Whatever it assigns is unknown from then on, and so is every list and dictionary, which it
        could change. If it has the instance itself, every field is unknown.
        """
        parts = list(ast.walk(node))
        called = {part.func for part in parts if isinstance(part, ast.Call)}
        attributes = [
            part for part in parts if isinstance(part, ast.Attribute) and _is_self(part.value)
        ]
        bases = {attribute.value for attribute in attributes if attribute not in called}
        names = [part.id for part in parts if isinstance(part, ast.Name) and part not in bases]
        doubt = max(Doubt.MACHINE, self._read_all([part.attr for part in attributes], names))
        has_function = any(isinstance(part, _NESTED) for part in parts)
        if has_function:  # a function in it could be called anywhere later
            self.left = max(self.left, doubt)
        if has_function or "self" in names or "super" in names:
            self.is_shared = True
            self.fields = {name: _lost(value, doubt) for name, value in self.fields.items()}
        for scope in (self.fields, self.names):
            for name, value in scope.items():
                if isinstance(value, list | dict):
                    scope[name] = _lost(value, doubt)
        for part in parts:
            self._skip_effect(part, UncertainValue(doubt))
        return UncertainValue(doubt)

    def _read_all(self, fields: Sequence[str], names: Sequence[str]) -> Doubt:
        """Note that fields and local variables are read; return the doubt of their values."""
        self.reads += fields
        for name in names:
            self.reads += self.origins.get(name, [])
        values = [self.fields.get(field) for field in fields]
        values += [self.names.get(name) for name in names]
        return doubt_of(values)

    def _skip_effect(self, part: ast.AST, unknown: UncertainValue) -> None:
        """Follow the effect that one part of skipped code may have."""
        if isinstance(part, ast.Raise | ast.Assert):
            self.record(part, _message_of(part), unknown.doubt)
        elif isinstance(part, ast.Return):
            self.left = max(self.left, unknown.doubt)
        elif isinstance(part, ast.alias):
            self.names[(part.asname or part.name).partition(".")[0]] = unknown
        elif isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            self.names[part.id] = unknown
        elif isinstance(part, ast.Attribute) and _is_self(part.value):
            if not isinstance(part.ctx, ast.Load):
                self.fields[part.attr] = unknown
        elif isinstance(
            part, ast.ExceptHandler | ast.FunctionDef | ast.ClassDef | ast.MatchAs | ast.MatchStar
        ):
            self.names[str(part.name)] = unknown

    generic_visit = skip

    # Statements

    def follow_function(self, function: Function) -> UncertainValue:
        """Follow a function of the instance. The value that it returns is unknown, and so are its
        parameters except `self`.
        """
        outer = self.names, self.origins, self.reads, self.branch, self.left
        self.names = {argument.arg: UncertainValue() for argument in function.node.args.args[1:]}
        self.origins = {}
        self.branch = self.doubt
        self.left = Doubt.NONE
        self.calls.append(function)
        self._follow(function.node.body)
        self.calls.pop()
        self.names, self.origins, self.reads, self.branch, self.left = outer
        return UncertainValue()

    def _follow(self, statements: Sequence[ast.stmt]) -> bool:
        """Follow statements; return whether they are certain to return."""
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
        if items == []:
            items = ()
        has_jump = any(isinstance(part, ast.Break | ast.Continue) for part in ast.walk(node))
        if has_jump or not isinstance(items, tuple):
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
        operation = ast.BinOp(before, node.op, node.value)
        value = self.visit(ast.copy_location(operation, node))
        self._assign(node.target, value)

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name) and not _is_self(target):
            origins = self.reads[self.around :]
            if self.doubt:  # the variable may keep its earlier value
                origins = [*self.origins.get(target.id, []), *origins]
            self.origins[target.id] = list(dict.fromkeys(origins))
            before = self.names.get(target.id, UncertainValue())
            self.names[target.id] = self._either(before, value)
        elif isinstance(target, ast.Attribute) and _is_self(target.value):
            before = self.fields.get(target.attr, UncertainValue())
            after = self._either(before, value)
            self.fields[target.attr] = _lost(after, Doubt.MACHINE) if self.is_shared else after
        elif _matches(target, value):
            for part, item in zip(target.elts, value, strict=True):
                self._assign(part, item)
        else:
            self.skip(target)

    def _either(self, before: Any, value: Any) -> Any:
        """Return the value that something has after this statement assigns `value` to it, which may
        not be reached.
        """
        if not self.doubt or repr(before) == repr(value):
            return value
        doubt = max(self.doubt, doubt_of(before), doubt_of(value))
        return UncertainValue(doubt, is_set=_is_set(before) and _is_set(value))

    # Expressions

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_Name(self, node: ast.Name) -> Any:
        if _is_self(node):
            return self.skip(node)
        self.reads += self.origins.get(node.id, [])
        if node.id in self.names:
            return self.names[node.id]
        return _TYPES.get(node.id, UncertainValue())

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
        # no part is evaluated after one that is true, of `or`, or false, of `and`
        deciding_truth = isinstance(node.op, ast.Or)
        outer = self.branch
        doubt = Doubt.NONE
        for part in node.values:
            value = self.visit(part)
            truth = truth_of(value)
            if truth is deciding_truth:
                break
            if truth is None:
                doubt = max(doubt, doubt_of(value))
                self.branch = max(self.branch, doubt)
        self.branch = outer
        if not doubt:
            return value
        known_truth = deciding_truth if truth is deciding_truth else None
        return UncertainValue(max(doubt, doubt_of(value)), truth=known_truth)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        truth = truth_of(self.visit(node.test))
        if truth is None:
            return self.skip(node)
        return self.visit(node.body if truth else node.orelse)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if not isinstance(node.op, ast.Not):
            return self.visit_List(node)  # a number
        value = self.visit(node.operand)
        truth = truth_of(value)
        return UncertainValue(doubt_of(value)) if truth is None else not truth

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        """Calculate with numbers, unless the result could become large."""
        values = [self.visit(node.left), self.visit(node.right)]
        are_small = all(map(_is_small_number, values))
        function = _ARITHMETIC.get(type(node.op))
        if function is None or not are_small:
            return self.skip(node)
        return self._compute(node, function, values)

    def visit_Compare(self, node: ast.Compare) -> Any:
        operands = [node.left, *node.comparators]
        if len(node.ops) > 1:
            # `0 < x < 1` is evaluated as `0 < x and x < 1`
            comparisons: list[ast.expr] = []
            for left, operation, right in zip(operands, node.ops, operands[1:], strict=False):
                comparison = ast.Compare(left, [operation], [right])
                comparisons.append(ast.copy_location(comparison, node))
            return self.visit(ast.BoolOp(ast.And(), comparisons))
        values = [self.visit(operand) for operand in operands]
        (operation,) = node.ops
        if not isinstance(operation, ast.Is | ast.IsNot):
            return self._compute(node, _COMPARISONS[type(operation)], values)
        is_same = _is_same(*values)
        if isinstance(is_same, UncertainValue):
            return is_same
        return is_same if isinstance(operation, ast.Is) else not is_same

    def _compute(
        self,
        node: ast.expr,
        function: Callable[..., Any],
        values: Sequence[Any],
        doubt: Doubt | None = None,
    ) -> Any:
        """Return a function's value for arguments with this doubt, by default that of `values`.

        Raises _EndError if it certainly raises an error.
        """
        doubt = doubt_of(values) if doubt is None else doubt
        if doubt:
            return UncertainValue(doubt)
        try:
            return function(*values)
        except RecursionError:
            return UncertainValue()
        except Exception as error:
            self.record(node, f"{type(error).__name__}: {error}")
        if not self.doubt:
            raise _EndError
        return UncertainValue(self.doubt)

    def visit_Call(self, node: ast.Call) -> Any:
        method = self._find_method(ast.unparse(node))
        if method:
            return self.follow_function(method)
        if node.keywords or any(isinstance(part, ast.Starred) for part in node.args):
            return self.skip(node)
        name = ast.unparse(node.func)
        if name in ("getattr", "setattr") and not self._is_local(name):
            return self._access_field(node)
        function = self._find_function(node.func)
        if function is None:
            return self.skip(node)
        values = [self.visit(part) for part in node.args]
        doubt = doubt_of(values)
        if doubt is Doubt.USER and (self.constants.get(name) or name in _CONVERSIONS):
            self.record(node, f"{name} refuses some values", doubt)
        if name in _OF_ANY_PARTS:
            doubts = [value.doubt for value in values if isinstance(value, UncertainValue)]
            doubt = max(doubts, default=Doubt.NONE)
        return self._compute(node, function, values, doubt)

    def _find_function(self, node: ast.expr) -> Callable[..., Any] | None:
        """Return the function that is called, if its value is computed: a builtin, a text enum or a
        method of a text.
        """
        if isinstance(node, ast.Attribute) and node.attr in _TEXT_METHODS:
            text = self.visit(node.value)
            return getattr(text, node.attr) if isinstance(text, str) else None
        name = ast.unparse(node)
        enum = self.constants.get(name)
        if isinstance(enum, dict):
            return _enum_converter(enum["enum"])
        return None if self._is_local(name) else _FUNCTIONS.get(name)

    def _find_method(self, call: str) -> Function | None:
        """Return the function of the class that is called; None for another function, for one with
        parameters, and for one that is being followed.
        """
        for function in self.functions:
            name = function.node.name
            calls = [f"self.{name}()", f"{function.qualified_name}(self)"]
            if function not in self.calls and name == self.calls[-1].node.name:
                calls.append(f"super().{name}()")
            if call in calls:
                parameters = [argument.arg for argument in function.node.args.args]
                is_followed = function not in self.calls and parameters == ["self"]
                return function if is_followed else None
        return None

    def _access_field(self, node: ast.Call) -> Any:
        """Read a field by `getattr`, or write it by `setattr`."""
        instance, *arguments = node.args
        name, *values = (self.visit(part) for part in arguments)
        is_write = ast.unparse(node.func) == "setattr"
        if not _is_self(instance) or not isinstance(name, str) or len(values) != is_write:
            return self.skip(node)
        field = ast.Attribute(instance, name)
        if is_write:
            return self._assign(field, values[0])
        return self.visit(field)


def _enum_converter(values: Sequence[str]) -> Callable[[Any], Any]:
    """Return the conversion to a text enum; it may convert other values than its own too."""
    return lambda value: value if value in values else UncertainValue()


def _matches(target: ast.expr, value: Any) -> TypeGuard[ast.Tuple]:
    """Return whether a tuple of targets has as many parts as the tuple that is assigned to it."""
    if not isinstance(target, ast.Tuple) or not isinstance(value, tuple):
        return False
    return len(target.elts) == len(value)


def _is_set(value: Any) -> bool:
    """Return whether a value is known not to be None."""
    return value.is_set if isinstance(value, UncertainValue) else value is not None


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _lost(value: Any, doubt: Doubt) -> UncertainValue:
    """Return the unknown value of something that may have been changed elsewhere.

    A list or a dictionary does not become None.
    """
    return UncertainValue(max(doubt, doubt_of(value)), is_set=isinstance(value, list | dict))


def _is_same(left: Any, right: Any) -> Any:
    """Return the value of `left is right`."""
    doubt = doubt_of([left, right])
    if left is None or right is None:
        other = right if left is None else left
        if isinstance(other, UncertainValue) and not other.is_set:
            return UncertainValue(doubt)
        return left is right
    if doubt or bool not in (type(left), type(right)):
        return UncertainValue(doubt or Doubt.MACHINE)
    return left is right


def _message_of(node: ast.Raise | ast.Assert) -> str:
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
