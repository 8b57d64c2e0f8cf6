"""Checks the cures of problems: a cure is planned before it is printed.

A cure that leads back to the same problem, or to one whose own cure reverts it, is left out. If none
is left, the cure is to remove the override that the problem is about, if that works: what a message
prints may therefore be another cure than the one that its rule has.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace

from launch.config.line import CommandLine, override_key
from launch.errors import UserError, ways_of
from launch.planning.plan import Plan
from launch.resources import GROUPS
from launch.worker.finding import Finding, Fix, Way

CURED_VERBS = ("run", "plan", "check", "submit")  # the verbs whose line can be planned
# A part of a cure that names other trainers, which does not help if the key is to be removed.
_OF_OTHERS = re.compile(r": '\w+' is a flag of .*")
# problems that a line in the words of other tools has
_OF_WORDS = frozenset(
    (
        *("unknown_verb", "misplaced_verb", "unknown_option", "not_an_override", "unknown_key"),
        *("several_values", "unreadable_override", "no_stage", "unknown_stage", "unknown_model"),
        *("unknown_data", "other_tool", "no_global_header"),
    )
)
_SECONDS = 2.0  # time limit for all of a line's cures; a plan takes 0.1 s


def apply_way(way: Way, line: CommandLine) -> CommandLine:
    """Return the line that follows the advice.

    The keys that it sets, and what it removes, are dropped first; an option is dropped with its
    value.
    """
    dropped_keys = changed_keys(way)
    kept: list[str] = []
    follows_dropped_option = False
    for argument in line.argv:
        has_value = "=" in argument
        is_option = argument.startswith("-")
        is_option_value = follows_dropped_option and not has_value and not is_option
        name = argument.partition("=")[0]
        is_dropped = name in dropped_keys or override_key(argument) in dropped_keys
        if not is_dropped and not is_option_value:
            kept.append(argument)
        follows_dropped_option = is_dropped and is_option and not has_value
    return replace(line, argv=(*kept, *way.sets), verb="plan")


def keys_of(way: Way) -> set[str]:
    """Return the keys of the overrides that a way sets."""
    return {override_key(override) for override in way.sets}


def changed_keys(way: Way) -> set[str]:
    """Return the keys and options that a way sets or removes."""
    return keys_of(way) | {way.removes} if way.removes else keys_of(way)


def exact_ways(cure: Fix | None) -> list[Way]:
    """Return the ways of a cure that leave no value to the reader."""
    return [way for way in ways_of(cure) if way.is_exact]


def explain_problems(
    argv: Sequence[str], line: CommandLine | None, problems: Sequence[Finding]
) -> list[Finding]:
    """Return what a line is answered: a line in the words of other tools has one answer, and each
    problem of any other one a cure that works. `line` is None if it could not be parsed.
    """
    is_of_torchtune = tuple(argv[:2]) == ("tune", "run")  # its own command; `tune` is a verb here
    is_planned = line is None or line.verb in (*CURED_VERBS, "preview") or is_of_torchtune
    has_stage = line is None or any(override_key(item) == "stage" for item in line.overrides)
    is_foreign = any(problem.id in _OF_WORDS for problem in problems) or not has_stage
    if is_planned and is_foreign:
        from launch.planning.other_tool_line import answer_line  # slow; few lines need it

        whole = answer_line(argv)
        if whole is not None:
            return [whole]
    return list(problems) if line is None else check_cures(line, problems)


def check_cures(line: CommandLine, problems: Sequence[Finding]) -> list[Finding]:
    """Return the problems, each with the part of its cure that works."""
    if line.verb not in CURED_VERBS:
        return list(problems)
    if line.sweeps:
        from launch.config.compose import expand_sweep

        line = expand_sweep(line)[0]  # the other settings of a sweep differ only in values
    end = time.monotonic() + _SECONDS
    return [_with_working_cure(line, problem, end) for problem in problems]


def check_advice(plan: Plan, problems: Sequence[Finding]) -> list[Finding]:
    """Return the findings on a plan, each with the part of its cure that works."""
    return check_cures(CommandLine("plan", False, plan.origins.overrides), problems)


def _with_working_cure(line: CommandLine, problem: Finding, end: float) -> Finding:
    """Return the problem with the ways that work; none is tried after `end` (time.monotonic)."""
    ways = exact_ways(problem.cure)
    obstacles: dict[Way, str | None] = {}
    for way in ways:
        is_late = time.monotonic() > end
        obstacles[way] = None if is_late else _find_obstacle(line, problem, way)
    working = [way for way in ways if obstacles[way] is None]
    if len(working) == len(ways):
        return problem
    if working:
        parts = []
        for index, way in enumerate(working):
            action = "set" if way.sets else "remove"
            parts.append(f"{action} {{{index}}}")
        return replace(problem, cure=Fix.of(", or ".join(parts), *working))
    return _with_removal(line, problem, ways[0], obstacles[ways[0]])


def _with_removal(line: CommandLine, problem: Finding, way: Way, obstacle: str | None) -> Finding:
    """Return the problem with the advice to remove its override, or with none if that fails, too.

    `obstacle` is why its own way does not work.
    """
    key = way.removes or (problem.where or "").removeprefix("override ")
    removal = Way(removes=key)
    is_set = key not in GROUPS and apply_way(removal, line).argv != line.argv
    if not is_set or _find_obstacle(line, problem, removal) is not None:
        return replace(problem, cure=None)
    is_guess = str(problem.cure).startswith("did you mean")
    reason = ""
    if obstacle and obstacle != problem.message and not is_guess:
        reason = f": {_OF_OTHERS.sub('', obstacle)}"
    return replace(problem, cure=Fix.of(f"remove {{0}}{reason}", removal))


def _find_obstacle(line: CommandLine, problem: Finding, way: Way) -> str | None:
    """Return why a way leads back to where it started; None if its line works.

    A line that meets another problem counts as working, unless the cure of that problem reverts the
    way.
    """
    from launch.config.compose import compose_once
    from launch.slurm.cluster import plan_with_cluster

    advised = apply_way(way, line)
    try:
        if advised.is_pipeline:
            from launch.pipelines.links import plan_pipeline

            plan_pipeline(advised, lambda text: None)
        elif problem in plan_with_cluster(compose_once(advised)).warnings:
            return problem.message
    except UserError as error:
        for after in error.problems:
            if _is_dead_end(after, problem, way):
                return after.message
    return None


def _is_dead_end(after: Finding, problem: Finding, way: Way) -> bool:
    """Whether the problem `after` a way is the same one, or advises to revert the way."""
    is_same_place = after.id == problem.id and after.where == problem.where
    if is_same_place and (not way.removes or after.message == problem.message):
        return True
    keys = changed_keys(way)  # a removed key may be refused with the stage's value, or without one
    is_about_it = any(_names_key(f"{after.where} {after.message}", key) for key in keys)
    # Ways that leave a value to the reader count as well.
    advised: set[str] = set()
    for advised_way in ways_of(after.cure):
        advised |= keys_of(advised_way)
    return is_about_it and (after.id.endswith("conflict") or not advised - keys)


def _names_key(text: str, key: str) -> bool:
    """Whether a text names a key, and not just a longer name that contains it."""
    return re.search(rf"(?<![\w.-]){re.escape(key)}(?![\w-])", text) is not None
