"""The one reader of YAML: plain data, nodes that carry their lines, and the line of each key; of
JSON, too.

Nodes are made from those that PyYAML composes, within limits that its events are held to first.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import yaml

from launch.errors import refusal

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 60  # of nesting, that of what aliases repeat included; hand-written files have less
MAX_NODES = 300_000  # of one file, those that its aliases repeat included
MAX_CHARACTERS = 1 << 22  # of one file

_BLANK = re.compile(r"\s+")
_HEADER = re.compile(r"[|>][^\n]*\n?")
_ESCAPE = re.compile(r"\\(?:\n|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)


class NotYamlError(ValueError):
    """The text is not valid YAML; `line` is 1-based."""

    def __init__(self, reason: str, line: int) -> None:
        self.reason = reason
        self.line = line
        super().__init__(f"line {line}: {reason}")


class YamlLimitError(NotYamlError):
    """The text is larger than a configuration, a list of flags or a job is."""


@dataclass(frozen=True, eq=False)
class Scalar:
    """A scalar."""

    text: str
    type: str  # by YAML 1.1: str, int, float, bool, null, ...
    line: int  # 1-based
    source: str  # as written

    @property
    def value(self) -> Any:
        """The plain value; the text, where YAML has no such type."""
        node = yaml.ScalarNode(f"tag:yaml.org,2002:{self.type}", self.text)
        try:
            return _LOADER("").construct_object(node)
        except (yaml.YAMLError, ValueError):
            return self.text

    def line_lookup(self) -> Callable[[int], int]:
        """Return the function from an offset in `text` to the file's line.

        It counts the characters that are not blank, as folding and quoting change only blanks.
        """
        source = self.source
        if source[:1] in ("|", ">"):
            header = _HEADER.match(source)
            body = source[header.end() :] if header else source
            first = self.line + 1
        else:
            first = self.line
            if source[:1] == "'":
                source = source.replace("''", "'").removeprefix("'").removesuffix("'")
            elif source[:1] == '"':
                source = _ESCAPE.sub(_unescape, source[1:-1])
            body = source
        ends = list(accumulate(len(_BLANK.sub("", line)) for line in body.split("\n")))
        visible = list(accumulate(0 if char.isspace() else 1 for char in self.text))

        def line(offset: int) -> int:
            before = visible[min(offset, len(visible)) - 1] if offset > 0 and visible else 0
            return first + min(bisect_right(ends, before), len(ends) - 1)

        return line


@dataclass(frozen=True, eq=False)
class Sequence:
    """A list."""

    items: list[Node] = field(default_factory=list)
    line: int = 0


@dataclass(frozen=True, eq=False)
class Mapping:
    """A map, with its duplicate keys."""

    pairs: list[tuple[Node, Node]] = field(default_factory=list)
    line: int = 0

    def entries(self) -> Iterator[tuple[Scalar, Node]]:
        """Yield the pairs whose key is a scalar; pairs merged with `<<` come last and never
        override.
        """
        pairs = [(key, value) for key, value in self.pairs if isinstance(key, Scalar)]
        own = {key.text for key, _ in pairs}
        yield from ((key, value) for key, value in pairs if key.text != "<<")
        for merged in (value for key, value in pairs if key.text == "<<"):
            for source in map(
                resolve_alias, merged.items if isinstance(merged, Sequence) else [merged]
            ):
                for key, value in source.pairs if isinstance(source, Mapping) else ():
                    if isinstance(key, Scalar) and key.text not in own:  # nor `<<` itself
                        yield key, value


@dataclass(frozen=True, eq=False)
class Alias:
    """`*name`: a reference to an anchored node. Tree walks do not follow it, so no node is visited
    twice.
    """

    node: Node
    line: int


Node = Scalar | Sequence | Mapping | Alias


def resolve_alias(node: Node) -> Node:
    """Return the node that an alias refers to, any other node as it is."""
    return node.node if isinstance(node, Alias) else node


def children(node: Node) -> list[Node]:
    """Return the items of a list or the values of a map; other nodes have none."""
    if isinstance(node, Mapping):
        return [value for _, value in node.pairs]
    return node.items if isinstance(node, Sequence) else []


def load_yaml(text: str) -> Any:
    """Return the plain data of a YAML text within the limits of `read_yaml`. Raises
    NotYamlError.
    """
    read_yaml(text)
    try:
        return yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError) as error:
        raise _not_yaml(error, text) from error


def read_yaml(text: str) -> list[Node]:
    """Parse the documents of a YAML text. Raises NotYamlError."""
    if len(text) > MAX_CHARACTERS:
        raise YamlLimitError(f"it has more than {MAX_CHARACTERS:,} characters", 1)
    depth = 0
    alias_lines: list[int] = []
    try:
        event: Any
        # what composes the nodes calls itself for each level
        for event in yaml.parse(text, _LOADER):
            line = event.start_mark.line + 1
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            _check_limits(0, depth, line)
            if isinstance(event, yaml.AliasEvent):
                alias_lines.append(line)
        roots = list(yaml.compose_all(text, _LOADER))
    except yaml.YAMLError as error:
        raise _not_yaml(error, text) from error
    builder = _NodeBuilder(text, iter(alias_lines))
    return [builder.build(root, 0)[0] for root in roots]


def _check_limits(count: int, depth: int, line: int) -> None:
    if count > MAX_NODES or depth > _MAX_DEPTH:
        problem = "has too many values" if count > MAX_NODES else "is nested too deeply"
        raise YamlLimitError(f"it {problem} to be a configuration, a list of flags or a job", line)


def _not_yaml(error: Exception, text: str) -> NotYamlError:
    """Return what PyYAML found as one sentence and a line; an integer of thousands of digits is a
    ValueError.
    """
    if isinstance(error, yaml.reader.ReaderError):
        return NotYamlError(str(error.reason), text.encode()[: error.position].count(b"\n") + 1)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    reason = str(
        getattr(error, "problem", None) or str(error).partition("\n")[0] or "it cannot be parsed"
    )
    last = text.count("\n") + 1  # the end of the text may be reported as a line of its own
    return NotYamlError(reason, min(mark.line + 1, last) if mark is not None else 1)


class _NodeBuilder:
    """Builds our nodes from PyYAML's, in which a node and its aliases are the same object."""

    def __init__(self, text: str, alias_lines: Iterator[int]) -> None:
        self.text = text
        self.alias_lines = alias_lines  # which PyYAML's nodes do not have
        self.count = 0
        # by the id of PyYAML's node: our node, how many nodes it contains, and in how many levels;
        # None while it is being built
        self.built: dict[int, tuple[Node, int, int] | None] = {}

    def build(self, source: Any, depth: int) -> tuple[Node, int]:
        """Return our node, or an alias of one that is built already, and how many levels it has.

        `depth` is the number of nodes that contain it. Raises YamlLimitError.
        """
        if id(source) in self.built:
            return self._build_alias(source, depth)
        line = source.start_mark.line + 1
        self.built[id(source)] = None
        self.count += 1
        before = self.count
        _check_limits(self.count, depth, line)
        node: Node
        levels = 0
        if isinstance(source, yaml.ScalarNode):
            written = self.text[source.start_mark.index : source.end_mark.index]
            node = Scalar(source.value, source.tag.rpartition(":")[2], line, written)
        elif isinstance(source, yaml.SequenceNode):
            nodes, levels = self._build_children(source.value, depth)
            node = Sequence(nodes, line)
        else:
            keys_and_values = list(chain.from_iterable(source.value))
            nodes, levels = self._build_children(keys_and_values, depth)
            node = Mapping(list(zip(nodes[::2], nodes[1::2], strict=True)), line)
        self.built[id(source)] = node, self.count - before, levels
        return node, levels

    def _build_alias(self, source: Any, depth: int) -> tuple[Node, int]:
        """Return an alias of a node that is built already. Its nodes count again, as a reader may
        follow it.
        """
        line = next(self.alias_lines)
        built = self.built[id(source)]
        if built is None:
            raise YamlLimitError("a value contains itself", line)
        node, count, levels = built
        self.count += 1 + count
        _check_limits(self.count, depth + levels, line)
        return Alias(node, line), levels

    def _build_children(self, sources: list[Any], depth: int) -> tuple[list[Node], int]:
        """Return the nodes in a list or a map, and how many levels the list or the map has."""
        nodes = []
        deepest = 0
        for source in sources:
            node, levels = self.build(source, depth + 1)
            nodes.append(node)
            deepest = max(deepest, levels)
        return nodes, 1 + deepest


