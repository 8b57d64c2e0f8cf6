"""Find the maps of flags in YAML files, their trainer, and the command line that they represent."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass

from launch.check.lint.job_yaml import yaml_argument
from launch.check.lint.shell_syntax import Argument, literal_argument
from launch.check.lint.trainer_commands import TrainerScript, find_trainer
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
MAX_SCRIPT = 300  # characters of a script's name

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
            beside_script = _flags_beside_script(node, flags_of)
            if beside_script is not None:
                yield beside_script
                return
            needed = max(3, len(list(node.entries())) / 2)
            if any(_count_flags(node, flags) >= needed for flags in candidate_flags):
                yield _flag_map(node, None)
                return
        for child in children(node):
            yield from visit(child)

    maps: list[FlagMap] = []
    for document in documents:
        maps.extend(visit(document))
    return maps


def flag_arguments(entries: Iterable[FlagEntry]) -> list[Argument]:
    """Return the command line that the entries represent.

    An entry is written `--key value`, a list as several words and a map as JSON. A null means that
    the flag is not given. A value that begins with a dash is written `--key=value`; argparse would
    otherwise take it for a flag.
    """
    arguments: list[Argument] = []
    for key, node in entries:
        value = resolve_alias(node)
        if isinstance(value, Scalar) and value.type == "null":
            continue
        flag = f"--{key.text}"
        if isinstance(value, Sequence):
            arguments.append(literal_argument(flag, key.line))
            arguments += [_value_argument(item) for item in value.items]
            continue
        argument = _value_argument(value)
        if argument.is_resolved and argument.text.startswith("-"):
            arguments.append(literal_argument(f"{flag}={argument.text}", key.line))
        else:
            arguments += [literal_argument(flag, key.line), argument]
    return arguments


def _value_argument(node: Node) -> Argument:
    """Return the argument for the value of a flag, or for one item of its list."""
    node = resolve_alias(node)
    if isinstance(node, Scalar):
        text = str(node.value).lower() if node.type == "bool" else node.text
        return yaml_argument(text, node.line)
    if _is_sweep(node):
        return Argument("<swept>", node.line, is_resolved=False)
    content = json.dumps(_to_python(node), default=str)
    return literal_argument(content[:MAX_JSON], node.line)


def _to_python(node: Node) -> object:
    """Convert the node to Python values."""
    node = resolve_alias(node)
    if isinstance(node, Mapping):
        return {key.text: _to_python(value) for key, value in node.entries()}
    if isinstance(node, Scalar):
        return node.value
    return [_to_python(child) for child in children(node)]


def _is_sweep(node: Node) -> bool:
    """Return whether a map describes the values that a sweep tries for one flag."""
    if not isinstance(node, Mapping) or not node.pairs:
        return False
    return all(key.text in _SWEEP_KEYS for key, _ in node.entries())


def _flag_map(node: Mapping, trainer: TrainerScript | None, excluded: str | None = None) -> FlagMap:
    """Return the map's entries, without the key `excluded`."""
    entries = tuple((key, value) for key, value in node.entries() if key.text != excluded)
    line = node.line
    if entries:
        first_key, _ = entries[0]
        line = first_key.line
    return FlagMap(line, entries, trainer)


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
    """Return the flags beside a script's name, or in a map beside it; None without a script."""
    script_key = ""
    trainer = None
    for key, value in node.entries():
        if trainer is None and key.text in _SCRIPT_KEYS:
            script_key = key.text
            trainer = _named_trainer(value)
    if trainer is None:
        return None
    flags = flags_of(trainer)
    values = {key.text: resolve_alias(value) for key, value in node.entries()}
    inner_maps = [value for value in _walk_mappings(values.values()) if not _is_sweep(value)]
    best = _best_map(inner_maps, flags)
    count_inside = 0 if best is None else _count_flags(best, flags)
    count_beside = _count_flags(node, flags)
    if best is not None and 0 < count_inside >= count_beside:
        return _flag_map(best, trainer)
    if count_beside > 0:
        return _flag_map(node, trainer, excluded=script_key)
    usual_keys = [name for name in _FLAGS_KEYS if name in values]
    fallback = values[usual_keys[0]] if usual_keys else None
    return _flag_map(fallback, trainer) if isinstance(fallback, Mapping) else None


def _named_trainer(value: Node) -> TrainerScript | None:
    """Return the trainer that a value names; None for a value of another kind, or for prose."""
    node = resolve_alias(value)
    if not isinstance(node, Scalar) or len(node.text) > MAX_SCRIPT:
        return None
    if any(char.isspace() for char in node.text.strip()):
        return None
    return find_trainer(node.text)
