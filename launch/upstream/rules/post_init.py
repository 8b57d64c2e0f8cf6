"""Executes a `__post_init__` of upstream on values of which some are unknown, and reports what it raises.

The source is what the capture kept (`ParserClass.post_init`). It runs as it is, except that `raise` and `assert` report
and go on, so that every contradiction is found at once. A condition that depends on an unknown value is followed both
ways, in a run for each. The code sees the fields, constants and pure builtins: whatever else it names (a function of
upstream, the environment, the GPU) is an unknown value too, and nothing is called.

Standard library only: code that is not the lock's is executed by a process of its own (`contradictions.py`).
"""

from __future__ import annotations

import ast
import builtins
import copy
import enum
import functools
import json
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BUILTINS: Mapping[str, Any] = {
    function.__name__: function
    for function in (
        *(len, int, float, str, bool, sum, min, max, abs, round, sorted, list, tuple, dict, set, any, all, range, zip),
        *(enumerate, isinstance, getattr, setattr, hasattr, repr, super, Exception, ValueError, TypeError, KeyError),
        *(NotImplementedError, RuntimeError, AssertionError, AttributeError, ImportError),
    )
}
_OPERATORS = (
    "add sub mul truediv floordiv mod pow or and lt le gt ge eq ne getitem setitem delitem neg abs call enter exit"
)
_ENDED = (NameError, AttributeError, ImportError)  # raised because of what is missing here, not by the code
_MAX_RUNS = 200
_UNKNOWN = "$unknown"
_SOURCE = "upstream:"  # begins the file names of compiled code


@dataclass(frozen=True)
class Contradiction:
    """Values that `__post_init__` refuses together."""

    message: str  # upstream's
    where: str  # upstream's file:line
    flags: tuple[str, ...]  # the fields that its condition reads
    certain: bool | None  # None: depends on an unknown value; False: depends on the machine


class Unknown:
    """A value that is not known: `value` of the command line, `maybe_none` as well, or of the `machine`.

    Operators and attributes give unknown values; its truth is the run's decision.
    """

    def __init__(self, kind: str, run: _Run | None = None, of_instance: bool = False) -> None:
        self.__dict__.update(kind=kind, run=run, of_instance=of_instance)

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name.startswith("__") else derived(self)

    def __setattr__(self, name: str, value: Any) -> None: ...

    def __call__(self, *others: Any) -> Unknown:
        return derived(self, *others)

    def __bool__(self) -> bool:
        run = self.__dict__["run"]
        return bool(run.decide(_kind(self)))

    def __iter__(self) -> Iterator[Unknown]:
        if self:
            yield derived(self)

    def __repr__(self) -> str:
        return "?"

    __hash__ = object.__hash__


for _name in _OPERATORS.split():
    for _prefix in ("", "r"):
        setattr(Unknown, f"__{_prefix}{_name}__", Unknown.__call__)


def _kind(value: Unknown) -> str:
    return str(value.__dict__["kind"])


def derived(value: Unknown, *others: Any) -> Unknown:
    """Return the unknown value of what depends on these."""
    kinds = {_kind(part) for part in (value, *others) if isinstance(part, Unknown)}
    return Unknown("machine" if kinds == {"machine"} else "maybe_none", value.__dict__["run"])


class _JoinedError(BaseException):
    """The rest of this run is that of an earlier one."""


@dataclass(frozen=True)
class _Raised:
    """A raise in one run."""

    message: str
    flags: tuple[str, ...]
    deciders: frozenset[str]  # the kinds of the unknown values that the conditions around it depend on


@dataclass
class _Frame:
    """The conditions around the statement that a method executes, by depth: the fields read, the unknown kinds."""

    conditions: list[tuple[list[str], set[str]]] = field(default_factory=list)


