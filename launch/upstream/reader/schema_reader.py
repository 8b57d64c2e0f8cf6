"""Reads a trainer's schema from source: parser call -> dataclasses -> fields -> command-line options."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launch.errors import Problem, UserError
from launch.upstream.reader.annotations import read_type
from launch.upstream.reader.bindings import SourceModule
from launch.upstream.reader.classes import EnumMember, mro
from launch.upstream.reader.constants import UNREADABLE, call_factory, evaluate
from launch.upstream.reader.dataclass_fields import RawField, dataclass_fields
from launch.upstream.reader.hf_rules import FieldDefault, ParserBuildError, derive_option_rule
from launch.upstream.reader.name_resolver import ClassRef, NameResolver, Scope
from launch.upstream.reader.parser_call import ParserCall, find_parser_call
from launch.upstream.reader.post_init import compile_post_init
from launch.upstream.reader.tree import Tree, UnreadableSourceError
from launch.upstream.schema import Field, ParserClass, Program, Schema, Unknown


class SchemaReader:
    """Reads any number of trainers of one tree; files that they share are parsed once.

    Imports that the tree doesn't have are looked up in `packages`; without it they are unknown.
    """

    def __init__(self, tree: Tree, packages: Tree | None = None) -> None:
        self._tree = tree
        self._resolver = NameResolver(tree, packages)

    def read(self, entry: str) -> Schema:
        """Read the schema of a script (`open_instruct/finetune.py`) or module (`trl.scripts.sft`).

        Raises UserError: trainer_script_missing, trainer_unreadable.
        """
        self._resolver.reset()
        try:
            module = self._load_entry(entry)
            call = find_parser_call(self._resolver, module)
            return _build_schema(self._resolver, entry, call)
        except UnreadableSourceError as error:
            raise _unreadable_error(self._tree, entry, str(error), error.where) from None
        except RecursionError:
            raise _unreadable_error(self._tree, entry, "the source nests too deeply", None) from None

    def _load_entry(self, entry: str) -> SourceModule:
        by_path = entry.endswith(".py") or "/" in entry
        module = self._resolver.load_script(entry) if by_path else self._resolver.module(entry, whole=True)
        if module is None:
            message = f"{self._tree.label} has no {entry}"
            cure = "use the root of an open-instruct checkout with this script, or an installed package's folder"
            raise UserError(Problem("trainer_script_missing", message, where=self._tree.label, cure=cure))
        return module


def read_schema(tree: Tree, entry: str, packages: Tree | None = None) -> Schema:
    """Read one trainer's schema; see `SchemaReader.read`."""
    return SchemaReader(tree, packages).read(entry)


def _unreadable_error(tree: Tree, entry: str, reason: str, where: str | None) -> UserError:
    text = reason.removeprefix(f"{where}: ") if where else reason
    message = f"the flags of {entry} can't be read: {text}"
    cure = "check that the checkout is complete and unmodified"
    return UserError(Problem("trainer_unreadable", message, f"{tree.label}: {where or entry}", cure))


def _build_schema(resolver: NameResolver, entry: str, call: ParserCall) -> Schema:
    unknown = list(call.unknown)
    if call.keeps_unknown_arguments:
        unknown.append(Unknown("options", "the script accepts arguments that its parser doesn't know", call.where))
    none_words = _has_none_words(resolver, call)
    fields: dict[str, Field] = {}
    classes: list[ParserClass] = []
    for ref in call.classes:
        raw_fields, problems = dataclass_fields(resolver, ref)
        unknown.extend(Unknown("options", problem.reason, problem.where) for problem in problems)
        for raw in raw_fields.values():
            field = _build_field(resolver, ref, raw, none_words, unknown)
            if raw.name in fields and field.in_parser and fields[raw.name].in_parser:
                reason = f"both {fields[raw.name].group} and {ref.name} define --{raw.name}, which argparse refuses"
                unknown.append(Unknown("parser", reason, field.where))
            fields[raw.name] = field
        post_init = _compile_post_init(resolver, ref, unknown)
        classes.append(ParserClass(ref.name, ref.scope.module.path, ref.node.lineno, tuple(raw_fields), post_init))
    for name, (node, scope) in call.defaults.items():
        if name in fields:
            fields[name] = _override_default(resolver, fields[name], node, scope)
        else:
            unknown.append(Unknown("defaults", f"set_defaults sets '{name}', which no dataclass has", call.where))
    return Schema(
        entry=entry,
        parser=call.name,
        parser_at=call.where,
        parse_call=call.parse_method,
        yaml_file="ArgumentParserPlus" in call.lineage and call.parse_method == "parse",
        config_flag=call.parse_method == "parse_args_and_config",
        abbreviations=call.abbreviations,
        classes=tuple(classes),
        fields=fields,
        unknown=tuple(unknown),
        files=dict(resolver.files_read),
        package_files=dict(resolver.package_files_read),
    )


def _compile_post_init(resolver: NameResolver, ref: ClassRef, unknown: list[Unknown]) -> Program | None:
    try:
        return compile_post_init(resolver, ref)
    except UnreadableSourceError as error:
        unknown.append(Unknown("post_init", f"{ref.name}.__post_init__ can't be read: {error.reason}", error.where))
        return None


