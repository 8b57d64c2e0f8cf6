"""Check every flag of a plan, and every flag that the trainer's YAML names, against the trainer's schema."""

from __future__ import annotations

from collections.abc import Mapping

from launch.config.origins import Origins
from launch.config.schema import TrainerConfig
from launch.errors import Problem, UserError
from launch.planning.flags import Flag
from launch.upstream.pin.ledger import explain_unknown_flag
from launch.upstream.rules.contradictions import find_contradictions
from launch.upstream.rules.values import check_values, render_flag
from launch.upstream.schema import Schema
from launch.upstream.trainers import flags_named_in


def checked_argv(schema: Schema, trainer: TrainerConfig, origins: Origins, flags: Mapping[str, Flag]) -> list[str]:
    """Render `flags` as the arguments that the trainer's parser accepts.

    Raises UserError with every problem: those of the schema (unknown_flag, bad_type, bad_choice, ...), contradiction,
    and stale_allowlist for a flag in the trainer's YAML that the trainer no longer has.
    """
    stale = {flag: key for flag, key in named_flags(trainer).items() if flag not in schema.fields}
    problems = [_stale_problem(trainer, flag, key, origins) for flag, key in stale.items()]
    problems += _value_problems(schema, trainer, {name: flag for name, flag in flags.items() if name not in stale})
    if not problems:
        problems += _contradictions(schema, flags)
    if problems:
        raise UserError(problems)
    return [word for name, flag in flags.items() for word in render_flag(schema.fields[name], flag.value)]


def named_flags(trainer: TrainerConfig) -> dict[str, str]:
    """Return every flag that a trainer's YAML names, with the first key that names it."""
    named: dict[str, str] = {}
    for flag, path, _ in flags_named_in(vars(trainer)):
        named.setdefault(flag, "trainer.unread" if path[0] == "unread" else f"trainer.{'.'.join(path[:2])}")
    return named


def _stale_problem(trainer: TrainerConfig, flag: str, key: str, origins: Origins) -> Problem:
    message = f"{trainer.name} no longer has --{flag}, which {key} names"
    return Problem("stale_allowlist", message, origins.of(key).where or key, "upstream changed: correct this line")


def _value_problems(schema: Schema, trainer: TrainerConfig, flags: Mapping[str, Flag]) -> list[Problem]:
    problems = []
    for error in check_values(schema, {name: flag.value for name, flag in flags.items()}, complete=True):
        flag = flags.get(error.flag)
        where = (flag.provenance.where if flag else None) or f"flags.{error.flag}"
        past = explain_unknown_flag(trainer.name, error.flag, schema.fields) if error.kind == "unknown_flag" else None
        message = f"{error.message}: {past.message}" if past else error.message
        cure = (f"use flags.{past.use}" if past.use else "leave it out") if past else error.cure
        problems.append(Problem(error.kind, message, where, cure))
    return problems


def _contradictions(schema: Schema, flags: Mapping[str, Flag]) -> list[Problem]:
    """Return the errors that the trainer's own `__post_init__` would raise on every machine."""
    problems = []
    for contradiction in find_contradictions(schema, {name: flag.value for name, flag in flags.items()}):
        if contradiction.certain:
            places = [flags[name].provenance.where for name in contradiction.flags if name in flags]
            overrides = [place for place in places if place and place.startswith("override")]
            where = next(iter(overrides), None) or next((place for place in places if place), None)
            problems.append(Problem("contradiction", f"{contradiction.message} ({contradiction.where})", where))
    return problems
