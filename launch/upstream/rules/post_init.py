"""Executes a `__post_init__` of upstream on values of which some are unknown, and reports everything that it raises.

The source is what the capture kept (`Schema.post_init`). Python executes it, statement by statement, and a `raise`
is recorded before the next one runs. A statement that depends on an unknown value is executed once for each way through
it: what only some of them raise is undecided, and what they assign differently is unknown from then on. The code sees
the fields, constants, pure builtins and the functions of upstream that refer to nothing else: whatever else it names
(the environment, the GPU) is an unknown value too, and nothing is called.

Standard library only: code that is not the lock's is executed by a process of its own (`contradictions.py`).
"""

from __future__ import annotations

import ast
import enum
import functools
import json
import sys
import textwrap
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.upstream.rules.unknown import PATHS, ExecutionPath, Unknown, derived, from_json, kind_of, unknown_parts

_BUILTINS: Mapping[str, Any] = {
    function.__name__: function
    for function in (
        *(len, int, float, str, bool, sum, min, max, abs, round, sorted, list, tuple, dict, set, any, all, range, zip),
        *(enumerate, isinstance, getattr, setattr, hasattr, repr, Exception, ValueError, TypeError, KeyError),
        *(NotImplementedError, RuntimeError, AssertionError, AttributeError, ImportError),
    )
}
_OF_LISTS = (len, isinstance, zip, enumerate, list, tuple, sum, any, all)  # which accept lists of unknown values
_MISSING = (NameError, AttributeError, ImportError)  # raised because of what is missing here, not by the code
_MAX_PATHS = 100
_MUTABLE = (list, dict)  # of the values that a statement may change in place
_running = threading.Lock()  # PATHS are one thread's at a time
_SOURCE = "upstream:"  # begins the file names of compiled code


@dataclass(frozen=True)
class Contradiction:
    """Values that `__post_init__` refuses together."""

    message: str  # upstream's
    where: str  # upstream's file:line
    flags: tuple[str, ...]  # the fields that its condition reads
    certain: bool | None  # None: depends on an unknown value; False: depends on the machine


class _ReturnError(BaseException):
    """A `return`, with its value."""


class _Scope(dict[str, Any]):
    """The names that a method sees: one that is not known here has an unknown value."""

    def __missing__(self, name: str) -> Unknown:
        return Unknown()


