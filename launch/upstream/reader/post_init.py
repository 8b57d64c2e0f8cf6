"""Compiles a dataclass's `__post_init__` to plain nested lists, which can be evaluated later without the source.

Names are resolved here: constants become their values, enum classes their members' values, and calls of methods of the
class and its bases are inline. What can't be followed becomes `["machine", why]`: it depends on more than the fields.
`contradictions.py` executes the statements; `evaluation.py` has one case per form of expression.

Statements: ["set", line, field, expr] ["let", line, name, expr] ["setattr", line, expr, expr] ["do", line, expr]
["if", line, test, body, orelse] ["raise", line, type, message | null] ["for", line, names, iterable, body]
["try", line, body, reraises] ["inline", file, body] ["forget", line, fields | null] ["return"] ["break"] ["continue"].
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from launch.upstream.reader.classes import EnumMember, class_attribute, enum_members, find_method, mro
from launch.upstream.reader.constants import SIGNS, evaluate
from launch.upstream.reader.name_resolver import ClassRef, External, NameResolver, Scope
from launch.upstream.reader.tree import UnreadableSourceError
from launch.upstream.rules.evaluation import CALLS, TYPES
from launch.upstream.schema import Program

_METHODS = {
    *("startswith", "endswith", "split", "lower", "upper", "strip", "isdigit", "replace"),
    *("keys", "values", "items", "get"),
}
_MUTATING = {"append", "extend", "update", "insert", "pop", "remove", "clear", "setdefault", "sort", "add"}
_MAX_INLINE_DEPTH = 8  # methods that call methods


def compile_post_init(resolver: NameResolver, ref: ClassRef) -> Program | None:
    """Compile the dataclass's `__post_init__`, including its bases'; None if no readable class has one."""
    classes = mro(resolver, ref)[0]
    definition = find_method(classes, "__post_init__")
    if definition is None:
        return None
    return _Compiler(resolver, classes, *definition, depth=0).compile()


@dataclass
class _Compiler:
    """Compiles one method."""

    resolver: NameResolver
    classes: list[ClassRef]  # the dataclass's method resolution order
    owner: ClassRef  # the class that defines the method
    function: ast.FunctionDef
    depth: int  # of inline methods

    def __post_init__(self) -> None:
        self.scope: Scope = self.owner.scope.inner(self.function.body)
        self.locals: set[str] = {
            node.id
            for statement in self.function.body
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        arguments = self.function.args.args
        self.self_name: str = arguments[0].arg if arguments else "self"

    def compile(self) -> Program:
        return ["inline", self.owner.scope.module.path, self.block(self.function.body)]

    def block(self, body: list[ast.stmt]) -> list[Program]:
        return [compiled for statement in body for compiled in self.statement(statement)]

    def statement(self, node: ast.stmt) -> Iterator[Program]:  # noqa: PLR0912 - one branch per statement type
        line = node.lineno
        match node:
            case ast.Expr(value=ast.Call() as call):
                yield from self.call_statement(call)
            case ast.Assign():
                for target in node.targets:
                    yield from self.assignment(target, self.expression(node.value), line)
            case ast.AnnAssign(value=ast.expr() as value):
                yield from self.assignment(node.target, self.expression(value), line)
            case ast.AugAssign():
                old = self.expression(node.target)
                sign = SIGNS.get(type(node.op))
                new = ["bin", sign, old, self.expression(node.value)] if sign else ["machine", "an operator"]
                yield from self.assignment(node.target, new, line)
            case ast.If():
                yield ["if", line, self.expression(node.test), self.block(node.body), self.block(node.orelse)]
            case ast.Raise():
                yield self.raise_statement(node.exc, line)
            case ast.Assert():
                message = None if node.msg is None else self.expression(node.msg)
                yield ["if", line, self.expression(node.test), [], [["raise", line, "AssertionError", message]]]
            case ast.For():
                names = [child.id for child in ast.walk(node.target) if isinstance(child, ast.Name)]
                yield ["for", line, names, self.expression(node.iter), self.block(node.body)]
            case ast.Try():
                reraises = any(isinstance(n, ast.Raise) for handler in node.handlers for n in ast.walk(handler))
                yield ["try", line, self.block([*node.body, *node.orelse]), reraises]
                yield from self.block(node.finalbody)
            case ast.With():
                yield from self.block(node.body)
            case ast.Return():
                yield ["return"]
            case ast.Break():
                yield ["break"]
            case ast.Continue():
                yield ["continue"]
            case ast.While() | ast.Delete() | ast.Match():
                yield ["forget", line, None]

    def assignment(self, target: ast.expr, value: Program, line: int) -> Iterator[Program]:
        if isinstance(target, ast.Name):
            yield ["let", line, target.id, value]
        elif isinstance(target, ast.Attribute) and self.is_self(target.value):
            yield ["set", line, target.attr, value]
        elif isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                yield from self.assignment(part, ["machine", "a value taken apart"], line)
        elif isinstance(target, ast.Subscript | ast.Attribute):
            # an item or attribute of a field's value changes: the field's value is unknown from here on
            inner = target.value
            if isinstance(inner, ast.Attribute) and self.is_self(inner.value):
                yield ["forget", line, [inner.attr]]

    def raise_statement(self, exception: ast.expr | None, line: int) -> Program:
        if isinstance(exception, ast.Call):
            name = ast.unparse(exception.func)
            message = self.expression(exception.args[0]) if exception.args else None
            return ["raise", line, name, message]
        return ["raise", line, "an exception" if exception is None else ast.unparse(exception), None]

    def call_statement(self, call: ast.Call) -> Iterator[Program]:
        line = call.lineno
        inlined = self.inline(call)
        if inlined is not None:
            yield inlined
            return
        func = call.func
        if isinstance(func, ast.Name) and func.id == "setattr" and len(call.args) == 3 and self.is_self(call.args[0]):
            yield ["setattr", line, self.expression(call.args[1]), self.expression(call.args[2])]
            return
        if isinstance(func, ast.Attribute):
            owner = func.value
            if func.attr in _MUTATING and isinstance(owner, ast.Attribute) and self.is_self(owner.value):
                yield ["forget", line, [owner.attr]]
                return
            if self.is_self(owner):
                yield ["forget", line, None]
                return
        if any(self.is_self(argument) for argument in [*call.args, *(k.value for k in call.keywords)]):
            yield ["forget", line, None]
            return
        # any other call (logging, a warning, a download) leaves the fields unchanged; `float(text)` may raise
        value = self.expression(call)
        if value[0] != "machine":
            yield ["do", line, value]

    def inline(self, call: ast.Call) -> Program | None:
        """Return the body of `self.m()`, `super().m()` or `Class.m(self)`, where it can be read."""
        func = call.func
        if not isinstance(func, ast.Attribute) or call.keywords or self.depth >= _MAX_INLINE_DEPTH:
            return None
        classes: list[ClassRef] | None = None
        if self.is_self(func.value) and not call.args:
            classes = self.classes
        elif (
            isinstance(func.value, ast.Call) and isinstance(func.value.func, ast.Name) and func.value.func.id == "super"
        ):
            classes = self.classes[self.classes.index(self.owner) + 1 :] if self.owner in self.classes else []
        elif len(call.args) == 1 and self.is_self(call.args[0]):
            target = self.resolver.try_resolve(func.value, self.scope)
            classes = mro(self.resolver, target)[0] if isinstance(target, ClassRef) else None
        if classes is None:
            return None
        definition = find_method(classes, func.attr)
        if definition is None:
            return None
        return _Compiler(self.resolver, self.classes, *definition, depth=self.depth + 1).compile()

    def is_self(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self.self_name

    def expression(self, node: ast.expr) -> Program:  # noqa: PLR0911, PLR0912 - one branch per expression type
        match node:
            case ast.Constant():
                return self.constant(node.value)
            case ast.Name() if node.id in self.locals:
                return ["local", node.id]
            case ast.Attribute() if self.is_self(node.value):
                return self.own_attribute(node.attr)
            case ast.BoolOp():
                operator = "and" if isinstance(node.op, ast.And) else "or"
                return [operator, [self.expression(part) for part in node.values]]
            case ast.UnaryOp(op=ast.Not()):
                return ["not", self.expression(node.operand)]
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return ["const", -number]
            case ast.Compare():
                rest = [[SIGNS[type(op)], self.expression(n)] for op, n in zip(node.ops, node.comparators, strict=True)]
                return ["compare", self.expression(node.left), rest]
            case ast.IfExp():
                return ["choose", self.expression(node.test), self.expression(node.body), self.expression(node.orelse)]
            case ast.BinOp() if type(node.op) in SIGNS:
                return ["bin", SIGNS[type(node.op)], self.expression(node.left), self.expression(node.right)]
            case ast.List() | ast.Tuple() | ast.Set():
                if any(isinstance(part, ast.Starred) for part in node.elts):
                    return ["machine", "a list with '*'"]
                return ["list", [self.expression(part) for part in node.elts]]
            case ast.Subscript() if not isinstance(node.slice, ast.Slice):
                return ["index", self.expression(node.value), self.expression(node.slice)]
            case ast.JoinedStr():
                return ["text", [self.fstring_part(part) for part in node.values]]
            case ast.Call():
                return self.call(node)
            case ast.Name() | ast.Attribute():
                return self.resolved_name(node)
        return ["machine", ast.unparse(node)[:80]]

    def fstring_part(self, node: ast.expr) -> Program:
        if isinstance(node, ast.FormattedValue):
            return ["repr" if node.conversion == ord("r") else "str", self.expression(node.value)]
        return self.expression(node)

    def constant(self, value: Any) -> Program:
        if value is None or isinstance(value, str | int | float | bool):
            return ["const", value]
        if isinstance(value, list | tuple | set | frozenset):
            return ["list", [self.constant(part) for part in value]]
        if isinstance(value, EnumMember) and value.is_str:
            return ["const", value.value]
        return ["machine", repr(value)[:80]]

    def own_attribute(self, name: str) -> Program:
        annotated = any(
            isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name) and s.target.id == name
            for cls in self.classes
            for s in cls.node.body
        )
        attribute = None if annotated else class_attribute(self.resolver, self.classes[0], name)
        return ["field", name] if attribute is None else self.evaluated(*attribute)

    def resolved_name(self, node: ast.expr) -> Program:
        if any(self.is_self(child) for child in ast.walk(node) if isinstance(child, ast.expr)):
            return ["machine", ast.unparse(node)[:80]]
        return self.evaluated(node, self.scope)

    def evaluated(self, node: ast.expr, scope: Scope) -> Program:
        try:
            return self.constant(evaluate(self.resolver, node, scope))
        except UnreadableSourceError as error:
            return ["machine", error.reason]

    def call(self, node: ast.Call) -> Program:  # noqa: PLR0911 - one branch per kind of call
        unfollowed: Program = ["machine", ast.unparse(node)[:80]]
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            return unfollowed
        func = node.func
        if isinstance(func, ast.Name) and func.id == "isinstance" and len(node.args) == 2:
            return self.instance_of(node.args[0], node.args[1])
        if isinstance(func, ast.Name) and func.id == "getattr" and len(node.args) == 2 and self.is_self(node.args[0]):
            return ["getattr", self.expression(node.args[1])]
        if isinstance(func, ast.Name) and func.id == "hasattr" and len(node.args) == 2:
            return ["hasattr", self.expression(node.args[0]), self.expression(node.args[1])]
        arguments = [self.expression(argument) for argument in node.args]
        if isinstance(func, ast.Name) and func.id in CALLS and func.id not in self.locals:
            return ["call", func.id, arguments]
        target = self.resolver.try_resolve(func, self.scope)
        if isinstance(target, External) and target.dotted == "json.loads" and len(arguments) == 1:
            return ["json", arguments[0]]
        if isinstance(target, ClassRef) and len(arguments) == 1:
            return self.enum_call(target, arguments[0]) or unfollowed
        if isinstance(func, ast.Attribute) and func.attr in _METHODS and not self.is_self(func.value):
            owner = self.expression(func.value)
            return ["method", owner, func.attr, arguments]
        return unfollowed

    def instance_of(self, value: ast.expr, types: ast.expr) -> Program:
        parts = types.elts if isinstance(types, ast.Tuple) else [types]
        names = [part.id for part in parts if isinstance(part, ast.Name) and part.id in TYPES]
        if len(names) != len(parts):
            return ["machine", "isinstance()"]
        return ["isinstance", self.expression(value), names]

    def enum_call(self, target: ClassRef, argument: Program) -> Program | None:
        try:
            members = enum_members(self.resolver, target, evaluate)
        except UnreadableSourceError:
            return None
        if not members or not members[0].is_str:
            return None
        return ["enum", target.name, [member.value for member in members], argument]