@dataclass
class _Run:
    """One execution, which decides the unknown conditions as `choices` says, and the further ones as false."""

    fields: dict[str, Any]
    own_fields: frozenset[str]
    choices: tuple[bool, ...]
    seen: set[Any]  # the states in which a condition has been decided, of all runs
    made: list[tuple[bool, str]] = field(default_factory=list)  # each decision, and the kind of the unknown value
    kinds: set[str] = field(default_factory=set)  # of the unknown values that decided something
    reads: list[str] = field(default_factory=list)
    origins: dict[str, list[str]] = field(default_factory=dict)  # {local name: the fields its value comes from}
    raised: dict[str, _Raised] = field(default_factory=dict)  # by file:line

    def decide(self, kind: str) -> bool:
        """Return the truth of an unknown value. Raises _JoinedError where an earlier run has been in the same state."""
        answer = False
        if len(self.made) < len(self.choices):
            answer = self.choices[len(self.made)]
        else:
            state = (_positions(), tuple((name, repr(part)) for name, part in self.fields.items()))
            if state in self.seen:
                raise _JoinedError
            self.seen.add(state)
        self.made.append((answer, kind))
        self.kinds.add(kind)
        return answer

    # What the rewritten code calls.

    def mark(self) -> int:
        return len(self.reads)

    def condition(self, frame: _Frame, depth: int, begun: int, test: Callable[[], Any], names: list[str]) -> bool:
        del frame.conditions[depth:]
        before, self.kinds = self.kinds, set()
        decided = bool(test())
        origins = [origin for name in names for origin in self.origins.get(name, ())]
        frame.conditions.append((self.reads[begun:] + origins, self.kinds))
        self.kinds = self.kinds | before
        return decided

    def assigned(self, name: str, begun: int, value: Any) -> Any:
        self.origins[name] = self.reads[begun:]
        return value

    def refuse(self, frame: _Frame, depth: int, where: str, kind: str, error: Callable[[], Any]) -> None:
        """Record a `raise` below `depth` conditions, and go on as if it had not happened."""
        try:
            text = str(error())
        except Exception:
            text = ""
        self._record(where, text if text not in ("", "?") else f"raises {kind}", frame.conditions[:depth], [])

    def fail(self, frame: _Frame, begun: int, error: Exception) -> None:
        """Record that the code itself raises, such as `float("abc")`."""
        trace, where = error.__traceback__, ""
        while trace:
            name = trace.tb_frame.f_code.co_filename
            where = f"{name.removeprefix(_SOURCE)}:{trace.tb_lineno}" if name.startswith(_SOURCE) else where
            trace = trace.tb_next
        if not isinstance(error, _ENDED):
            self._record(where, f"{type(error).__name__}: {error}", [], self.reads[begun:])

    def _record(self, where: str, message: str, conditions: list[tuple[list[str], set[str]]], also: list[str]) -> None:
        reads = dict.fromkeys([*(read for names, _ in conditions for read in names), *also])
        deciders = frozenset(kind for _, kinds in conditions for kind in kinds)
        flags = tuple(read for read in reads if read in self.own_fields)
        self.raised.setdefault(where, _Raised(message, flags, deciders))

    def call(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call a function; its value is unknown if it or an argument is."""
        if function is len and not isinstance(arguments[0], Unknown):
            return len(arguments[0])
        if function is setattr and not isinstance(arguments[1], Unknown):
            return setattr(*arguments)
        unknown = [part for part in _flatten((function, arguments, *keywords.values())) if isinstance(part, Unknown)]
        if isinstance(getattr(function, "__self__", None), list | dict) or not unknown:
            return function(*arguments, **keywords)
        return derived(*unknown)

    def perform(self, function: Any, *arguments: Any, **keywords: Any) -> None:
        """Call a function for its effect: one that is not known may change the instance that it is given."""
        changes_self = isinstance(function, Unknown) and any(isinstance(part, _Instance) for part in arguments)
        changes_unknown_field = function is setattr and isinstance(arguments[1], Unknown)
        if (
            changes_unknown_field
            or changes_self
            or (isinstance(function, Unknown) and function.__dict__["of_instance"])
        ):
            self.fields.update(dict.fromkeys(self.fields, Unknown("machine", self)))
        else:
            self.call(function, *arguments, **keywords)

    @staticmethod
    def identical(first: Any, second: Any) -> Any:
        for one, other in ((first, second), (second, first)):
            if isinstance(one, Unknown):
                return False if _kind(one) == "value" and other is None else derived(one)
        return first is second

    def unpacked(self, value: Any, shape: Any) -> Any:
        """Return a value so that it can be unpacked: an unknown one has as many parts as there are targets."""
        parts = [derived(value)] * len(shape or ()) if isinstance(value, Unknown) else value
        if shape is None or len(parts := list(parts)) != len(shape):
            return value
        return [self.unpacked(part, inner) for part, inner in zip(parts, shape, strict=True)]

    @staticmethod
    def contains(first: Any, second: Any) -> Any:
        unknown = [part for part in _flatten((first, second)) if isinstance(part, Unknown)]
        return derived(*unknown) if unknown else first in second

    @staticmethod
    def negate(value: Any) -> Any:
        return derived(value) if isinstance(value, Unknown) else not value


class _Instance:
    """The dataclass's instance: its fields are the run's."""

    _run: _Run

    def __getattr__(self, name: str) -> Any:
        run = self._run
        if name not in run.fields:
            return Unknown("machine", run, of_instance=True)
        run.reads.append(name)
        return run.fields[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._run.fields[name] = value

    def __post_init__(self) -> None: ...


def run_post_init(post_init: Mapping[str, Any], fields: Mapping[str, Any]) -> list[Contradiction]:
    """Return what a `__post_init__` raises for the values of an instance's fields.

    Upstream stops at the first raise; this reports the others too.
    """
    text = json.dumps(post_init)
    seen: set[Any] = set()
    complete: list[_Run] = []
    joined: list[_Run] = []
    waiting: list[tuple[tuple[bool, ...], bool]] = [((), False)]  # choices, and whether one is about the machine
    while waiting and len(complete) + len(joined) < _MAX_RUNS:
        choices, is_other_machine = waiting.pop(0)
        run = _Run({}, frozenset(fields), choices, seen)
        run.fields = {name: _own_copy(value, run) for name, value in fields.items()}
        try:
            _execute(text, run)
            complete.append(run)
        except _JoinedError:
            joined.append(run)
        made = [answer for answer, _ in run.made]
        for index in range(len(choices), len(made)):
            about_machine = run.made[index][1] == "machine"
            if not (about_machine and is_other_machine):  # of the machine's conditions one at a time is another way
                waiting.append(((*made[:index], True), about_machine or is_other_machine))
    runs = [*complete, *joined]
    all_kinds = frozenset(kind for run in runs for kind in run.kinds)
    found: dict[str, Contradiction] = {}
    for run in runs:
        for where, raised in run.raised.items():
            is_everywhere = all(where in other.raised for other in complete) and not (raised.deciders and joined)
            certain = True if is_everywhere else False if (raised.deciders or all_kinds) == {"machine"} else None
            found.setdefault(where, Contradiction(raised.message, where, raised.flags, certain))
    files = list(dict.fromkeys(place.rpartition(":")[0] for place in found))
    return sorted(
        found.values(), key=lambda c: (files.index(c.where.rpartition(":")[0]), int(c.where.rpartition(":")[2]))
    )


def _own_copy(value: Any, run: _Run) -> Any:
    """Copy a field's value, whose unknown parts become the run's."""
    if isinstance(value, list):
        return [_own_copy(part, run) for part in value]
    return Unknown(_kind(value), run) if isinstance(value, Unknown) else copy.copy(value)


def encode(value: Any) -> Any:
    """Convert fields to JSON values for another process; `main` reads them."""
    if isinstance(value, dict):
        return {name: encode(part) for name, part in value.items()}
    if isinstance(value, list):
        return [encode(part) for part in value]
    return {_UNKNOWN: _kind(value)} if isinstance(value, Unknown) else value


def _decode(value: dict[str, Any]) -> Any:
    return Unknown(value[_UNKNOWN]) if value.keys() == {_UNKNOWN} else value


def main(result: str) -> None:
    """Run each `[post_init, fields]` of the JSON list on standard input; write the contradictions to a file."""
    requests = json.load(sys.stdin, object_hook=_decode)
    found = [list(vars(c).values()) for post_init, fields in requests for c in run_post_init(post_init, fields)]
    Path(result).write_text(json.dumps(found), encoding="utf-8")


def _execute(post_init: str, run: _Run) -> None:
    codes, names = _compile(post_init)
    functions = {
        **_BUILTINS,
        "__build_class__": builtins.__build_class__,
        "__import__": lambda *_: Unknown("machine", run),
    }
    scope: dict[str, Any] = {"__builtins__": functions, "__name__": "upstream", "_run": run, "_Frame": _Frame}
    scope["json"] = types.SimpleNamespace(loads=json.loads)
    attributes: dict[str, Any] = {"_run": run}
    for name, value in names.items():
        owner, _, attribute = name.partition(".")
        if owner == "self":
            attributes[attribute] = _own_copy(value, run)
        elif isinstance(value, dict) and "enum" in value:
            scope[name] = _text_enum(name, tuple(value["enum"]))
        elif not attribute:
            scope[name] = _own_copy(value, run)
    scope["_base"] = type("_Base", (_Instance,), attributes)
    for code, global_names in codes:
        for name in global_names - functions.keys():
            scope.setdefault(name, Unknown("machine", run))
        exec(code, scope)
    instance = scope["_base"]()
    passed = type(instance).__post_init__.__code__.co_argcount - 1  # a dataclass's InitVars
    instance.__post_init__(*[Unknown("machine", run)] * passed)


@functools.cache
def _text_enum(name: str, values: tuple[str, ...]) -> type[enum.StrEnum]:
    members = {f"member{index}": value for index, value in enumerate(values)}
    return enum.StrEnum(name, members)  # type: ignore[return-value]


def _global_names(code: types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_global_names, inner))


def _positions() -> tuple[Any, ...]:
    """Return where upstream's code is, with its local names."""
    frame, found = sys._getframe(2), []
    while frame.f_back:
        if frame.f_code.co_filename.startswith(_SOURCE):
            found.append((frame.f_code, frame.f_lasti, repr([v for k, v in frame.f_locals.items() if k != "_frame"])))
        frame = frame.f_back
    return tuple(found)


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple | set):
        for part in value:
            yield from _flatten(part)
    else:
        yield value


