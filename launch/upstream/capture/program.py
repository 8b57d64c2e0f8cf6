"""Capture a trainer's parser, in the trainer's interpreter.

This program starts the trainer's script and stops it at its parser. The result describes what the
parser accepts, or whether it accepts a command line.

    python program.py RESULT ENTRY [ROOT] < REQUEST    # ENTRY: a script below ROOT, or the name of an installed module

REQUEST is empty or a JSON object. Its `argv` has the arguments to parse. Its `placeholders` is
launch's folder, if a run has placeholders for missing packages.

RESULT is a JSON object. Its `files` and `packages` are those that were imported. It also has a
schema (`launch.upstream.schema`), or `accepted`, `refused` or `error`.

The trainer's interpreter does not have launch, so this file imports only the standard library.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import json
import os
import runpy
import sys
import textwrap
import traceback
import types
import typing
from pathlib import Path
from typing import Any, NoReturn

# Flags that take a name which upstream looks up while it runs: {flag: (module, dictionary)}.
REGISTRIES = {
    "chat_template_name": ("open_instruct.dataset_transformation", "CHAT_TEMPLATES"),
    "get_tokenizer_fn": ("open_instruct.dataset_transformation", "GET_TOKENIZER_FN"),
    "dataset_transform_fn": ("open_instruct.dataset_transformation", "TRANSFORM_FNS"),
    "olmo_presets": ("open_instruct.olmo_core_utils", "OLMO_MODEL_CONFIG_MAP"),
}
_SEARCH_PATH = [
    folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent
]
# HfArgumentParser's methods that parse a command line, with those of its subclasses
_PARSE_METHODS = (
    "parse",
    "parse_args_and_config",
    "parse_args_into_dataclasses",
    "parse_args",
    "parse_known_args",
)
# types to which a text cannot be converted: calling one of them with a text raises TypeError
_NEVER = (Any, object, type(None), bytes, typing.Literal, typing.Union, types.UnionType)
_KINDS: dict[Any, str] = dict.fromkeys(_NEVER, "never")
_KINDS |= {None: "str", str: "str", int: "int", float: "float", bool: "truthy", dict: "dict"}
# why no command line can set a field of a kind
_UNSETTABLE_BECAUSE = {
    "dict": "the parser converts the text with dict(), which refuses every text but the empty one",
    "never": "the parser can't convert any text to this type",
}


class _StandInType(type):
    """The type of the classes that stand in for a missing package's contents.

    They also work as decorators. Their attributes and results are stand-ins too, so that the top
    level of a module runs without the package.
    """

    def __getattr__(cls, name: str) -> Any:
        if name == "__dataclass_fields__":
            return collections.defaultdict(types.SimpleNamespace)
        if name.startswith("__"):  # a special attribute of Python's that a class does not have
            raise AttributeError(name)
        return _StandInType(name, (_StandIn,), {})

    def __getitem__(cls, _: object) -> type:
        return cls

    def __call__(cls, *arguments: Any, **_: object) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else cls


class _StandIn(metaclass=_StandInType):
    def __init_subclass__(cls, **_: object) -> None: ...


class _MissingPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that are not installed, where the trainer's own files import them."""

    def __init__(self, root: Path | None) -> None:
        self.root = str(root)
        self.names: set[str] = set()

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        package = name.partition(".")[0]
        if package not in self.names:
            stack = traceback.walk_stack(sys._getframe(1))
            files = (frame.f_code.co_filename for frame, _ in stack)
            importing_file = next(file for file in files if "importlib" not in file)
            # a package that is present lacks only this module
            is_present = Path(self.root, package).exists() or package in sys.modules
            if is_present or not importing_file.startswith(self.root):
                return None
            self.names.add(package)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__getattr__"] = functools.partial(getattr, _StandIn)


