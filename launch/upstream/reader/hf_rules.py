"""Derives a command-line option from a dataclass field's type, default and metadata, as HfArgumentParser does.

Source of the rules: `HfArgumentParser._parse_dataclass_field` (transformers/hf_argparser.py 5.23.0) and TRL's copy,
which converts `none` and `null` (trl/scripts/_hf_argparser.py 1.16.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch.upstream.reader.annotations import (
    NONE,
    EnumType,
    GenericType,
    LiteralType,
    NamedType,
    TypeNode,
    UnionType,
    UnreadableType,
)

_STR, _BOOL = NamedType("str"), NamedType("bool")
_KINDS = {
    **{name: name for name in ("str", "int", "float", "dict")},
    "Path": "str",
    "bool": "truthy",
    "bytes": "never",
}
_NOT_CALLABLE_WITH_TEXT = {"Any", "object", "NoneType"}  # called with a string, each raises TypeError
_KNOWN_METADATA = {"help", "choices", "nargs", "const", "required", "metavar", "aliases"}


class ParserBuildError(Exception):
    """HfArgumentParser itself raises on this field, so the script can't start."""


@dataclass(frozen=True)
class FieldDefault:
    """A field's default value and where it comes from."""

    given: bool = False  # a plain default
    factory: bool = False  # a default_factory
    value: Any = None


@dataclass(frozen=True)
class OptionRule:
    """The command-line side of a field; see `launch.upstream.schema.Field` for the attributes."""

    kind: str
    nargs: str | None
    const: Any
    choices: tuple[Any, ...] | None
    default: Any
    required: bool
    negatable: bool
    none_words: bool
    unsettable_because: str | None
    unknown: Mapping[str, str]


def derive_option_rule(
    node: TypeNode, default: FieldDefault, metadata: Mapping[str, Any], none_words: bool
) -> OptionRule:
    """Return the option of one field. Raises ParserBuildError where HfArgumentParser raises while it is built.

    `none_words`: this copy of the parser converts `none` and `null` to None for `X | None`.
    """
    unknown: dict[str, str] = {}
    unsupported = sorted(set(metadata) - _KNOWN_METADATA)
    if unsupported:
        unknown["type"] = f"argparse receives metadata with an unknown effect: {', '.join(unsupported)}"
    reduced, optional = _reduce_union(node)
    nargs, const = metadata.get("nargs"), metadata.get("const")
    choices = tuple(metadata["choices"]) if metadata.get("choices") is not None else None
    required = bool(metadata.get("required", False))
    kind, value = "", default.value
    if isinstance(reduced, LiteralType | EnumType):
        kind, choices = "choice", reduced.values
        required = required or not default.given  # a default_factory is ignored
        value = value if default.given else None
    elif reduced == _BOOL or _is_optional_bool(reduced):
        kind = "bool"
        if reduced == _BOOL or (default.given and value is not None):
            nargs, const = "?", True
            value = value if default.given else False
        elif not default.given:
            value = None
    elif isinstance(reduced, UnionType):
        kind, unknown["type"] = "unknown", "HfArgumentParser doesn't handle this kind of union"
    elif isinstance(reduced, GenericType) and reduced.origin == "list":
        kind, choices = _element_kind(reduced.args[0], choices)
        nargs = "+"
        value = value if default.factory else None  # a plain default is dropped: `report_to: str | list[str] = "all"`
        required = required or not (default.given or default.factory)
    elif reduced == NamedType("list"):
        raise ParserBuildError("a bare `list` type has no element type")
    else:
        kind, choices = _element_kind(reduced, choices)
        required = required or not (default.given or default.factory)
    if isinstance(_element_type(reduced), UnreadableType):
        unknown["type"] = _element_type(reduced).reason  # type: ignore[union-attr]
        unknown["choices"] = unknown["type"]
    return OptionRule(
        kind=kind,
        nargs=nargs,
        const=const,
        choices=choices,
        default=value,
        required=required,
        negatable=kind == "bool" and default.given and default.value is True,
        none_words=none_words and optional and nargs != "+" and kind not in ("choice", "bool"),
        unsettable_because=_explain_unsettable(kind, nargs),
        unknown=unknown,
    )


def _reduce_union(node: TypeNode) -> tuple[TypeNode, bool]:
    """Reduce a union to one type as HfArgumentParser does; the bool: None was removed from it."""
    if not isinstance(node, UnionType):
        return node, False
    args = node.args
    if _STR not in args and (len(args) != 2 or NONE not in args):
        raise ParserBuildError("only Union[X, None] is allowed, because argparse supports one type per argument")
    if NONE not in args:
        return (args[0] if args[1] == _STR else args[1]), False
    if _BOOL in args:
        return node, False
    if isinstance(args[1], GenericType | LiteralType):
        raise ParserBuildError("the type after the first `|` can't be used with isinstance()")
    chosen = args[0] if args[1] == NONE else args[1]
    return chosen, chosen != _STR


def _is_optional_bool(node: TypeNode) -> bool:
    return isinstance(node, UnionType) and set(node.args) == {_BOOL, NONE}


def _element_type(node: TypeNode) -> TypeNode:
    return node.args[0] if isinstance(node, GenericType) and node.origin == "list" and node.args else node


def _element_kind(node: TypeNode, choices: tuple[Any, ...] | None) -> tuple[str, tuple[Any, ...] | None]:
    """Return the conversion (`Field.kind`) that calling the type with one string amounts to, and the choices."""
    if isinstance(node, EnumType):
        return "enum", node.values
    if isinstance(node, UnreadableType):
        return "unknown", choices
    if isinstance(node, LiteralType | UnionType):
        return "never", choices
    if isinstance(node, GenericType):
        return ("dict" if node.origin == "dict" else "object"), choices
    if node.name in _NOT_CALLABLE_WITH_TEXT:
        return "never", choices
    return _KINDS.get(node.name, "object"), choices


def _explain_unsettable(kind: str, nargs: str | None) -> str | None:
    if nargs == "?" and kind != "bool":
        return None  # the bare flag works
    if kind == "dict":
        return "the parser converts the text with dict(), which refuses every text but the empty one"
    return "the parser can't convert any text to this type" if kind == "never" else None
