"""Cures that work: what a problem advises is planned, on the line at hand, before it is printed.

Advice that leads back to the same problem, or to one whose own advice takes it back, is left out;
if none is left, what is advised is to remove the override that the problem is about, where that
plans.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from launch.config.line import CommandLine, override_key
from launch.errors import UserError, ways_of
from launch.planning.plan import Plan
from launch.resources import GROUPS
from launch.worker.finding import Finding, Fix, Way

VERBS = ("run", "plan", "check", "submit")  # their line is one that a plan takes
_SECONDS = 2.0  # for all of a line's cures; a plan takes 0.1


def apply_way(way: Way, line: CommandLine) -> CommandLine:
    """Return the line that follows the advice: without its keys and what it removes, an option with
    its value.
    """
    gone, kept = keys_of(way) | {way.removes}, list[str]()
    is_value = False  # of an option that is gone
    for argument in line.argv:
        is_gone = argument.partition("=")[0] in gone or override_key(argument) in gone
        if not is_gone and not (is_value and "=" not in argument and not argument.startswith("-")):
            kept.append(argument)
        is_value = is_gone and argument.startswith("-") and "=" not in argument
    return replace(line, argv=(*kept, *way.sets), verb="plan")


def keys_of(way: Way) -> set[str]:
    return {override_key(override) for override in way.sets}


def exact_ways(cure: Fix | None) -> list[Way]:
    """Return the ways of a cure that leave no value to the reader."""
    return [way for way in ways_of(cure) if way.is_exact]


def check_cures(line: CommandLine, problems: Sequence[Finding]) -> list[Finding]:
    """Return the problems, each with the part of its cure that works."""
    if line.verb not in VERBS:
        return list(problems)
    if line.sweeps:
        from launch.config.compose import expand_sweep

        line = expand_sweep(line)[0]  # the other settings differ in values
    end = time.monotonic() + _SECONDS
    return [_with_working_cure(line, problem, end) for problem in problems]


def check_advice(plan: Plan, problems: Sequence[Finding]) -> list[Finding]:
    """Return what is found about a plan, each with the part of its advice that works."""
    return check_cures(CommandLine("plan", False, plan.origins.overrides), problems)


def _with_working_cure(line: CommandLine, problem: Finding, end: float) -> Finding:
    ways = exact_ways(problem.cure)
    obstacles = {
        way: None if time.monotonic() > end else _find_obstacle(line, problem, way) for way in ways
    }
    working = [way for way in ways if obstacles[way] is None]
    if len(working) == len(ways):
        return problem
    if working:
        places = (
            f"{'set' if way.sets else 'remove'} {{{place}}}" for place, way in enumerate(working)
        )
        return replace(problem, cure=Fix.of(", or ".join(places), *working))
    key = ways[0].removes or (problem.where or "").removeprefix("override ")
    removal = Way(removes=key)
    is_set = key not in GROUPS and apply_way(removal, line).argv != line.argv
    works = is_set and _find_obstacle(line, problem, removal) is None
    why = obstacles[ways[0]]
    is_guess = str(problem.cure).startswith("did you mean")
    reason = f": {why}" if why and why != problem.message and not is_guess else ""
    return replace(problem, cure=Fix.of(f"remove {{0}}{reason}", removal) if works else None)


def _find_obstacle(line: CommandLine, problem: Finding, way: Way) -> str | None:
    """Return why a way leads back: what its line meets instead takes it back. None: it plans, or
    meets another.
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
        return next(
            (after.message for after in error.problems if _is_dead_end(after, problem, way)), None
        )
    return None


def _is_dead_end(after: Finding, problem: Finding, way: Way) -> bool:
    if (after.id, after.where) == (problem.id, problem.where):
        return not way.removes or after.message == problem.message
    keys = keys_of(way)
    is_about_it = any(key in f"{after.where} {after.message}" for key in keys)
    # with a value left to the reader, too
    advised = set().union(*map(keys_of, ways_of(after.cure)))
    return is_about_it and (after.id.endswith("conflict") or not advised - keys)
