"""Find the commands in YAML job files: a shell text, or a list of words (`command:`, `args:`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from launch.check.lint.shell import find_commands, find_in_arguments
from launch.check.lint.shell_syntax import Argument, literal_argument
from launch.check.lint.trainer_commands import HINT, ScanResult, merge_scans
from launch.config.yaml_nodes import Mapping, Node, Scalar, Sequence, children, resolve_alias

_COMMAND_KEYS = ("command", "entrypoint", "cmd", "program", "script")
_ARGUMENT_KEYS = ("arguments", "args")
_REFERENCE = re.compile(r"\$[({A-Za-z_]|\{\{")
_BLANK = re.compile(r"\s")


def find_commands_in_yaml(documents: Iterable[Node]) -> ScanResult:
    """Find every trainer command in the strings and lists of a YAML file, in the order of lines."""
    scans: list[ScanResult] = []
    for document in documents:
        scans.extend(_find_in_words(words) for words in _candidate_commands(document))
    return merge_scans(scans)


def _candidate_commands(node: Node) -> Iterator[list[Scalar]]:
    """Yield the scalars that may form one command.

    They are a string, a list, or a command's list with its arguments.
    """
    scalars = _as_scalars(node)
    if scalars:
        yield scalars
        return
    inner = children(node)
    if isinstance(node, Mapping):
        values = {key.text: value for key, value in node.entries()}
        command = _first_value(values, _COMMAND_KEYS)
        arguments = _first_value(values, _ARGUMENT_KEYS)
        if command is not None and arguments is not None:
            words = _as_scalars(resolve_alias(command))
            more_words = _as_scalars(resolve_alias(arguments))
            if words is not None and more_words is not None:
                yield [*words, *more_words]
                inner = [value for value in inner if value not in (command, arguments)]
    for child in inner:
        yield from _candidate_commands(child)


def _first_value(values: dict[str, Node], keys: Iterable[str]) -> Node | None:
    """Return the value of the first key that is set; None if none is set."""
    for key in keys:
        if key in values:
            return values[key]
    return None


def _as_scalars(node: Node) -> list[Scalar] | None:
    """Return the items of a list of scalars, or a scalar as a list of one; else None."""
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
        return find_in_arguments([yaml_argument(word.text, word.line) for word in words])
    scans = []
    for start, end in pairwise((*texts, len(words))):
        word, *more = words[start:end]
        inner = find_commands(word.text, word.line_lookup())
        # Words that follow a command's text in the same list, and start with a dash, are further
        # arguments.
        if inner.commands and more and more[0].text.startswith("--"):
            *others, last = inner.commands
            extra = [yaml_argument(argument.text, argument.line) for argument in more]
            last = replace(last, arguments=(*last.arguments, *extra))
            inner = replace(inner, commands=(*others, last))
        scans.append(inner)
    return merge_scans(scans)


def _is_shell_text(word: Scalar) -> bool:
    return _BLANK.search(word.text.strip()) is not None and HINT.search(word.text) is not None


def yaml_argument(text: str, line: int) -> Argument:
    """Convert a word to an argument.

    No shell expands it, but Kubernetes and others substitute `$(X)`, `${X}` and `{{X}}`.
    """
    reference = _REFERENCE.search(text)
    if reference is None:
        return literal_argument(text, line)
    return Argument(text, line, is_resolved=False, prefix=text[: reference.start()], raw=text)