class _Capture:
    """Stops `entry` where its parser is given the command line.

    Then it describes the parser (`argv` is None), or has it parse `argv`.
    """

    def __init__(self, result: Path, entry: str, root: Path | None, argv: list[str] | None) -> None:
        self.result = result
        self.entry = entry
        self.root = root
        self.argv = argv
        self.missing = _MissingPackages(root)
        self.parses = False  # whether the parser has been called
        self.pid = os.getpid()

    def run(self) -> None:
        self._watch_parsers()
        sys.argv = [self.entry, *(self.argv or ())]
        if self.root is None:
            runpy.run_module(self.entry, run_name="__main__", alter_sys=True)
        else:
            if self.argv is None:
                sys.meta_path.append(self.missing)
            sys.path.insert(0, str(self.root))
            runpy.run_path(str(self.root / self.entry), run_name="__main__")

    def _watch_parsers(self) -> None:
        """Replace the parsing methods of each HfArgumentParser that the script builds."""
        build = argparse.ArgumentParser.__init__

        def build_parser(parser: Any, *arguments: Any, **options: Any) -> None:
            if any(cls.__name__ == "HfArgumentParser" for cls in type(parser).__mro__):
                self._replace_methods(parser)
            build(parser, *arguments, **options)

        argparse.ArgumentParser.__init__ = build_parser  # type: ignore[assignment, method-assign]

    def _replace_methods(self, parser: Any) -> None:
        # the code that builds the parser is the first below its own constructors
        callers = traceback.walk_stack(sys._getframe(2))
        frame, line = next(
            (frame, line) for frame, line in callers if frame.f_locals.get("self") is not parser
        )
        built_at = f"{_relative(frame.f_code.co_filename)}:{line}"
        for name in _PARSE_METHODS:
            method = getattr(parser, name, None)
            if method is not None:
                vars(parser)[name] = functools.partial(self.stop, parser, built_at, method)

    def stop(self, parser: Any, built_at: str, method: Any, *arguments: Any, **options: Any) -> Any:
        """Take the place of the parser's methods. The first call of one ends the script."""
        if self.parses:
            return method(*arguments, **options)
        self.parses = True
        if self.argv is None:
            given = inspect.signature(method).bind(*arguments, **options).arguments
            keeps_unknown = method.__name__ == "parse_known_args"
            if given.get("return_remaining_strings"):
                keeps_unknown = True
            schema = _describe_parser(parser, built_at, method.__name__, keeps_unknown, self.root)
            self.finish({"entry": self.entry, **schema, "names": _registered_names(parser)})
        parser.error = lambda message: self.finish({"refused": message})
        try:
            method(*arguments, **options)
        except BaseException as refusal:
            self.finish({"refused": _last_line(refusal)})
        return self.finish({"accepted": True})

    def finish(self, content: dict[str, Any]) -> NoReturn:
        """Write the result and end the process, without exit handlers or `except` of the script."""
        packages = _imported_packages() | dict.fromkeys(sorted(self.missing.names), "")
        if os.getpid() == self.pid:  # a fork of the script does not write
            result = {**content, "files": self.files(), "packages": packages}
            self.result.write_text(json.dumps(result), encoding="utf-8")
        os._exit(0)

    def files(self) -> dict[str, str]:
        """Return {path: git blob id} of the files of `root` that were imported."""
        if self.root is None:
            return {}
        files = {self.root / self.entry}
        for module in list(sys.modules.values()):
            path = Path(getattr(module, "__file__", None) or "/")
            if path.suffix == ".py" and path.is_relative_to(self.root):
                files.add(path)
        blob_ids = {}
        for file in sorted(files):
            blob_ids[file.relative_to(self.root).as_posix()] = _blob_id(file.read_bytes())
        return blob_ids


def _imported_packages() -> dict[str, str]:
    """Return {distribution: version} of what was imported from installed packages."""
    sys.path[:] = _SEARCH_PATH  # setuptools adds packages of its own, which are not installed
    distributions_of = importlib.metadata.packages_distributions()
    packages = {name.partition(".")[0] for name in list(sys.modules)}
    distributions: set[str] = set()
    for package in packages:
        distributions.update(distributions_of.get(package, ()))
    return {name: importlib.metadata.version(name) for name in sorted(distributions)}


def _registered_names(parser: Any) -> dict[str, list[str]]:
    """Return the names that flags take, by flag, from the registries that were imported."""
    names = {}
    for flag, (module, attribute) in REGISTRIES.items():
        registry = getattr(sys.modules.get(module), attribute, None)
        if isinstance(registry, dict):
            names[flag] = sorted(map(str, registry))
    verifier_module = sys.modules.get("open_instruct.ground_truth_utils")
    build = getattr(verifier_module, "build_all_verifiers", None)
    if build is not None:
        defaults = {action.dest: action.default for action in parser._actions}
        settings = types.SimpleNamespace(**defaults)
        with contextlib.suppress(Exception):
            names["verifiers"] = sorted(build(settings, settings))
    return names


