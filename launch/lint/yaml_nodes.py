"""YAML as nodes that know their lines, built from the parser's events without recursion."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import yaml

MAX_DEPTH = 60  # of nesting; what people write has less
MAX_NODES = 300_000  # of one file

_BLANK = re.compile(r"\s+")
_HEADER = re.compile(r"[|>][^\n]*\n?")
_ESCAPE = re.compile(r"\\(?:\n|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)


class NotYaml(Exception):
    """The text can't be read as YAML: why, and on which 1-based line."""

    def __init__(self, reason: str, line: int) -> None:
        self.reason = reason
        self.line = line
        super().__init__(f"line {line}: {reason}")


@dataclass(frozen=True, eq=False)
class Scalar:
    """A scalar: its text, its type by YAML 1.1 (`str`, `int`, `float`, `bool`, `null`, ...), and how it was written."""

    text: str
    type: str
    line: int
    source: str

    def line_of(self) -> Callable[[int], int]:
        """From an offset in `text` to the file's line. Folding and quoting change blanks only, so the characters that
        are not blank are counted."""
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
                source = _ESCAPE.sub(_plain, source[1:-1])
            body = source
        ends = list(accumulate(len(_BLANK.sub("", line)) for line in body.split("\n")))
        inked = list(accumulate(0 if char.isspace() else 1 for char in self.text))

        def line(offset: int) -> int:
            before = inked[offset - 1] if 0 < offset <= len(inked) else 0 if offset <= 0 else inked[-1] if inked else 0
            return first + min(bisect_right(ends, before), len(ends) - 1)

        return line


@dataclass(frozen=True, eq=False)
class Sequence:
    """A list."""

    items: list[Node] = field(default_factory=list)
    line: int = 0


@dataclass(frozen=True, eq=False)
class Mapping:
    """A map, duplicate keys included, `<<` merged in."""

    pairs: list[tuple[Node, Node]] = field(default_factory=list)
    line: int = 0

    def entries(self) -> Iterator[tuple[Scalar, Node]]:
        """The pairs whose key is a scalar; what `<<` brings in comes last and never overrides."""
        own = {key.text for key, _ in self.pairs if isinstance(key, Scalar)}
        for key, value in self.pairs:
            if isinstance(key, Scalar) and key.text != "<<":
                yield key, value
        for key, value in self.pairs:
            if isinstance(key, Scalar) and key.text == "<<":
                for source in value.items if isinstance(value, Sequence) else [value]:
                    merged = source.node if isinstance(source, Alias) else source
                    if isinstance(merged, Mapping):
                        for inner, item in merged.pairs:
                            if isinstance(inner, Scalar) and inner.text != "<<" and inner.text not in own:
                                yield inner, item


@dataclass(frozen=True, eq=False)
class Alias:
    """`*name`: the node that was anchored. Not followed where everything is walked, so nothing is walked twice."""

    node: Node
    line: int


Node = Scalar | Sequence | Mapping | Alias


def followed(node: Node) -> Node:
    """The node itself, or what an alias stands for."""
    return node.node if isinstance(node, Alias) else node


def read_yaml(text: str) -> list[Node]:
    """The documents of a YAML text. Raises NotYaml."""
    loader_class: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = None
    try:
        loader = loader_class(text)
        return _documents(loader, text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        reason = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "it can't be parsed")
        raise NotYaml(reason, mark.line + 1 if mark is not None else 1) from None
    finally:
        if loader is not None:
            loader.dispose()


def _documents(loader: Any, text: str) -> list[Node]:
    lines = text.split("\n")
    documents: list[Node] = []
    stack: list[tuple[Node, list[Node]]] = []
    anchors: dict[str, Node] = {}
    count = 0
    while loader.check_event():
        event = loader.get_event()
        node: Node | None = None
        if isinstance(event, yaml.ScalarEvent):
            node = _scalar(loader, event, lines)
        elif isinstance(event, yaml.AliasEvent):
            anchored = anchors.get(event.anchor)
            if anchored is None:
                raise NotYaml(f"found undefined alias '{event.anchor}'", event.start_mark.line + 1)
            node = Alias(anchored, event.start_mark.line + 1)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = Sequence(line=event.start_mark.line + 1)
        elif isinstance(event, yaml.MappingStartEvent):
            node = Mapping(line=event.start_mark.line + 1)
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            parent, children = stack.pop()
            if isinstance(parent, Sequence):
                parent.items.extend(children)
            elif isinstance(parent, Mapping):
                parent.pairs.extend(zip(children[::2], children[1::2], strict=True))
        elif isinstance(event, yaml.DocumentStartEvent):
            anchors = {}
        if node is None:
            continue
        count += 1
        if count > MAX_NODES or len(stack) > MAX_DEPTH:
            what = "has too many values" if count > MAX_NODES else "is nested too deeply"
            raise NotYaml(f"it {what} to be a list of flags or a job", node.line)
        (stack[-1][1] if stack else documents).append(node)
        if getattr(event, "anchor", None) and not isinstance(node, Alias):
            anchors[event.anchor] = node
        if isinstance(node, Sequence | Mapping):
            stack.append((node, []))
    return documents


def _scalar(loader: Any, event: yaml.ScalarEvent, lines: list[str]) -> Scalar:
    tag = event.tag
    if tag is None or tag == "!":
        tag = loader.resolve(yaml.ScalarNode, event.value, event.implicit)
    start, end = event.start_mark, event.end_mark
    if start.line == end.line:
        source = lines[start.line][start.column : end.column] if start.line < len(lines) else ""
    else:
        inner = lines[start.line : end.line + 1]
        inner[0] = inner[0][start.column :]
        if end.line < len(lines):
            inner[-1] = inner[-1][: end.column]
        source = "\n".join(inner)
    return Scalar(event.value, str(tag).rpartition(":")[2], start.line + 1, source)


def _plain(match: re.Match[str]) -> str:
    """A double-quoted escape as one character, a line that is continued as its newline."""
    escape = match.group()
    return "\n" if escape == "\\\n" else " " if escape in ("\\n", "\\t", "\\r", "\\ ") else "x"
