"""Find the maps of flags in YAML files, the trainer they are for, and the arguments they represent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from launch.check.lint.shell_syntax import Argument, literal_argument
from launch.check.lint.trainers import TrainerScript, parse_trainer
from launch.config.yaml_nodes import Mapping, Node, Scalar, Sequence, resolve_alias

FlagNames = Callable[[TrainerScript], frozenset[str]]

_SCRIPT_KEYS = ("script", "trainer", "program", "entry_point", "entrypoint", "module", "entry")
# Usual keys for the flags beside a script's name; a map under another key is accepted if its keys are flags.
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
_SWEEP_KEYS = frozenset({"value", "values", "min", "max", "distribution", "mu", "sigma", "q", "probabilities"})
_VARIABLE = re.compile(r"\$[({A-Za-z_]|\{\{")
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

    With a `trainer` given by the user, return the map that fits it best, even if few keys are flags. Otherwise accept
    a map if a script's name is beside it, or if at least three of its keys, and half of all, are flags of one of
    `candidates`.
    """
    documents = list(documents)
    if trainer is not None:
        best = _best_map(list(_walk_mappings(documents)), flags_of(trainer))
        return [] if best is None else [_flag_map(best, trainer)]
    flag_maps: list[FlagMap] = []
    candidate_flags = [flags_of(candidate) for candidate in candidates]
    stack: list[Node] = documents[::-1]
    while stack:
        node = stack.pop()
        if isinstance(node, Sequence):
            stack.extend(reversed(node.items))
        if not isinstance(node, Mapping):
            continue
        scripted = _flags_beside_script(node, flags_of)
        if scripted is not None:
            flag_maps.append(scripted)
        elif any(count >= max(3, size / 2) for count, size in (_count_flags(node, flags) for flags in candidate_flags)):
            flag_maps.append(_flag_map(node, None))
        else:
            stack.extend(value for _, value in reversed(node.pairs))
    return flag_maps


def flag_arguments(entries: Iterable[FlagEntry]) -> list[Argument]:
    """Return the command line that the entries represent: `--key value`, lists as several words, maps as JSON.

    A null means that the flag is not given. A value that begins with a dash is written `--key=value`; argparse would
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
            arguments.extend(_value_argument(resolve_alias(item)) for item in value.items)
        elif isinstance(value, Mapping) and _is_sweep(value):
            swept = Argument("<swept>", value.line, is_resolved=False)
            arguments.extend((literal_argument(flag, key.line), swept))
        else:
            argument = _value_argument(value)
            if argument.is_resolved and argument.text.startswith("-"):
                arguments.append(literal_argument(f"{flag}={argument.text}", key.line))
            else:
                arguments.extend((literal_argument(flag, key.line), argument))
    return arguments


def _value_argument(node: Node) -> Argument:
    if isinstance(node, Scalar):
        text = str(node.value).lower() if node.type == "bool" else node.text
        variable = _VARIABLE.search(text)
        if variable is not None:
            return Argument(text, node.line, is_resolved=False, prefix=text[: variable.start()], raw=text)
        return literal_argument(text, node.line)
    return literal_argument(json.dumps(_to_python(node), default=str)[:MAX_JSON], node.line)


def _to_python(node: Node, depth: int = 0) -> object:
    """Convert the node to Python values."""
    node = resolve_alias(node)
    if depth > 20:
        return None
    if isinstance(node, Sequence):
        return [_to_python(item, depth + 1) for item in node.items]
    if isinstance(node, Mapping):
        return {key.text: _to_python(value, depth + 1) for key, value in node.entries()}
    return node.value if isinstance(node, Scalar) else None


def _is_sweep(node: Mapping) -> bool:
    return bool(node.pairs) and all(key.text in _SWEEP_KEYS for key, _ in node.entries())


def _flag_map(node: Mapping, trainer: TrainerScript | None, excluded: tuple[str, ...] = ()) -> FlagMap:
    entries = tuple(entry for entry in node.entries() if entry[0].text not in excluded)
    return FlagMap(entries[0][0].line if entries else node.line, entries, trainer)


def _walk_mappings(nodes: Iterable[Node]) -> Iterator[Mapping]:
    stack = list(nodes)[::-1]
    while stack:
        node = stack.pop()
        if isinstance(node, Sequence):
            stack.extend(reversed(node.items))
        elif isinstance(node, Mapping):
            yield node
            stack.extend(value for _, value in reversed(node.pairs))


def _count_flags(node: Mapping, flags: frozenset[str]) -> tuple[int, int]:
    """Return how many of the map's keys are flags, and how many keys it has."""
    keys = [key.text.replace("-", "_") for key, _ in node.entries()]
    return sum(key in flags for key in keys), len(keys)


def _best_map(nodes: list[Mapping], flags: frozenset[str]) -> Mapping | None:
    """Return the map with the most flags; of equals, the outermost."""
    return max(nodes, key=lambda node: _count_flags(node, flags)[0], default=None)


def _flags_beside_script(node: Mapping, flags_of: FlagNames) -> FlagMap | None:
    """Return the flags beside (or inside) a map that names a script."""
    named = ((key.text, _named_trainer(value)) for key, value in node.entries() if key.text in _SCRIPT_KEYS)
    key, trainer = next((entry for entry in named if entry[1] is not None), ("", None))
    if trainer is None:
        return None
    flags = flags_of(trainer)
    values = {name.text: resolve_alias(value) for name, value in node.entries()}
    inner = [value for value in _walk_mappings(values.values()) if not _is_sweep(value)]
    best = _best_map(inner, flags)
    inside, beside = _count_flags(best, flags)[0] if best else 0, _count_flags(node, flags)[0]
    if best is not None and 0 < inside >= beside:
        return _flag_map(best, trainer)
    if beside > 0:
        return _flag_map(node, trainer, excluded=(key,))
    fallback = next((values[name] for name in _FLAGS_KEYS if name in values), None)
    return _flag_map(fallback, trainer) if isinstance(fallback, Mapping) else None


def _named_trainer(value: Node) -> TrainerScript | None:
    node = resolve_alias(value)
    if not isinstance(node, Scalar) or len(node.text) > 300 or any(char.isspace() for char in node.text.strip()):
        return None
    return parse_trainer(node.text)