def _describe_parser(
    parser: Any, built_at: str, method: str, keeps_unknown: bool, root: Path | None
) -> dict[str, Any]:
    """Return the JSON of a parser's schema, except `entry` and `names`."""
    actions = {action.dest: action for action in reversed(parser._actions) if action.option_strings}
    negated = {
        action.dest for action in parser._actions if isinstance(action, argparse._StoreFalseAction)
    }
    fields: dict[str, dict[str, Any]] = {}
    post_init = {}
    for cls in parser.dataclass_types:
        declared = _declarations(cls)
        for field in dataclasses.fields(cls):
            described = _describe_field(field, actions.get(field.name), declared[field.name])
            described["group"] = cls.__name__
            described["negatable"] = field.name in negated
            fields[field.name] = described
        code = _describe_post_init(cls, parser, root)
        if code:
            post_init[cls.__name__] = code
    reasons = []
    others = [action for action in parser._actions if action.dest not in (*fields, "help")]
    added_options = [action.option_strings[0] for action in others if action.option_strings]
    if added_options:
        reasons.append(f"the script adds {', '.join(added_options)} to its parser")
    if keeps_unknown:
        reasons.append("the script accepts arguments that its parser doesn't know")
    return {
        "parser_at": built_at,
        "yaml_file": method == "parse",  # the method of ArgumentParserPlus
        "config_flag": method == "parse_args_and_config",
        "abbreviations": parser.allow_abbrev,
        "post_init": post_init,
        "fields": fields,
        "unknown": [{"what": "options", "reason": reason, "where": built_at} for reason in reasons],
    }


def _describe_field(field: Any, action: Any, declaration: dict[str, Any]) -> dict[str, Any]:
    """Describe a field by its argparse action, and by the declaration in its source.

    The action is None for a field that the dataclass sets itself (init=False).
    """
    in_parser = action is not None
    if not in_parser:
        action = argparse.Action([], field.name, default=_default_of(field))
    convert = action.type
    accepts_none = getattr(convert, "__qualname__", "").startswith("_accept_none.")
    if accepts_none:  # TRL's parser wraps the conversion
        convert = inspect.getclosurevars(convert).nonlocals["inner"]
    kind = _kind(convert) if in_parser else "unknown"
    unknown = declaration["unknown"]
    if isinstance(convert, _StandInType):
        kind = "unknown"
        reason = f"{convert.__name__} is of a package that is not installed"
        unknown["type"] = reason
        unknown["choices"] = reason
    choices = convert if kind == "enum" else action.choices
    try:
        default = _to_plain(action.default)
    except TypeError as error:
        unknown["default"] = str(error)
    unsettable = None
    if not in_parser:
        unsettable = "the dataclass sets it itself (init=False)"
    elif action.nargs != "?":
        unsettable = _UNSETTABLE_BECAUSE.get(kind)
    docstring = declaration.pop("docstring")
    help_text = clean_help(str(field.metadata.get("help") or docstring or ""))
    aliases = [option for option in action.option_strings if _plain_name(option) != field.name]
    return {
        **declaration,
        "name": field.name,
        "help_digest": digest_help(help_text) if help_text else None,
        "kind": kind,
        "nargs": action.nargs,
        "const": _to_plain(action.const),
        "choices": None if choices is None else _to_plain(list(choices)),
        "default": None if "default" in unknown else default,
        "required": action.required,
        "aliases": aliases,
        "unsettable_because": unsettable,
        "none_words": accepts_none,
        "in_parser": in_parser,
    }


