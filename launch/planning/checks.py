"""Checks the flags of a plan as the trainer's parser and its `__post_init__` do, before anything
runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from launch.config.origins import Origins
from launch.config.recipe_keys import KEYS, keys_by_flag
from launch.config.schema import TrainerConfig
from launch.errors import UserError
from launch.planning.flags import Flag, values_of
from launch.upstream.rules.contradictions import find_contradictions
from launch.upstream.rules.values import check_values, flag_field, render_flag
from launch.upstream.schema import Schema
from launch.upstream.trainers import flags_named_in
from launch.worker.finding import Action, Finding, Fix

_RECIPE = "recipe."


def check_flags(
    schema: Schema, trainer: TrainerConfig, origins: Origins, flags: Mapping[str, Flag]
) -> None:
    """Check the flags against what the trainer's parser, and the trainer itself, refuse.

    Raises UserError, with all problems: those of the schema (unknown_flag, bad_type, bad_choice,
    ...), contradiction, and stale_allowlist for a flag in the trainer's YAML that the trainer no
    longer has.
    """
    stale = set()
    problems = []
    for name, key in named_flags(trainer).items():
        if name not in schema.fields and not schema.is_unverified(name):
            stale.add(name)
            problems.append(_stale_problem(trainer, name, key, origins))
    known_flags = {name: flag for name, flag in flags.items() if name not in stale}
    problems += _value_problems(schema, trainer, known_flags)
    if not problems:
        problems += _contradictions(schema, flags)
    if problems:
        raise UserError(problems)


def render_argv(schema: Schema, flags: Mapping[str, Flag]) -> list[str]:
    """Render flags that are checked as the arguments that the trainer's parser accepts."""
    argv: list[str] = []
    for name, flag in flags.items():
        field = flag_field(schema, name, flag.value)
        if field:
            argv += render_flag(field, flag.value)
    return argv


def named_flags(trainer: TrainerConfig) -> dict[str, str]:
    """Return every flag that the table of recipe keys or a trainer's YAML names, with the first key
    that names it: `recipe.epochs`, or `trainer.flags`.
    """
    named: dict[str, str] = {}
    for flag, of_key in keys_by_flag(trainer).items():
        named[flag] = f"{_RECIPE}{of_key.key}"
    for flag, path, _ in flags_named_in(vars(trainer)):
        named.setdefault(flag, f"trainer.{'.'.join(path[:2])}")
    return named


def _stale_problem(trainer: TrainerConfig, flag: str, key: str, origins: Origins) -> Finding:
    message = f"{trainer.name} no longer has --{flag}, which {key} names"
    of_table = KEYS.get(key.removeprefix(_RECIPE))
    where = of_table.place if of_table else origins.of(key).where or key
    cure = "upstream changed: correct this line"
    return Finding.error("stale_allowlist", message, where, cure)


def _value_problems(
    schema: Schema, trainer: TrainerConfig, flags: Mapping[str, Flag]
) -> list[Finding]:
    """Return the problems that the schema finds. An unknown flag is explained by upstream's
    history.
    """
    problems = []
    for error in check_values(schema, values_of(flags), complete=True):
        name = str(error.where)
        flag = flags.get(name)
        where = flag.provenance.where if flag else None
        problem = replace(error, where=where or f"flags.{name}")
        if error.id == "unknown_flag":
            problem = _explain_unknown_flag(schema, trainer, name, flags[name], problem)
        problems.append(problem)
    return problems


def _explain_unknown_flag(
    schema: Schema, trainer: TrainerConfig, name: str, flag: Flag, problem: Finding
) -> Finding:
    """Return the problem, with what became of the flag if upstream's history of renames has it."""
    # the history is read only where a flag is unknown
    from launch.upstream.pin.ledger import explain_unknown_flag

    past = explain_unknown_flag(trainer.name, name, schema.fields)
    if past is None:
        return problem
    override = past.instead.get(str(flag.value))
    cure: Fix | str = f"use flags.{past.use}" if past.use else "leave it out"
    if past.write or past.otherwise:
        cure = past.replacement(str(flag.value)) or cure
    if override:
        cure = Fix.of("set {0} in its place", Action((override,), f"flags.{name}"))
    message = f"{problem.message}: {past.message}"
    return Finding.error(problem.id, message, problem.where, cure)


def _contradictions(schema: Schema, flags: Mapping[str, Flag]) -> list[Finding]:
    """Return the errors that the trainer's own `__post_init__` would raise on every machine."""
    problems = []
    for contradiction in find_contradictions(schema, values_of(flags)):
        if not contradiction.certain:
            continue
        places = []
        for name in contradiction.flags:
            where = flags[name].provenance.where if name in flags else None
            if where:
                places.append(where)
        # an override is named before a line of a file
        places.sort(key=lambda where: not where.startswith("override"))
        message = f"{contradiction.message} ({contradiction.where})"
        problems.append(Finding.error("contradiction", message, next(iter(places), None)))
    return problems
