"""Find the maps of flags in YAML files, the trainer they are for, and the arguments they
represent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass

from launch.check.lint.job_yaml import yaml_argument
from launch.check.lint.shell_syntax import Argument, literal_argument
from launch.check.lint.trainer_commands import TrainerScript, parse_trainer
from launch.config.yaml_nodes import Mapping, Node, Scalar, Sequence, children, resolve_alias

FlagNames = Callable[[TrainerScript], Container[str]]

_SCRIPT_KEYS = ("script", "trainer", "program", "entry_point", "entrypoint", "module", "entry")
# Usual keys for the flags beside a script's name; a map under another key is accepted if its keys
# are flags.
_FLAGS_KEYS = (
    "args",
    "flags",
    "arguments",
    "parameters",
    "params",
    "config",
    "script_args",
    "training_args",
    "options",
)
_SWEEP_KEYS = frozenset(
    {"value", "values", "min", "max", "distribution", "mu", "sigma", "q", "probabilities"}
)
MAX_JSON = 20_000  # characters of a map that is passed as one value


FlagEntry = tuple[Scalar, Node]  # a flag of a map, as written, and its value


@dataclass(frozen=True)
class FlagMap:
    """A map of flags."""

    line: int  # of its first flag
    entries: tuple[FlagEntry, ...]
    trainer: TrainerScript | None  # if the file names one


def find_flag_maps(
    documents: Iterable[Node],
    trainer: TrainerScript | None,
    candidates: Iterable[TrainerScript],
    flags_of: FlagNames,
) -> list[FlagMap]:
    """Find the maps of flags in a YAML file, outermost first, none inside another.

    With a `trainer` given by the user, return the map that fits it best, even if few keys are
    flags. Otherwise accept a map if a script's name is beside it, or if at least three of its keys,
    and half of all, are flags of one of `candidates`.
    """
    if trainer is not None:
        best = _best_map(_walk_mappings(documents), flags_of(trainer))
        return [] if best is None else [_flag_map(best, trainer)]
    candidate_flags = [flags_of(candidate) for candidate in candidates]

    def visit(node: Node) -> Iterator[FlagMap]:
        if isinstance(node, Mapping):
            if scripted := _flags_beside_script(node, flags_of):
                yield scripted
                return
            counts = (_count_flags(node, flags) for flags in candidate_flags)
            if any(count >= max(3, len(list(node.entries())) / 2) for count in counts):
                yield _flag_map(node, None)
                return
        for child in children(node):
            yield from visit(child)

    return [flags for document in documents for flags in visit(document)]


def flag_arguments(entries: Iterable[FlagEntry]) -> list[Argument]:
    """Return the command line that the entries represent: `--key value`, lists as several words,
    maps as JSON.

    A null means that the flag is not given. A value that begins with a dash is written
    `--key=value`; argparse would otherwise take it for a flag.
    """
    arguments: list[Argument] = []
    for key, node in entries:
        value = resolve_alias(node)
        if isinstance(value, Scalar) and value.type == "null":
            continue
        flag = f"--{key.text}"
        if isinstance(value, Sequence):
            arguments += [literal_argument(flag, key.line), *map(_value_argument, value.items)]
            continue
        argument = _value_argument(value)
        if argument.is_resolved and argument.text.startswith("-"):
            arguments.append(literal_argument(f"{flag}={argument.text}", key.line))
        else:
            arguments += [literal_argument(flag, key.line), argument]
    return arguments


def _value_argument(node: Node) -> Argument:
    node = resolve_alias(node)
    if isinstance(node, Scalar):
        return yaml_argument(
            str(node.value).lower() if node.type == "bool" else node.text, node.line
        )
    if _is_sweep(node):
        return Argument("<swept>", node.line, is_resolved=False)
    return literal_argument(json.dumps(_to_python(node), default=str)[:MAX_JSON], node.line)


def _to_python(node: Node) -> object:
    """Convert the node to Python values."""
    node = resolve_alias(node)
    if isinstance(node, Mapping):
        return {key.text: _to_python(value) for key, value in node.entries()}
    return node.value if isinstance(node, Scalar) else list(map(_to_python, children(node)))


def _is_sweep(node: Node) -> bool:
    return (
        isinstance(node, Mapping)
        and bool(node.pairs)
        and {key.text for key, _ in node.entries()} <= _SWEEP_KEYS
    )


def _flag_map(
    node: Mapping, trainer: TrainerScript | None, excluded: tuple[str, ...] = ()
) -> FlagMap:
    entries = tuple(entry for entry in node.entries() if entry[0].text not in excluded)
    return FlagMap(entries[0][0].line if entries else node.line, entries, trainer)


def _walk_mappings(nodes: Iterable[Node]) -> Iterator[Mapping]:
    for node in nodes:
        if isinstance(node, Mapping):
            yield node
        yield from _walk_mappings(children(node))


def _count_flags(node: Mapping, flags: Container[str]) -> int:
    """Return how many of the map's keys are flags."""
    return sum(key.text.replace("-", "_") in flags for key, _ in node.entries())


def _best_map(nodes: Iterable[Mapping], flags: Container[str]) -> Mapping | None:
    """Return the map with the most flags; of equals, the outermost."""
    return max(nodes, key=lambda node: _count_flags(node, flags), default=None)


def _flags_beside_script(node: Mapping, flags_of: FlagNames) -> FlagMap | None:
    """Return the flags beside (or inside) a map that names a script."""
    named = (
        (key.text, _named_trainer(value))
        for key, value in node.entries()
        if key.text in _SCRIPT_KEYS
    )
    key, trainer = next((entry for entry in named if entry[1] is not None), ("", None))
    if trainer is None:
        return None
    flags = flags_of(trainer)
    values = {name.text: resolve_alias(value) for name, value in node.entries()}
    best = _best_map(
        (value for value in _walk_mappings(values.values()) if not _is_sweep(value)), flags
    )
    beside = _count_flags(node, flags)
    if best is not None and 0 < _count_flags(best, flags) >= beside:
        return _flag_map(best, trainer)
    if beside > 0:
        return _flag_map(node, trainer, excluded=(key,))
    fallback = next((values[name] for name in _FLAGS_KEYS if name in values), None)
    return _flag_map(fallback, trainer) if isinstance(fallback, Mapping) else None


def _named_trainer(value: Node) -> TrainerScript | None:
    node = resolve_alias(value)
    if (
        not isinstance(node, Scalar)
        or len(node.text) > 300
        or any(char.isspace() for char in node.text.strip())
    ):
        return None
    return parse_trainer(node.text)