@functools.cache
def _compile(post_init: str) -> tuple[list[tuple[types.CodeType, set[str]]], Mapping[str, Any]]:
    """Compile the methods: each in a class, which inherits from that of the next in the order of Python's search."""
    content = json.loads(post_init)
    codes = []
    for method in reversed(content["methods"]):
        function = ast.parse(textwrap.dedent(method["source"])).body[0]
        assert isinstance(function, ast.FunctionDef)
        ast.increment_lineno(function, method["line"] - 1)
        rewritten = _Rewriter(method["file"], content["names"]).rewrite(function)
        owner = method["owner"]
        lines = ast.parse(f"class {owner}(_base): pass\n_base = {owner}").body
        lines[0].body = [rewritten]  # type: ignore[attr-defined]
        module = ast.fix_missing_locations(ast.Module(lines, []))
        code = compile(module, f"{_SOURCE}{method['file']}", "exec")
        codes.append((code, _global_names(code)))
    return codes, content["names"]


class _Rewriter(ast.NodeTransformer):
    """Rewrites a method so that `raise` and a failing statement are recorded, and unknown values pass through."""

    def __init__(self, file: str, names: Mapping[str, Any]) -> None:
        self.file, self.names = file, names
        self.depth = 0  # of the conditions around a statement

    def rewrite(self, function: ast.FunctionDef) -> ast.FunctionDef:
        function.decorator_list, function.returns = [], None
        body: list[ast.stmt] = ast.parse("_frame = _Frame()").body
        for statement in function.body:
            template = ast.parse("try: pass\nexcept Exception as _error: _run.fail(_frame, _begun, _error)").body[0]
            assert isinstance(template, ast.Try)
            rewritten = self.visit(statement)
            template.body = rewritten if isinstance(rewritten, list) else [rewritten]
            body += [*ast.parse("_begun = _run.mark()").body, template]
        function.body = body
        return function

    def visit_If(self, node: ast.If) -> ast.stmt:
        names = [part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)]
        test = _call("condition", _FRAME, self.depth, _call("mark"), _later(self.visit(node.test)), _texts(names))
        self.depth += 1
        body, otherwise = self.visit_body(node.body), self.visit_body(node.orelse)
        self.depth -= 1
        return ast.copy_location(ast.If(test, body, otherwise), node)

    def visit_body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [self.visit(statement) for statement in body]

    def visit_Assert(self, node: ast.Assert) -> Any:
        error = ast.Call(ast.Name("AssertionError", ast.Load()), [node.msg] if node.msg else [], [])
        refused = ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Raise(error, None)], [])
        return self.visit(ast.fix_missing_locations(_located(refused, node)))

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        if node.exc is None:
            return node
        kind = ast.unparse(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
        where = f"{self.file}:{node.lineno}"
        refused = _call("refuse", _FRAME, self.depth, where, kind, _later(self.visit(node.exc)))
        return ast.copy_location(ast.Expr(refused), node)

    def visit_For(self, node: ast.For) -> ast.stmt:
        self.generic_visit(node)
        if isinstance(node.target, ast.Tuple):
            item = _call("unpacked", ast.Name("_part", ast.Load()), _shape(node.target))
            node.iter = ast.GeneratorExp(item, [ast.comprehension(ast.Name("_part", ast.Store()), node.iter, [], 0)])
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        self.generic_visit(node)
        if isinstance(node.targets[0], ast.Tuple):
            node.value = _call("unpacked", node.value, _shape(node.targets[0]))
        if isinstance(node.targets[0], ast.Name):
            node.value = _call("assigned", node.targets[0].id, _call("mark"), node.value)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        self.generic_visit(node)
        match node.value:
            case ast.Call(func=ast.Attribute(value=ast.Name("_run"), attr="call") as function):
                function.attr = "perform"
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return node
        return ast.copy_location(_call("call", node.func, *node.args, keywords=node.keywords), node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        name = {ast.Is: "identical", ast.IsNot: "identical", ast.In: "contains", ast.NotIn: "contains"}.get(
            type(node.ops[0])
        )
        if name is None or len(node.ops) > 1:
            return node
        compared = ast.copy_location(_call(name, node.left, node.comparators[0]), node)
        return _call("negate", compared) if isinstance(node.ops[0], ast.IsNot | ast.NotIn) else compared

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        value = self.names.get(text := ast.unparse(node))
        if text in self.names and not text.startswith("self.") and not isinstance(value, dict):
            return ast.copy_location(ast.parse(repr(value), mode="eval").body, node)
        return self.generic_visit(node)  # type: ignore[return-value]


_FRAME = ast.Name("_frame", ast.Load())


def _call(operation: str, *arguments: Any, keywords: Sequence[ast.keyword] = ()) -> ast.Call:
    function = ast.Attribute(ast.Name("_run", ast.Load()), operation, ast.Load())
    parts = [part if isinstance(part, ast.expr) else ast.Constant(part) for part in arguments]
    return ast.Call(function, parts, list(keywords))


def _shape(target: ast.expr) -> Any:
    """Return the form of an assignment's target: None for a single one, a tuple of forms for a tuple."""
    return tuple(map(_shape, target.elts)) if isinstance(target, ast.Tuple) else None


def _later(node: ast.expr) -> ast.expr:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), node)


def _texts(texts: Sequence[str]) -> ast.expr:
    return ast.List([ast.Constant(text) for text in texts], ast.Load())


def _located(node: ast.stmt, like: ast.stmt) -> ast.stmt:
    for part in ast.walk(node):
        if "lineno" in part._attributes and not hasattr(part, "lineno"):
            ast.copy_location(part, like)
    return node


if __name__ == "__main__":
    main(sys.argv[1])