def _has_none_words(resolver: NameResolver, call: ParserCall) -> bool:
    """Whether this copy of HfArgumentParser converts `none` and `null` to None (trl/scripts/_hf_argparser.py does)."""
    if call.definition is None:
        return False
    for cls in mro(resolver, call.definition)[0]:
        if cls.name == "HfArgumentParser":
            return any(isinstance(n, ast.Name) and n.id == "_accept_none" for n in ast.walk(cls.node))
    return False


def _build_field(
    resolver: NameResolver, group: ClassRef, raw: RawField, none_words: bool, unknown: list[Unknown]
) -> Field:
    notes: dict[str, str] = {}
    if raw.problem is not None:
        notes["declaration"] = str(raw.problem)
    default = _read_default(resolver, raw, notes)
    metadata = _read_metadata(resolver, raw, notes)
    node = read_type(resolver, raw.node.annotation, raw.scope)
    field = Field(
        name=raw.name,
        type=_type_text(raw.node.annotation),
        kind="unknown",
        nargs=None,
        const=None,
        choices=None,
        default=default.value,
        declared=default.value,
        required=False,
        help=_clean_help(raw, metadata),
        owner=raw.owner.name,
        group=group.name,
        file=raw.scope.module.path,
        line=raw.node.lineno,
        unknown=notes,
    )
    if not raw.init:
        reason = "the dataclass sets it itself (init=False)"
        return replace(field, settable=False, unsettable_because=reason, in_parser=False)
    try:
        option = derive_option_rule(node, default, metadata, none_words)
    except ParserBuildError as error:
        unknown.append(Unknown("parser", f"HfArgumentParser refuses the field '{raw.name}': {error}", raw.where))
        return replace(field, unknown={**notes, "type": str(error)})
    aliases = metadata.get("aliases", ())
    derived = {
        **vars(option),
        "choices": None if option.choices is None else tuple(_to_plain(choice) for choice in option.choices),
        "aliases": (aliases,) if isinstance(aliases, str) else tuple(aliases),
        "settable": option.unsettable_because is None,
        "unknown": {**notes, **option.unknown},
    }
    return replace(field, **derived)


def _read_default(resolver: NameResolver, raw: RawField, notes: dict[str, str]) -> FieldDefault:
    if raw.default is None and raw.factory is None:
        return FieldDefault()
    try:
        if raw.default is not None:
            return FieldDefault(given=True, value=_to_plain(evaluate(resolver, raw.default, raw.default_scope)))
        assert raw.factory is not None
        return FieldDefault(factory=True, value=_to_plain(call_factory(resolver, raw.factory, raw.default_scope)))
    except UnreadableSourceError as error:
        notes["default"] = str(error)
        return FieldDefault(given=raw.default is not None, factory=raw.default is None)


def _read_metadata(resolver: NameResolver, raw: RawField, notes: dict[str, str]) -> dict[str, Any]:
    """Return the field's metadata. The help text is read separately and never makes a field unknown."""
    result: dict[str, Any] = {}
    metadata = raw.metadata or ast.Dict([], [])
    if not isinstance(metadata, ast.Dict) or None in metadata.keys:
        notes["choices"] = f"{raw.where}: the metadata isn't a plain dict"
        return result
    pairs = [(getattr(key, "value", None), value) for key, value in zip(metadata.keys, metadata.values, strict=True)]
    pairs += [(keyword.arg, keyword.value) for keyword in raw.extra_metadata]
    for key, value in pairs:
        if key == "help":
            result["help"] = _help_text(value)
            continue
        try:
            evaluated = evaluate(resolver, value, raw.default_scope)
            result[str(key)] = list(evaluated) if key == "choices" else evaluated
        except UnreadableSourceError as error:
            notes["choices" if key == "choices" else "type"] = str(error)
    return result


def _clean_help(raw: RawField, metadata: Mapping[str, Any]) -> str | None:
    text = metadata.get("help") or raw.docstring
    return None if text is None else inspect.cleandoc(str(text)).strip() or None


def _help_text(node: ast.expr) -> str | None:
    """Return a help text: constants as they are, other parts of an f-string or a sum as their source text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else ast.unparse(ast.JoinedStr([part]))[2:-1]
            for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_help_text(node.left) or "") + (_help_text(node.right) or "")
    return None


def _override_default(resolver: NameResolver, field: Field, node: ast.expr, scope: Scope) -> Field:
    notes = {aspect: reason for aspect, reason in field.unknown.items() if aspect != "default"}
    try:
        return replace(field, default=_to_plain(evaluate(resolver, node, scope)), unknown=notes)
    except UnreadableSourceError as error:
        return replace(field, default=None, unknown={**notes, "default": str(error)})


def _type_text(annotation: ast.expr) -> str:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return ast.unparse(annotation)


def _to_plain(value: Any) -> Any:
    """Convert to JSON types: enum members to their value, tuples and sets to lists. Raises UnreadableSourceError."""
    if isinstance(value, EnumMember):
        return _to_plain(value.value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = [_to_plain(item) for item in value]
        return sorted(items, key=str) if isinstance(value, set | frozenset) else items
    unwritable = f"a value of type {type(value).__name__} can't be written as JSON"
    raise UnreadableSourceError("unread" if value is UNREADABLE else unwritable)
