"""Shell completion of verbs, runs, trainers, choices, keys and flags.

It does not use Hydra, which takes a second to import. The shell functions are those of Hydra
(`launch -sc install=bash`); they call `launch -sc query=bash`, which ends here.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch.commands.verbs import VERBS, VISIBLE, Verb
from launch.resources import GROUPS, group_options
from launch.terminal import echo

_OPTIONS = ("--shell-completion", "-sc")  # options of Hydra
_QUERY = "query="


def answer_query(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Print the candidates if the shell requests them; return False for any other command line."""
    queries = [argument for argument in arguments if argument.startswith(_QUERY)]
    if not queries or not any(argument in _OPTIONS for argument in arguments):
        return False
    shell = queries[0].removeprefix(_QUERY)
    point = environ.get("COMP_POINT", "")
    line = environ.get("COMP_LINE", "")
    if point.isdigit():
        line = line[: int(point)]  # up to the cursor
    separator = "\n" if shell == "fish" else " "
    echo(separator.join(candidates(line)))
    return True


def candidates(line: str) -> list[str]:
    """Return the words that can end `line`, which begins with the program's name."""
    words = line.split(" ")[1:]
    current = words[-1] if words else ""
    before = [word for word in words[:-1] if word]
    return sorted({word for word in _words_after(before, current) if word.startswith(current)})


def _words_after(before: Sequence[str], current: str) -> Iterable[str]:
    """Return the words that can follow `before`, of which `current` is the beginning."""
    verb = VERBS.get(before[0]) if before else None
    if current.startswith("-"):
        return _options(verb or VERBS["run"])
    if not before:
        overrides = _overrides(before, current) if "=" in current else ["stage="]
        return [*VISIBLE, *overrides]
    if verb is None or verb.composes:
        return _overrides(before, current)
    return _arguments(verb, before)


def _arguments(verb: Verb, before: Sequence[str]) -> Iterable[str]:
    """Return the arguments of a verb that composes no stage."""
    parser = verb.parser()
    if parser and "runs" in parser.keys:
        return [*_runs(before), *(f"{key}=" for key in parser.keys)]
    if verb.name == "flags":
        from launch.upstream.trainers import ENTRIES

        return ENTRIES if len(before) == 1 else _flags(before[1])
    others = {"help": (*VISIBLE, "keys"), "upstream": ("status",)}
    return others.get(verb.name, ())


def _options(verb: Verb) -> list[str]:
    """Return the `--options` of a verb, with Hydra's if it composes a stage."""
    parser = verb.parser()
    options = ["--help"]
    if parser:
        options += parser.options
    elif verb.name != "run":
        options.append("--json")
    if verb.composes:
        options.append("--cfg")
    return options


def _overrides(before: Sequence[str], current: str) -> Iterable[str]:
    key, equals, _ = current.partition("=")
    if equals:
        return [f"{key}={choice}" for choice in _choices(key)]
    if key.startswith("flags."):
        return [f"flags.{name}=" for name in _flags(_trainer_of(before))]
    return [f"{name}=" for name in (*GROUPS, *_keys())]


def _choices(key: str) -> list[str]:
    """Return the options of a group, or the values of a key with a fixed set of them."""
    group = key.strip("+")
    return group_options(group) if group in GROUPS else list(_keys().get(key, ()))


def _trainer_of(before: Sequence[str]) -> str:
    """Return the trainer that the line chooses, or that its stage's file does, else finetune."""
    from launch.config.origins import Origins

    chosen_groups = [word for word in before if word.startswith(("stage=", "trainer="))]
    choices = dict(word.split("=", 1) for word in chosen_groups)
    chosen = choices.get("trainer")
    with suppress(OSError, ValueError):  # a file that is not YAML
        chosen = chosen or Origins((), choices).chosen_by_stage("trainer")
    return chosen or "finetune"


def _keys() -> dict[str, tuple[str, ...]]:
    """Return every key that a stage may have, with its values where they are a fixed set."""
    from launch.config.nodes import walk_keys
    from launch.config.schema import RootConfig

    keys: dict[str, tuple[str, ...]] = {}
    for key, hint in walk_keys(RootConfig):
        if not key.startswith("trainer."):
            keys[key] = _fixed_values(hint)
    return keys


def _fixed_values(hint: Any) -> tuple[str, ...]:
    """Return the values of a type that has a fixed set of them: an enum, or bool."""
    kinds = [hint, *typing.get_args(hint)]
    members: list[str] = []
    for kind in kinds:
        members += getattr(kind, "__members__", ())
    if members:
        return tuple(members)
    return ("true", "false") if bool in kinds else ()


def _flags(trainer: str) -> list[str]:
    from launch.upstream.pin.lock import locked_schema
    from launch.upstream.trainers import trainer_name

    return list(locked_schema(trainer).fields) if trainer_name(trainer) else []


def _runs(before: Sequence[str]) -> list[str]:
    from launch.planning.find_runs import find_runs, run_name

    given = [word.removeprefix("runs=") for word in before if word.startswith("runs=")]
    folder = given[0] if given else "runs"
    return [run_name(path) for path in find_runs(Path(folder).expanduser())]
