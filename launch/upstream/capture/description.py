"""Describes a parser of dataclasses: its fields with their options and lines, and `__post_init__` with what it needs.

Runs in the trainer's interpreter, run by `program.py`. Standard library only, and no import of the launcher.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import enum
import inspect
import itertools
import os
import sys
import textwrap
import types
import typing
from pathlib import Path

_FOLDERS = sorted({str(Path(folder).resolve()) for folder in sys.path if folder}, key=len, reverse=True)
_NEVER = (typing.Any, object, type(None), bytes)  # called with a text, each raises TypeError
_NO_DICT = "the parser converts the text with dict(), which refuses every text but the empty one"
_NO_TEXT = "the parser can't convert any text to this type"
_MISSING = object()


class Description:
    """Describes parsers; files are relative to `root`. `stand_in`: the base class of what missing packages have."""

    def __init__(self, root: Path | None, stand_in: type) -> None:
        self.root, self.stand_in = root, stand_in

    def describe(
        self, parser: typing.Any, built_at: tuple[str, int], method: str, *, keeps_unknown: bool
    ) -> dict[str, typing.Any]:
        """Return a schema's JSON without what the script around the parser decides. `built_at`: file and line."""
        parser_at = f"{self.relative(built_at[0])}:{built_at[1]}"
        named = {field.name for cls in parser.dataclass_types for field in dataclasses.fields(cls)}
        added = [a.option_strings[0] for a in parser._actions if a.option_strings and a.dest not in (*named, "help")]
        reasons = [f"the script adds {', '.join(added)} to its parser"] if added else []
        reasons += ["the script accepts arguments that its parser doesn't know"] if keeps_unknown else []
        unknown = [{"what": "options", "reason": reason, "where": parser_at} for reason in reasons]
        options = {action.dest: action for action in reversed(parser._actions) if action.option_strings}
        negated = {a.dest for a in parser._actions if isinstance(a, argparse._StoreFalseAction)}
        fields: dict[str, dict[str, typing.Any]] = {}
        classes = []
        for cls in parser.dataclass_types:
            declared = self.declared_fields(cls)
            for field in dataclasses.fields(cls):
                stated = {"owner": cls.__name__, "file": "", "line": 0, "type": str(field.type), "help": None}
                record = fields[field.name] = {
                    **self.field(field, options.get(field.name), field.name in negated),
                    **declared.get(field.name, stated),
                    "group": cls.__name__,
                }
                text = field.metadata.get("help") or record["help"]
                record["help"] = inspect.cleandoc(str(text)).strip() or None if text else None
                record["default"] = None if "default" in record["unknown"] else record["default"]
            file, line = self.place(cls)
            names = [field.name for field in dataclasses.fields(cls)]
            classes.append(
                {"name": cls.__name__, "file": file, "line": line, "fields": names, "post_init": self.post_init(cls)}
            )
        lineage = [cls.__name__ for cls in type(parser).__mro__]
        return {
            "parser_at": parser_at,
            "yaml_file": "ArgumentParserPlus" in lineage and method == "parse",
            "config_flag": method == "parse_args_and_config",
            "abbreviations": parser.allow_abbrev,
            "classes": classes,
            "fields": fields,
            "unknown": unknown,
        }

    def field(self, field: typing.Any, action: typing.Any, negatable: bool) -> dict[str, typing.Any]:
        """Describe a field by its argparse action; None if the dataclass sets it itself."""
        unknown: dict[str, str] = {}
        declared = field.default
        if declared is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            declared = field.default_factory()
        default = action.default if action else None if declared is dataclasses.MISSING else declared
        try:
            default = _to_plain(default)
        except TypeError as error:
            default, unknown["default"] = None, str(error)
        record: dict[str, typing.Any] = {
            "name": field.name, "kind": "unknown", "nargs": None, "const": None, "choices": None,
            "default": default, "required": False, "unknown": unknown,
        }  # fmt: skip
        if action is None:
            return record | {"unsettable_because": "the dataclass sets it itself (init=False)", "in_parser": False}
        kind, choices = _kind(action)
        reason: str | None = None
        if kind in ("dict", "never") and action.nargs != "?":
            reason = _NO_DICT if kind == "dict" else _NO_TEXT
        if isinstance(action.type, type) and issubclass(action.type, self.stand_in):
            kind, choices = "unknown", None
            unknown["type"] = unknown["choices"] = f"{action.type.__name__} is of a package that is not installed"
        spellings = {f"--{field.name}", f"--{field.name.replace('_', '-')}"}
        return record | {
            "kind": kind,
            "nargs": action.nargs,
            "const": _to_plain(action.const),
            "choices": None if choices is None else [_to_plain(choice) for choice in choices],
            "required": action.required,
            "aliases": [text for text in action.option_strings if text not in spellings],
            "negatable": negatable,
            "unsettable_because": reason,
            "none_words": getattr(action.type, "__qualname__", "").startswith("_accept_none."),
        }

    def declared_fields(self, cls: type) -> dict[str, dict[str, typing.Any]]:
        """Return {field: owner, type, file, line and docstring} from the source of the class and its bases.

        The default is unknown if it depends on the environment.
        """
        found: dict[str, dict[str, typing.Any]] = {}
        for base in reversed(cls.__mro__):
            node = _class_node(base) if "__dataclass_fields__" in vars(base) else None
            file = self.place(base)[0] if node else ""
            body = node.body if node else ()
            for statement, following in itertools.pairwise([*body, None]):
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    value = following.value if isinstance(following, ast.Expr) else None
                    annotation = statement.annotation
                    is_text = isinstance(annotation, ast.Constant) and isinstance(annotation.value, str)
                    record = found[statement.target.id] = {
                        "owner": base.__name__,
                        "type": annotation.value if is_text else ast.unparse(annotation),  # type: ignore[attr-defined]
                        "file": file,
                        "line": statement.lineno,
                        "help": value.value if isinstance(value, ast.Constant) else None,
                    }
                    for part in ast.walk(statement):
                        if isinstance(part, ast.Call) and ast.unparse(part).startswith(("os.environ", "os.getenv")):
                            reason = f"{file}:{part.lineno}: '{ast.unparse(part)}' depends on the environment"
                            record["unknown"] = {"default": reason}
                            break
        return found

    def place(self, cls: type) -> tuple[str, int]:
        node = _class_node(cls)
        return (self.relative(inspect.getsourcefile(cls) or ""), node.lineno) if node else ("", 0)

    def post_init(self, cls: type) -> dict[str, typing.Any] | None:
        """Return the source of `__post_init__` and of what it calls, and the constants that these refer to."""
        methods: list[dict[str, typing.Any]] = []
        names: dict[str, typing.Any] = {}
        wanted = ["__post_init__"]
        for name in wanted:
            for base in cls.__mro__:
                function = vars(base).get(name)
                if not isinstance(function, types.FunctionType):
                    continue
                try:
                    method = self.function(function, base.__name__)
                except (OSError, TypeError):
                    continue  # generated by the decorator
                methods.append(method)
                tree = ast.parse(method["source"])
                names |= self.constants(cls, tree, function.__globals__)
                called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
                functions = (function.__globals__.get(f.id) for f in called if isinstance(f, ast.Name))
                methods += [
                    self.function(f) for f in functions if isinstance(f, types.FunctionType) and self.is_pure(f)
                ]
                found = [f.attr for f in called if isinstance(f, ast.Attribute) and hasattr(cls, f.attr)]
                wanted += [attr for attr in found if attr not in (*wanted, "__setattr__")]
                if name == "__post_init__" and not any(word in method["source"] for word in ("super()", f".{name}(")):
                    break
        order = [*(base.__name__ for base in cls.__mro__), ""]
        methods.sort(key=lambda method: order.index(method["owner"]))
        return {"methods": methods, "names": names} if methods else None

    def function(self, function: types.FunctionType, owner: str = "") -> dict[str, typing.Any]:
        lines, line = inspect.getsourcelines(function)
        file, source = self.relative(function.__code__.co_filename), textwrap.dedent("".join(lines))
        return {"owner": owner, "name": function.__name__, "file": file, "line": line, "source": source}

    def is_pure(self, function: types.FunctionType) -> bool:
        """Whether it is a function of upstream that refers to nothing but builtins and json."""
        is_upstream = self.root is not None and (self.root / self.relative(function.__code__.co_filename)).is_file()
        return is_upstream and inspect.getclosurevars(function).globals.keys() <= {"json"}

    @staticmethod
    def constants(dataclass: type, tree: ast.AST, scope: dict[str, typing.Any]) -> dict[str, typing.Any]:
        """Return the constants of the module by name, those of the class as `self.name`, and the text enums as
        {"enum": {member: value}}."""
        found: dict[str, typing.Any] = {}
        fields = {field.name for field in dataclasses.fields(dataclass)}
        for node in ast.walk(tree):
            text = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            root, _, attribute = text.partition(".")
            value = scope.get(text, _MISSING)
            if root == "self" and attribute not in fields:
                value = inspect.getattr_static(dataclass, attribute, _MISSING)
            if isinstance(value, type) and issubclass(value, str) and issubclass(value, enum.Enum):
                value = {"enum": {name: member.value for name, member in value.__members__.items()}}
            with contextlib.suppress(TypeError):
                found[text] = _to_plain(value)
        return found

    def relative(self, path: str) -> str:
        """Return a file's path relative to the tree, or to the folder that its package is imported from."""
        resolved = str(Path(path).resolve())
        for folder in ([str(self.root)] if self.root else []) + _FOLDERS:
            if resolved.startswith(folder + os.sep):
                return Path(resolved).relative_to(folder).as_posix()
        return path