def _plain_name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _default_of(field: Any) -> Any:
    """Return the default that a dataclass declares for a field; None without one."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _kind(convert: Any) -> str:
    """Return how argparse converts one text (`launch.upstream.schema.Field.kind`)."""
    name = getattr(convert, "__qualname__", "")
    if name == "string_to_bool":
        return "bool"
    if name.startswith("make_choice_type_function."):
        return "choice"
    if isinstance(convert, type):
        if issubclass(convert, Path):
            return "str"
        if issubclass(convert, enum.Enum):
            return "enum"
    return _KINDS.get(typing.get_origin(convert) or convert, "object")


def _declarations(cls: type) -> dict[str, dict[str, Any]]:
    """Return the declaration of each field, from the source of the class and its bases.

    It has the owner, type, file, line and docstring, and why the default is unknown if it depends
    on the environment.
    """
    declarations: dict[str, dict[str, Any]] = {}
    for field in dataclasses.fields(cls):  # a generated class has no source
        declarations[field.name] = {
            "owner": cls.__name__,
            "type": str(field.type),
            "file": "",
            "line": 0,
            "docstring": None,
            "unknown": {},
        }
    for base in reversed(cls.__mro__):
        if "__dataclass_fields__" not in vars(base):
            continue
        file, body = _source(base)
        for index, statement in enumerate(body):
            if not isinstance(statement, ast.AnnAssign):
                continue
            if isinstance(statement.target, ast.Name):
                reason = _environment_reason(statement, file)
                declarations[statement.target.id] = {
                    "owner": base.__name__,
                    # an annotation may be in quotes
                    "type": ast.unparse(statement.annotation).strip("'\""),
                    "file": file,
                    "line": statement.lineno,
                    # a docstring may follow the field
                    "docstring": ast.get_docstring(ast.Module(body[index + 1 :], [])),
                    "unknown": {"default": reason} if reason else {},
                }
    return declarations


def _environment_reason(statement: ast.AnnAssign, file: str) -> str | None:
    """Return why a field's default is unknown; None if it does not depend on the environment."""
    for part in ast.walk(statement):
        if isinstance(part, ast.Call):
            code = ast.unparse(part)
            if code.startswith(("os.environ", "os.getenv")):
                return f"{file}:{part.lineno}: '{code}' depends on the environment"
    return None


def _source(cls: type) -> tuple[str, list[ast.stmt]]:
    """Return the file of a class and its statements, which are empty for a generated class."""
    try:
        lines, line = inspect.getsourcelines(cls)
        node = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError):
        return "", []
    ast.increment_lineno(node, line - 1)
    return _relative(inspect.getsourcefile(cls) or ""), getattr(node, "body", [])


def _describe_post_init(cls: type, parser: Any, root: Path | None) -> dict[str, Any] | None:
    """Describe the code of `__post_init__`; None if the class has none.

    `functions` has its place and those of the functions that it calls: methods of the class, and
    functions of upstream that refer to nothing but builtins and json. `names` has the constants
    that they use: `self.name` of a class's constant, `Name.MEMBER` of a member of a text enum, and
    `Name` of the enum itself, as {"enum": its values}. `opaque` has the fields whose values are
    objects.
    """
    fields = {field.name for field in dataclasses.fields(cls)}
    functions, values_by_name, attributes = _follow_methods(cls, fields)
    constants: dict[str, Any] = {}
    for name, value in values_by_name.items():
        if not isinstance(value, types.FunctionType):
            constants |= _constants(name, value, attributes)
        elif _is_self_contained(value, root):
            place, _ = _locate_function(value)
            functions.append(place)
    if not functions:
        return None
    # methods in the order in which Python finds them, then functions of a module
    owners = [base.__name__ for base in cls.__mro__]
    owners.append("")
    functions.sort(key=lambda place: owners.index(place["name"].rpartition(".")[0]))
    actions = [action for action in parser._actions if action.dest in fields]
    opaque = [action.dest for action in actions if _is_opaque(action)]
    return {"functions": functions, "names": constants, "opaque": opaque}


def _follow_methods(
    cls: type, fields: set[str]
) -> tuple[list[dict[str, Any]], dict[str, Any], list[str]]:
    """Follow `__post_init__` to the methods that it uses, directly or through another one.

    Return the places of these methods, the values of the names that they use, and the attributes
    that they use, without the fields.
    """
    places: list[dict[str, Any]] = []
    values_by_name: dict[str, Any] = {}
    attributes = ["__post_init__"]  # the loop adds the attributes of each method that it meets
    for attribute in attributes:
        for base in cls.__mro__:
            if attribute not in vars(base):
                continue
            value = vars(base)[attribute]
            if not isinstance(value, types.FunctionType):
                values_by_name.setdefault(f"self.{attribute}", value)
                continue
            try:
                place, source = _locate_function(value, base.__name__)
            except OSError:  # the decorator of dataclasses has generated it
                continue
            places.append(place)
            used_variables, used_attributes = _names_in(source, value.__globals__)
            values_by_name |= used_variables
            for name in used_attributes:
                if name not in attributes and name not in fields:
                    attributes.append(name)
    return places, values_by_name, attributes