class _Run:
    """The execution of the methods on one instance. The code calls what has no underscore here."""

    def __init__(self, post_init: str, fields: Mapping[str, Any]) -> None:
        methods, names = _compile(post_init)
        self._own = frozenset(fields)
        self._fields = {**fields, **{n.removeprefix("self."): v for n, v in names.items() if n.startswith("self.")}}
        self._scope = {
            **_BUILTINS,
            **{name: enum.StrEnum(name, v["enum"]) if _is_enum(v) else v for name, v in names.items()},
            **{method.name: self._function(method) for method in methods if not method.owner},
            "json": types.SimpleNamespace(loads=json.loads, dumps=json.dumps),
            "_run": self,
            "_Return": _ReturnError,
            "__builtins__": {"__import__": lambda *_: Unknown()},
        }
        owner: type[_Instance] = _Instance
        for name in reversed(dict.fromkeys(method.owner for method in methods if method.owner)):
            own = {method.name: self._function(method) for method in methods if method.owner == name}
            owner = self._scope[name] = type(name, (owner,), own)
        self.instance = owner(self)
        self._origins: dict[str, list[str]] = {}  # {local name: the fields its value comes from}

    def _function(self, method: _Method) -> Callable[..., Any]:
        return lambda *given: self._call(method, given)

    def _call(self, method: _Method, arguments: Sequence[Any]) -> Any:
        scope = _Scope(self._scope | dict(zip(method.parameters, arguments, strict=False)))
        scope["super"] = lambda: super(self._scope[method.owner], self.instance)
        raised = len(PATHS[-1].raised)
        for statement in method.statements:
            paths = self._execute(statement, scope)
            if all(path.result for path in paths):
                return _merged([path.result[0] for path in paths], paths)
            if any(path.result for path in paths):
                PATHS[-1].after.update(*(path.kinds for path in paths))
        return Unknown() if len(PATHS[-1].raised) > raised else None  # a raise has taken the place of its result

    def _execute(self, statement: _Statement, scope: _Scope) -> list[ExecutionPath]:
        """Execute a statement in each way, and merge what they did into `scope`, the fields and the path around it."""
        fields, paths, waiting = self._fields, list[ExecutionPath](), list[tuple[bool, ...]]([()])
        origins = [read for name in statement.used for read in self._origins.get(name, ())]
        while waiting and len(paths) < _MAX_PATHS:
            path = ExecutionPath(waiting.pop(0), reads=[*origins], after={*PATHS[-1].after})
            self._fields = _copied(fields)
            path.scope = _Scope(_copied(scope))
            PATHS.append(path)
            try:
                exec(statement.code, path.scope)
            except _ReturnError as left:
                path.result.append(left.args[0])
            except _MISSING:
                pass
            except Exception as error:
                file = statement.code.co_filename
                trace = traceback.walk_tb(error.__traceback__)
                line = [line for frame, line in trace if frame.f_code.co_filename == file][-1]
                where = f"{file.removeprefix(_SOURCE)}:{line}"
                self.refuse(where, "", len(path.conditions), f"{type(error).__name__}: {error}")
            PATHS.pop()
            path.fields = self._fields
            waiting += path.others()
            paths.append(path)
        if len(paths) > 1:
            names = dict.fromkeys(name for path in paths for name in path.fields)
            self._fields = {name: _merged([path.fields.get(name) for path in paths], paths) for name in names}
        scope |= {name: _merged([path.scope[name] for path in paths], paths) for name in statement.assigned}
        self._origins |= dict.fromkeys(statement.assigned, paths[0].reads)
        for path in paths:
            for where, (message, reads, kinds) in path.raised.items():
                is_certain = not waiting and all(where in other.raised for other in paths)
                undecided = set().union(*(other.kinds for other in paths if not is_certain))
                PATHS[-1].raised.setdefault(where, (message, reads, kinds | undecided | PATHS[-1].after))
        return paths

    def refuse(self, where: str, kind: str, depth: int, error: Any) -> None:
        """Record a `raise` below `depth` conditions, and go on as if it had not happened."""
        text, path = str(error), PATHS[-1]
        around = [*path.conditions[:depth], path.reads if not kind else []]
        if not any(around):
            around = [names for outer in PATHS for names in (*outer.conditions, outer.reads)]
        reads = [read for names in around for read in names]
        path.raised.setdefault(where, (f"raises {kind}" if text in ("", "?") else text, reads, set()))

    def condition(self, depth: int, value: Any) -> Any:
        path = PATHS[-1]
        path.conditions[depth:] = [path.reads]
        path.reads = []
        return value

    def call(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call a function; its value is unknown if it or an argument is."""
        given = [*arguments, *keywords.values()]
        changes_any = isinstance(function, Unknown) or (function is setattr and isinstance(given[1], Unknown))
        if changes_any and any(part is self.instance for part in given):
            self._fields = dict.fromkeys(self._fields, Unknown("user" if function is setattr else "machine"))
            return Unknown()
        if isinstance(function, Unknown):
            return derived(function, *given)
        parts = [part for part in given if not isinstance(part, list)] if function in _OF_LISTS else given
        unknown = unknown_parts([function, *parts])
        is_own = isinstance(function, types.FunctionType | types.MethodType) and function.__module__ == __name__
        is_method = isinstance(getattr(function, "__self__", None), list | dict)
        if not unknown or is_own or is_method or function is setattr:
            return function(*arguments, **keywords)
        converts = function in (int, float, json.loads) or isinstance(function, enum.EnumType)
        if converts and {"text", "user"} & {kind_of(part) for part in unknown} and PATHS[-1].decide("user"):
            raise ValueError(f"{function.__name__} refuses some texts")
        return derived(*unknown)

    def unpacked(self, value: Any, shape: Any) -> Any:
        """Return a value so that it can be unpacked: an unknown one has as many parts as there are targets."""
        parts = [derived(value)] * len(shape or ()) if isinstance(value, Unknown) else value
        if shape is None or len(parts := list(parts)) != len(shape):
            return value
        return [self.unpacked(part, inner) for part, inner in zip(parts, shape, strict=True)]

    def identical(self, first: Any, second: Any) -> bool:
        for one, other in ((first, second), (second, first)):
            if isinstance(one, Unknown):
                return not (kind_of(one) in ("text", "value") and other is None) and bool(one)
        return first is second


class _Instance:
    """The dataclass's instance: its fields are the run's. Its classes are made for a run."""

    def __init__(self, run: _Run) -> None:
        vars(self)["_run"] = run

    def __post_init__(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        run = vars(self)["_run"]
        PATHS[-1].reads += [name] if name in run._own else []
        return run._fields.get(name, Unknown())

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)["_run"]._fields[name] = value


def run_post_init(post_init: Mapping[str, Any], fields: Mapping[str, Any]) -> list[Contradiction]:
    """Return what a `__post_init__` raises for the values of an instance's fields.

    Upstream stops at the first raise; this reports the others too.
    """
    whole = ExecutionPath()
    with _running:
        PATHS[:] = [whole]
        _Run(json.dumps(post_init), fields).instance.__post_init__()
    return [
        Contradiction(message, where, tuple(dict.fromkeys(reads)), None if kinds - {"machine"} else not kinds)
        for where, (message, reads, kinds) in whole.raised.items()
    ]


def main(result: str) -> None:
    """Run each `[post_init, fields]` of the JSON list on standard input; write the contradictions to a file."""
    requests = json.load(sys.stdin, object_hook=from_json)
    found = [list(vars(c).values()) for post_init, fields in requests for c in run_post_init(post_init, fields)]
    Path(result).write_text(json.dumps({"raised": found}), encoding="utf-8")


def _is_enum(value: Any) -> bool:
    return isinstance(value, dict) and "enum" in value


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {**values, **{name: value.copy() for name, value in values.items() if isinstance(value, _MUTABLE)}}


def _merged(values: Sequence[Any], paths: Sequence[ExecutionPath]) -> Any:
    """Return the value that all paths agree on, else an unknown one."""
    if all(value is values[0] or repr(value) == repr(values[0]) for value in values[1:]):
        return values[0]
    return derived(*(Unknown(kind) for path in paths for kind in path.kinds))


@dataclass(frozen=True)
class _Statement:
    """A compiled statement of a method."""

    code: types.CodeType
    used: tuple[str, ...]  # names
    assigned: tuple[str, ...]


@dataclass(frozen=True)
class _Method:
    owner: str  # '' for a function
    name: str
    parameters: tuple[str, ...]
    statements: tuple[_Statement, ...]


@functools.cache
def _compile(post_init: str) -> tuple[list[_Method], Mapping[str, Any]]:
    content = json.loads(post_init)
    methods = []
    for method in content["methods"]:
        function = ast.parse(textwrap.dedent(method["source"])).body[0]
        assert isinstance(function, ast.FunctionDef)
        ast.increment_lineno(function, method["line"] - 1)
        statements = []
        for node in function.body:
            names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
            assigned = [name.id for name in names if isinstance(name.ctx, ast.Store)]
            module = ast.Module([_Rewriter(method["file"]).visit(node)], [])
            code = compile(ast.fix_missing_locations(module), _SOURCE + method["file"], "exec")
            statements.append(_Statement(code, tuple(name.id for name in names), tuple(assigned)))
        parameters = tuple(argument.arg for argument in function.args.args)
        methods.append(_Method(method["owner"], method["name"], parameters, tuple(statements)))
    return methods, content["names"]


class _Rewriter(ast.NodeTransformer):
    """Rewrites a statement so that a `raise` is recorded, and calls and comparisons accept unknown values."""

    def __init__(self, file: str) -> None:
        self.file, self.depth = file, 0

    def visit_If(self, node: ast.If) -> ast.stmt:
        node.test = _call("condition", self.depth, self.visit(node.test))
        self.depth += 1
        node.body, node.orelse = ([self.visit(part) for part in body] for body in (node.body, node.orelse))
        self.depth -= 1
        return node

    def visit_For(self, node: ast.For) -> ast.stmt:
        self.generic_visit(node)
        item = _call("unpacked", ast.Name("_part", ast.Load()), _shape(node.target))
        node.iter = ast.GeneratorExp(item, [ast.comprehension(ast.Name("_part", ast.Store()), node.iter, [], 0)])
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        node.value = _call("unpacked", self.visit(node.value), _shape(node.targets[0]))
        return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        message = ast.unparse(node.msg) if node.msg else ""
        (check,) = ast.parse(f"if not ({ast.unparse(node.test)}): raise AssertionError({message})").body
        return self.visit(ast.increment_lineno(check, node.lineno - 1))

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        if node.exc is None:
            return node
        kind = ast.unparse(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
        where = f"{self.file}:{node.lineno}"
        return ast.copy_location(ast.Expr(_call("refuse", where, kind, self.depth, self.visit(node.exc))), node)

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        value = self.visit(node.value) if node.value else ast.Constant(None)
        return ast.copy_location(ast.Raise(ast.Call(ast.Name("_Return", ast.Load()), [value], []), None), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        return ast.copy_location(_call("call", node.func, *node.args, keywords=node.keywords), node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node
        compared = ast.copy_location(_call("identical", node.left, node.comparators[0]), node)
        return ast.UnaryOp(ast.Not(), compared) if isinstance(node.ops[0], ast.IsNot) else compared


def _shape(target: ast.expr) -> Any:
    """Return the form of an assignment's target: None for a single one, a tuple of forms for a tuple."""
    return tuple(map(_shape, target.elts)) if isinstance(target, ast.Tuple) else None


def _call(operation: str, *arguments: Any, keywords: Sequence[ast.keyword] = ()) -> ast.Call:
    function = ast.Attribute(ast.Name("_run", ast.Load()), operation, ast.Load())
    parts = [part if isinstance(part, ast.expr) else ast.Constant(part) for part in arguments]
    return ast.Call(function, parts, list(keywords))


if __name__ == "__main__":
    main(sys.argv[1])
