"""Reads the line of a search, and builds the line of each probe."""

from __future__ import annotations

from launch.config.line import CommandLine
from launch.config.trials import TuneConfig
from launch.errors import Problem, UserError
from launch.trials.request import expand_short_options, unsupported_problems
from launch.trials.tune.candidate import Candidate

SHORT = ("steps", "probes", "minutes", "dry_run")  # short for keys of the node `tune`


def read_request(line: CommandLine) -> CommandLine:
    """The line for Hydra, with `tune`'s short options as keys of its node.

    Raises UserError: tune_alone, duplicate_override.
    """
    problems = list(unsupported_problems(line, "tune", "it searches one stage at one width"))
    if problems:
        raise UserError(problems)
    return expand_short_options(line, "tune", SHORT)


def check_numbers(tune: TuneConfig) -> None:
    """Check the node `tune`. Raises UserError: bad_steps, bad_value."""
    problems = []
    if tune.skip < 0:
        message = f"skip must be 0 or greater, got {tune.skip}"
        problems.append(Problem("bad_steps", message, "tune.skip", "2 is the default"))
    elif tune.steps <= tune.skip:
        message = f"steps={tune.steps} measures nothing: the first {tune.skip} do not count"
        problems.append(Problem("bad_steps", message, "tune.steps", f"use {tune.skip + 1} or more; 8 is the default"))
    if tune.probes < 1:
        message = f"probes={tune.probes} measures nothing"
        problems.append(Problem("bad_value", message, "tune.probes", "use 1 or more, or dry_run=true"))
    if not 0 < tune.minutes < float("inf"):
        message = f"minutes must be a positive number, got {tune.minutes}"
        problems.append(Problem("bad_value", message, "tune.minutes", "10 is the default"))
    if not 0 <= tune.room < 1:
        message = f"room must be at least 0 and below 1, got {tune.room}"
        problems.append(Problem("bad_value", message, "tune.room", "0.05 is the default"))
    if problems:
        raise UserError(problems)


def line_for_candidate(line: CommandLine, candidate: Candidate) -> CommandLine:
    """The line with the candidate's keys in place of its own."""
    return line.without(*candidate.keys(), "parallel.mode", "name").with_overrides(*candidate.overrides())