def _unescape(match: re.Match[str]) -> str:
    """Return an escape as one character, and a line continuation as its newline."""
    escape = match.group()
    if escape == "\\\n":
        return "\n"
    return " " if escape in ("\\n", "\\t", "\\r", "\\ ") else "x"


def write_scalar(text: str) -> str:
    """Return a text as one double-quoted YAML scalar on one line, which OmegaConf reads as it is,
    `${...}` included.

    Raises UserError: not_utf8, for the name of a file in another encoding.
    """
    if re.search("[\ud800-\udfff]", text):
        message = f"{text!a} is not UTF-8, as a YAML file is"
        raise refusal("not_utf8", message, None, "rename the file")
    literal = re.sub(r"(\\*)\$\{", lambda match: f"{match[1] * 2}\\${{", text)
    quoted = yaml.safe_dump(literal, default_style='"', allow_unicode=True, width=math.inf)
    return quoted.rstrip("\n")


def write_comment(text: str) -> str:
    """Return a text as a YAML comment on one line, with a space for whatever could end the line."""
    line = "".join(char if char.isprintable() else " " for char in text)
    return f"# {line}"


@dataclass(frozen=True)
class Positions:
    """The lines of keys; a key path names list items by their index."""

    lines: dict[tuple[str, ...], int]  # key path -> 1-based line
    repeated: tuple[tuple[str, ...], ...]  # key paths that occur twice in their map

    def of(self, path: tuple[str, ...]) -> int | None:
        return self.lines.get(path)


def yaml_positions(text: str) -> Positions:
    """Locate the keys and list items of a YAML text. Raises NotYamlError."""
    return locate_keys(read_yaml(text))


def locate_keys(documents: list[Node]) -> Positions:
    """Locate the keys and list items of parsed documents."""
    lines: dict[tuple[str, ...], int] = {}
    repeated: list[tuple[str, ...]] = []

    def visit(node: Node, path: tuple[str, ...]) -> None:
        node = resolve_alias(node)
        for key, value in getattr(node, "pairs", ()) or enumerate(getattr(node, "items", ())):
            child_path = (*path, str(getattr(key, "text", key)))
            if child_path in lines:
                repeated.append(child_path)
            lines[child_path] = getattr(key, "line", value.line)
            visit(value, child_path)

    for document in documents:
        visit(document, ())
    return Positions(lines, tuple(repeated))