def _class_node(cls: type) -> ast.ClassDef | None:
    """Return the class's statement in its module's source."""
    try:
        lines, line = inspect.getsourcelines(cls)
        node = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError):
        return None
    return ast.increment_lineno(node, line - 1) if isinstance(node, ast.ClassDef) else None


def _kind(action: typing.Any) -> tuple[str, typing.Any]:
    """Return how argparse converts one text (`launch.upstream.schema.Field.kind`), and the allowed values."""
    convert, choices = action.type, action.choices
    if getattr(convert, "__qualname__", "").startswith("_accept_none."):
        convert = inspect.getclosurevars(convert).nonlocals["inner"]
    name = getattr(convert, "__qualname__", str(convert))
    if name.startswith("make_choice_type_function.") or name == "string_to_bool":
        return ("bool" if name == "string_to_bool" else "choice"), choices
    if isinstance(convert, type) and issubclass(convert, enum.Enum):
        return "enum", [member.value for member in convert]
    origin = typing.get_origin(convert)
    if convert in _NEVER or origin in (typing.Literal, typing.Union, types.UnionType):
        return "never", choices
    if convert is dict or origin is dict:
        return "dict", choices
    if convert is None or convert is str or (isinstance(convert, type) and issubclass(convert, Path)):
        return "str", choices
    return {int: "int", float: "float", bool: "truthy"}.get(convert, "object"), choices


def _to_plain(value: typing.Any) -> typing.Any:
    """Convert to JSON types: enum members to their value, tuples and sets to lists. Raises TypeError."""
    if isinstance(value, enum.Enum):
        return _to_plain(value.value)
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, dict):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_to_plain(item) for item in value), key=str)
    if isinstance(value, str | Path):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} can't be written as JSON")
