"""Find the commands in job files: a shell text in a value, or a list of words (`command:` with its `args:`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from launch.check.lint.scan_result import ScanResult, merge
from launch.check.lint.shell import find_commands, find_in_arguments
from launch.check.lint.shell_syntax import Argument, literal_argument
from launch.check.lint.trainers import HINT
from launch.config.yaml_nodes import Mapping, Node, Scalar, Sequence, resolve_alias

_COMMAND_KEYS = ("command", "entrypoint", "cmd", "program", "script")
_ARGUMENT_KEYS = ("arguments", "args")
_REFERENCE = re.compile(r"\$[({A-Za-z_]")
_BLANK = re.compile(r"\s")


def find_commands_in_yaml(documents: Iterable[Node]) -> ScanResult:
    """Find every trainer command in the strings and lists of a YAML file, in the order of their lines."""
    return merge(map(_find_in_words, _candidate_commands(documents)))


def _candidate_commands(documents: Iterable[Node]) -> Iterator[list[Scalar]]:
    """Yield the scalars that may form one command: a string, a list, or a command's list with its arguments."""
    stack = list(documents)[::-1]
    while stack:
        node = stack.pop()
        if isinstance(node, Scalar):
            yield [node]
        elif isinstance(node, Sequence):
            scalars = _as_scalars(node)
            if scalars is not None:
                yield scalars
            else:
                stack.extend(reversed(node.items))
        elif isinstance(node, Mapping):
            scalars, used = _command_with_arguments(node)
            if scalars:
                yield scalars
            stack.extend(value for _, value in reversed(node.pairs) if id(value) not in used)


def _command_with_arguments(node: Mapping) -> tuple[list[Scalar], set[int]]:
    values = {key.text: value for key, value in node.entries()}
    command = next((values[key] for key in _COMMAND_KEYS if key in values), None)
    arguments = next((values[key] for key in _ARGUMENT_KEYS if key in values), None)
    if command is None or arguments is None:
        return [], set()
    first, rest = _as_scalars(resolve_alias(command)), _as_scalars(resolve_alias(arguments))
    if first is None or rest is None:
        return [], set()
    return [*first, *rest], {id(command), id(arguments)}


def _as_scalars(node: Node) -> list[Scalar] | None:
    """Return the items of a list of scalars, or a scalar as a list of one; None for any other node."""
    if isinstance(node, Scalar):
        return [node]
    if not isinstance(node, Sequence):
        return None
    items = [resolve_alias(item) for item in node.items]
    scalars = [item for item in items if isinstance(item, Scalar)]
    return scalars if len(scalars) == len(items) else None


def _find_in_words(words: list[Scalar]) -> ScanResult:
    texts = [index for index, word in enumerate(words) if _is_shell_text(word)]
    if not texts:
        if len(words) < 2:
            return ScanResult()
        return find_in_arguments([_argument(word) for word in words])
    scans = []
    for position, index in enumerate(texts):
        word = words[index]
        inner = find_commands(word.text, word.line_lookup())
        # Words that follow a command's text in the same list, and start with a dash, are further arguments.
        end = texts[position + 1] if position + 1 < len(texts) else len(words)
        more = words[index + 1 : end] if index + 1 < end and words[index + 1].text.startswith("--") else []
        extra = tuple(_argument(extra_word) for extra_word in more)
        if inner.commands and extra:
            last = replace(inner.commands[-1], arguments=inner.commands[-1].arguments + extra)
            inner = replace(inner, commands=(*inner.commands[:-1], last))
        scans.append(inner)
    return merge(scans)


def _is_shell_text(word: Scalar) -> bool:
    return _BLANK.search(word.text.strip()) is not None and HINT.search(word.text) is not None


def _argument(word: Scalar) -> Argument:
    """Convert a word of a list. No shell expands it, but Kubernetes and others substitute `$(X)` and `${X}`."""
    if _REFERENCE.search(word.text) is None:
        return literal_argument(word.text, word.line)
    prefix = word.text[: word.text.index("$")]
    return Argument(word.text, word.line, is_resolved=False, prefix=prefix, raw=word.text)
