"""Interpret a `__post_init__` of upstream from its syntax tree, without executing it.

Plain statements, `if`, loops over fixed names and calls of the class's own functions are followed.
The value of other code is unknown, and so are the variables and fields that it assigns or could
change; whether it raises is undecided. An error is certain only if everything that it depends on is
known.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from launch.upstream.rules.post_init_state import InterpreterState, is_self, message_of
from launch.upstream.rules.safe_operations import (
    ARITHMETIC,
    COMPARISONS,
    CONVERSIONS,
    FUNCTIONS,
    IGNORES_ITEMS,
    TEXT_METHODS,
    TYPES,
    enum_converter,
    is_small_number,
)
from launch.upstream.rules.source import Function
from launch.upstream.rules.uncertain_values import (
    Doubt,
    UncertainValue,
    doubt_of,
    is_same,
    truth_of,
)

_MAX_STEPS = 20_000  # statements that are followed


class EndOfCodeError(Exception):
    """The following code is not reached, or is too long to be followed."""


class PostInitInterpreter(InterpreterState, ast.NodeVisitor):
    """Follows the code of a dataclass on the values of its fields, and records what is raised.

    `visit` follows a statement, or evaluates an expression. For a statement it returns True if the
    function is certain to return there.
    """

    generic_visit = InterpreterState.skip

    # Statements

    def call_function(self, function: Function) -> UncertainValue:
        """Follow a function of the instance. The value that it returns is unknown, and so are its
        parameters except `self`.
        """
        outer = self.variables, self.origins, self.reads, self.branch_doubt, self.return_doubt
        parameters = function.node.args.args[1:]
        self.variables = {parameter.arg: UncertainValue() for parameter in parameters}
        self.origins = {}
        self.branch_doubt = self.doubt
        self.return_doubt = Doubt.NONE
        self.calls.append(function)
        self._follow(function.node.body)
        self.calls.pop()
        self.variables, self.origins, self.reads, self.branch_doubt, self.return_doubt = outer
        return UncertainValue()

    def _follow(self, statements: Sequence[ast.stmt]) -> bool:
        """Follow statements; return whether they are certain to return."""
        reads_of_conditions = self.reads[: self.condition_reads]
        for statement in statements:
            self.steps += 1
            if self.steps > _MAX_STEPS:
                self.record(statement, "it is too long to be followed", Doubt.USER)
                raise EndOfCodeError
            self.reads = [*reads_of_conditions]
            if self.visit(statement) is True:
                return True
        return False

    def visit_If(self, node: ast.If) -> bool:
        test = self.visit(node.test)
        truth = truth_of(test)
        outer = self.condition_reads, self.branch_doubt
        self.condition_reads = len(self.reads)
        returns = False
        if truth is None:
            self.branch_doubt = max(self.branch_doubt, doubt_of(test))
            self._follow(node.body)
            self._follow(node.orelse)
        else:
            returns = self._follow(node.body if truth else node.orelse)
        self.condition_reads, self.branch_doubt = outer
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
            self.assign(node.target, item)
            if self._follow(node.body):
                return True
        return self._follow(node.orelse)

    def visit_Return(self, node: ast.Return) -> bool:
        if node.value:
            self.visit(node.value)
        self.return_doubt = self.doubt
        return not self.doubt

    def visit_Raise(self, node: ast.Raise) -> None:
        self.record(node, message_of(node))

    def visit_Assert(self, node: ast.Assert) -> None:
        test = self.visit(node.test)
        if not truth_of(test):
            self.record(node, message_of(node), doubt_of(test))

    def visit_Expr(self, node: ast.Expr) -> None:
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.visit(node.value)
        for target in node.targets:
            self.assign(target, value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        before = ast.parse(ast.unparse(node.target), mode="eval").body
        operation = ast.BinOp(before, node.op, node.value)
        value = self.visit(ast.copy_location(operation, node))
        self.assign(node.target, value)

    # Expressions

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_Name(self, node: ast.Name) -> Any:
        if is_self(node):
            return self.skip(node)
        self.reads += self.origins.get(node.id, [])
        if node.id in self.variables:
            return self.variables[node.id]
        return TYPES.get(node.id, UncertainValue())

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        name = ast.unparse(node)
        if is_self(node.value) and node.attr in self.fields:
            self.reads.append(node.attr)
            return self.fields[node.attr]
        if name not in self.constants or self._is_local(name):
            return self.skip(node)
        value = self.constants[name]
        return tuple(value) if isinstance(value, list) else value

    def _is_local(self, name: str) -> bool:
        return name.partition(".")[0] in self.variables

    def visit_List(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except ValueError:
            return self.skip(node)

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        return self.visit_List(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        # `or` ends at a part that is true, and `and` at one that is false
        deciding_truth = isinstance(node.op, ast.Or)
        outer = self.branch_doubt
        doubt = Doubt.NONE
        for part in node.values:
            value = self.visit(part)
            truth = truth_of(value)
            if truth is deciding_truth:
                break
            if truth is None:
                doubt = max(doubt, doubt_of(value))
                self.branch_doubt = max(self.branch_doubt, doubt)
        self.branch_doubt = outer
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
        are_small = all(map(is_small_number, values))
        function = ARITHMETIC.get(type(node.op))
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
            return self._compute(node, COMPARISONS[type(operation)], values)
        same = is_same(*values)
        if isinstance(same, UncertainValue):
            return same
        return same if isinstance(operation, ast.Is) else not same

    def _compute(
        self,
        node: ast.expr,
        function: Callable[..., Any],
        values: Sequence[Any],
        doubt: Doubt | None = None,
    ) -> Any:
        """Return a function's value for `values`, which is unknown if there is a doubt.

        doubt: that of the arguments, by default the greatest of `values`. Raises EndOfCodeError if
        the function certainly raises an error.
        """
        if doubt is None:
            doubt = doubt_of(values)
        if doubt:
            return UncertainValue(doubt)
        try:
            return function(*values)
        except RecursionError:
            return UncertainValue()
        except Exception as error:
            self.record(node, f"{type(error).__name__}: {error}")
        if not self.doubt:
            raise EndOfCodeError
        return UncertainValue(self.doubt)

    def visit_Call(self, node: ast.Call) -> Any:
        method = self._find_method(ast.unparse(node))
        if method:
            return self.call_function(method)
        has_starred = any(isinstance(part, ast.Starred) for part in node.args)
        if node.keywords or has_starred:
            return self.skip(node)
        name = ast.unparse(node.func)
        if name in ("getattr", "setattr") and not self._is_local(name):
            return self._access_field(node)
        function = self._find_function(node.func)
        if function is None:
            return self.skip(node)
        values = [self.visit(part) for part in node.args]
        doubt = doubt_of(values)
        is_conversion = self.constants.get(name) or name in CONVERSIONS
        if is_conversion and doubt is Doubt.USER:
            self.record(node, f"{name} refuses some values", doubt)
        if name in IGNORES_ITEMS:
            doubts = [value.doubt for value in values if isinstance(value, UncertainValue)]
            doubt = max(doubts, default=Doubt.NONE)
        return self._compute(node, function, values, doubt)

    def _find_function(self, node: ast.expr) -> Callable[..., Any] | None:
        """Return the function that is called, if its value is computed: a builtin, a text enum or a
        method of a text.
        """
        if isinstance(node, ast.Attribute) and node.attr in TEXT_METHODS:
            text = self.visit(node.value)
            return getattr(text, node.attr) if isinstance(text, str) else None
        name = ast.unparse(node)
        enum = self.constants.get(name)
        if isinstance(enum, dict):
            return enum_converter(enum["enum"])
        return None if self._is_local(name) else FUNCTIONS.get(name)

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
        expected_values = 1 if is_write else 0  # `getattr` with a default is not followed
        if not is_self(instance) or not isinstance(name, str) or len(values) != expected_values:
            return self.skip(node)
        field = ast.Attribute(instance, name)
        if is_write:
            return self.assign(field, values[0])
        return self.visit(field)
