"""Cures that work: what a problem advises is planned, on the line at hand, before it is printed.

Advice that leads back to the same problem, or to one whose own advice takes it back, is left out; if none is left, what
is advised is to remove the override that the problem is about, where that plans.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from launch.config.line import CommandLine, override_key
from launch.config.origins import GROUPS
from launch.errors import Problem, UserError

VERBS = ("run", "plan", "check")  # their line is one that a plan takes
_SECONDS = 2.0  # for all of a line's cures; a plan takes 0.1
_OVERRIDE = r"[a-z_]+(?:\.\w+)*=(?:\[[^\]]*\]|'[^']*'|[^\s,;()?'\[]+)"
_OVERRIDES = re.compile(rf"(?<![\w./=-]){_OVERRIDE}(?: {_OVERRIDE})*")
# problems of what the line looks like: the rest of it cannot be planned while they are there
_OF_THE_LINE = frozenset(("spaces", "shell_split", "misplaced_verb", "unknown_option", "not_an_override"))
_PLACEHOLDER = re.compile(r"=[A-Z][A-Z/_]*\W?$|\.\.\.")


@dataclass(frozen=True)
class Way:
    """One way out of a problem: overrides to set, or the key of one to remove."""

    sets: tuple[str, ...] = ()
    removes: str | None = None

    def __str__(self) -> str:
        return " ".join(self.sets) or f"remove {self.removes}"

    @property
    def keys(self) -> set[str]:
        return {override_key(override) for override in self.sets}

    def apply(self, line: CommandLine, mistake: str = "") -> CommandLine:
        """Return the line that follows the advice, without the override of the key `mistake`."""
        gone = self.keys | {self.removes, mistake}
        overrides = set(line.overrides)
        kept = (argument for argument in line.argv if argument not in overrides or override_key(argument) not in gone)
        return replace(line, argv=(*kept, *self.sets), verb="plan")


def find_ways(cure: str | None) -> list[Way]:
    """Return the overrides that a cure advises to set; those with a placeholder (`name=NAME`) are for the reader, and
    what stands in backticks is a command."""
    text = re.sub(r"`[^`]*`", "", cure or "")
    ways = (Way(tuple(re.findall(_OVERRIDE, match[0]))) for match in _OVERRIDES.finditer(text))
    return [way for way in ways if way.sets and not any(_PLACEHOLDER.search(override) for override in way.sets)]


def check_cures(line: CommandLine, problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems, each with the part of its cure that works."""
    if not problems or line.verb not in VERBS or line.sweeps or any(word.startswith("pipeline=") for word in line.argv):
        return list(problems)
    end = time.monotonic() + _SECONDS
    return [_with_working_cure(line, problem, end) for problem in problems]


def _with_working_cure(line: CommandLine, problem: Problem, end: float) -> Problem:
    ways = find_ways(problem.cure)
    key = (problem.where or "").removeprefix("override ")
    if problem.id in _OF_THE_LINE or not ways:
        return problem
    named = re.match(r"there is no key '(\S+)'|([a-z_]+(?:\.\w+)*) has keys of its own", problem.message)
    if named:  # what is advised stands in its place
        key = named[1] or named[2]
    working = [way for way in ways if time.monotonic() > end or _works(line, problem, way, key)]
    if len(working) == len(ways):
        return problem
    if working:
        return replace(problem, cure=f"set {' or '.join(map(str, working))}")
    removal = Way(removes=key)
    is_set = key not in GROUPS and any(override_key(override) == key for override in line.overrides)
    return replace(problem, cure=str(removal) if is_set and not _plan(removal.apply(line)) else None)


def _works(line: CommandLine, problem: Problem, way: Way, mistake: str) -> bool:
    """Whether the line that follows a way plans, or meets another problem that does not take it back.

    The way is tried beside the override that the problem is about, and in its place.
    """
    for changed in (way.apply(line), way.apply(line, mistake)):
        if not any(_is_dead_end(after, problem, way) for after in _plan(changed)):
            return True
    return False


def _plan(line: CommandLine) -> Sequence[Problem]:
    """Return the problems of a line, none if it plans."""
    from launch.api.planning import plan_composed
    from launch.config.compose import compose_once

    try:
        plan_composed(compose_once(line))
    except UserError as error:
        return error.problems
    return ()


def _is_dead_end(after: Problem, problem: Problem, way: Way) -> bool:
    if (after.id, after.where) == (problem.id, problem.where):
        return True
    is_about_it = any(key in f"{after.where} {after.message}" for key in way.keys)
    advised = set(re.findall(r"[a-z_]+(?:\.\w+)*(?==)", after.cure or ""))  # with a placeholder, too
    return is_about_it and (after.id.endswith("conflict") or not advised - way.keys)
