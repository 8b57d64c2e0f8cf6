"""Shell completion of verbs, runs, trainers, choices, keys and flags, without Hydra, which takes a
second to import.

The shell functions are Hydra's own (`launch -sc install=bash`); they call `launch -sc query=bash`,
which ends here.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from launch.commands.verbs import VERBS, VISIBLE, Verb
from launch.resources import GROUPS, group_options
from launch.terminal import echo

_OPTIONS = ("--shell-completion", "-sc")  # Hydra's
_QUERY = "query="


def answer_query(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Print the candidates if the shell asks for them; return False for any other command line."""
    shell = next(
        (argument.partition("=")[2] for argument in arguments if argument.startswith(_QUERY)), None
    )
    if shell is None or not any(argument in _OPTIONS for argument in arguments):
        return False
    point = environ.get("COMP_POINT", "")
    line = environ.get("COMP_LINE", "")[: int(point) if point.isdigit() else None]
    echo(("\n" if shell == "fish" else " ").join(candidates(line)))
    return True


def candidates(line: str) -> list[str]:
    """Return the words that can stand at the end of `line`, which begins with the program's
    name.
    """
    words = line.split(" ")[1:]
    before, current = [word for word in words[:-1] if word], words[-1] if words else ""
    verb = VERBS.get(before[0]) if before else None
    found: Iterable[str]
    if current.startswith("-"):
        found = _options(verb or VERBS["run"])
    elif not before:
        found = [*VISIBLE, *(_overrides(before, current) if "=" in current else ["stage="])]
    elif verb is None or verb.composes:
        found = _overrides(before, current)
    elif (parser := verb.parser()) and "runs" in parser.keys:
        found = [*_runs(before), *(f"{key}=" for key in parser.keys)]
    elif verb.name == "flags":
        from launch.upstream.trainers import ENTRIES

        found = ENTRIES if len(before) == 1 else _flags(before[1])
    elif verb.name == "help":
        found = (*VISIBLE, "keys")
    elif verb.name == "upstream":
        found = ("status",)
    else:
        found = ()
    return sorted({word for word in found if word.startswith(current)})


def _options(verb: Verb) -> list[str]:
    """Return the `--options` of a verb, with Hydra's if it composes a stage."""
    parser = verb.parser()
    own = parser.options if parser else ["--json"] if verb.name != "run" else []
    return ["--help", *own, *(["--cfg"] if verb.composes else [])]


def _overrides(before: Sequence[str], current: str) -> Iterable[str]:
    key, equals, _ = current.partition("=")
    if equals:
        return [f"{key}={choice}" for choice in _choices(key)]
    if key.startswith("flags."):
        return [f"flags.{name}=" for name in _flags(_trainer_of(before))]
    return [f"{group}=" for group in GROUPS] + [f"{name}=" for name in _keys()]


def _choices(key: str) -> list[str]:
    """Return the options of a group, or the values of a key with a fixed set of them."""
    group = key.strip("+")
    return group_options(group) if group in GROUPS else list(_keys().get(key, ()))


def _trainer_of(before: Sequence[str]) -> str:
    """Return the trainer that the line chooses, or the file of its stage; finetune if it is not
    found.
    """
    from launch.config.origins import Origins

    choices = dict(word.split("=", 1) for word in before if word.startswith(("stage=", "trainer=")))
    chosen = choices.get("trainer")
    with suppress(OSError, ValueError):  # a file that is not YAML
        chosen = chosen or Origins((), choices).chosen_by_stage("trainer")
    return chosen or "finetune"


def _keys() -> dict[str, tuple[str, ...]]:
    """Return every key that a stage may have, with its values where they are a fixed set."""
    from launch.config.schema import walk_keys

    keys: dict[str, tuple[str, ...]] = {}
    for key, hint in walk_keys():
        if not key.startswith("trainer."):
            kinds = [hint, *typing.get_args(hint)]
            members = [name for kind in kinds for name in getattr(kind, "__members__", ())]
            keys[key] = tuple(members or (("true", "false") if bool in kinds else ()))
    return keys


def _flags(trainer: str) -> list[str]:
    from launch.upstream.pin.lock import locked_schema
    from launch.upstream.trainers import trainer_name

    return list(locked_schema(trainer).fields) if trainer_name(trainer) else []


def _runs(before: Sequence[str]) -> list[str]:
    from launch.planning.find_runs import find_runs, run_name

    folder = next((word.partition("=")[2] for word in before if word.startswith("runs=")), "runs")
    return [run_name(path) for path in find_runs(Path(folder).expanduser())]