def _names_in(source: str, variables: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the module's variables that a function uses, and the attributes that it uses."""
    used_variables = {}
    attributes = []
    for node in ast.walk(ast.parse(textwrap.dedent(source))):
        if isinstance(node, ast.Name) and node.id in variables:
            used_variables[node.id] = variables[node.id]
        elif isinstance(node, ast.Attribute) and node.attr != "__setattr__":
            attributes.append(node.attr)
    return used_variables, attributes


def _is_self_contained(function: types.FunctionType, root: Path | None) -> bool:
    """Return whether a function is upstream's, and refers to nothing but builtins and json."""
    if root is None or not function.__code__.co_filename.startswith(f"{root}/"):
        return False
    return inspect.getclosurevars(function).globals.keys() <= {"json"}


def _constants(name: str, value: Any, attributes: list[str]) -> dict[str, Any]:
    """Return a constant by its name, if JSON can hold it.

    A text enum comes with those of its members that are among `attributes`.
    """
    if isinstance(value, type) and issubclass(value, str) and issubclass(value, enum.Enum):
        members = {key: member.value for key, member in value.__members__.items()}
        constants: dict[str, Any] = {name: {"enum": list(members.values())}}
        for key, text in members.items():
            if key in attributes:
                constants[f"{name}.{key}"] = text
        return constants
    try:
        return {name: _to_plain(value)}
    except TypeError:
        return {}


def _locate_function(function: types.FunctionType, owner: str = "") -> tuple[dict[str, Any], str]:
    """Return the place of a function, and its text.

    The place is its qualified name, its file, its first and last line and the digest of these.
    Raises OSError for a function without a source.
    """
    lines, line = inspect.getsourcelines(function)
    text = "".join(lines)
    place = {
        "name": f"{owner}.{function.__name__}" if owner else function.__name__,
        "file": _relative(function.__code__.co_filename),
        "lines": [line, line + len(lines) - 1],
        "digest": _blob_id(text.encode()),
    }
    return place, text


def _is_opaque(action: argparse.Action) -> bool:
    """Return whether a field's value is an object that differs from its JSON."""
    convert = action.type
    if isinstance(convert, type) and _is_object_type(convert):
        return True
    try:
        return bool(json.loads(json.dumps(action.default)) != action.default)
    except (TypeError, ValueError):
        return True


def _is_object_type(cls: type) -> bool:
    return issubclass(cls, enum.Enum | Path) and not issubclass(cls, str)


def _relative(path: str) -> str:
    """Return a file's path relative to the folder from which it is imported."""
    file = Path(path).resolve()
    search_path = [Path(folder).resolve() for folder in sys.path]
    folders = [folder for folder in search_path if file.is_relative_to(folder)]
    if not folders:
        return path
    nearest = max(folders, key=lambda folder: len(folder.parts))
    return file.relative_to(nearest).as_posix()


def _to_plain(value: Any) -> Any:
    """Convert to JSON types: enum members to their value, tuples and sets to lists.

    Raises TypeError for a value that JSON can't hold.
    """
    return json.loads(json.dumps(value, default=_simplify))


def _simplify(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} can't be written as JSON")


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def clean_help(text: str) -> str:
    return inspect.cleandoc(text).strip()


def digest_help(text: str) -> str:
    """Return the digest of a cleaned help text, which the lock has instead of the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _blob_id(content: bytes) -> str:
    """Return the same as `launch.upstream.pin.checkout.blob_id`, which can't be imported here."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def main(result: str, entry: str, root: str | None = None) -> None:
    sys.path[:] = _SEARCH_PATH  # without this program's own folder
    request = json.loads(sys.stdin.read() or "{}")
    if request.get("placeholders"):
        sys.path.insert(0, request["placeholders"])
        patches = importlib.import_module("launch.worker.patches.olmo_core")
        sys.path[:] = _SEARCH_PATH
        sys.meta_path.append(patches.PlaceholderFinder(patches.find_missing()))
    folder = Path(root).resolve() if root else None
    capture = _Capture(Path(result), entry, folder, request.get("argv"))
    try:
        capture.run()
        error = "it ended before it parsed its arguments"
    except BaseException as failure:
        traceback.print_exc()
        error = _last_line(failure)
    capture.finish({"error": error})


if __name__ == "__main__":
    main(*sys.argv[1:])
