"""Reads the line of a bench, `[common] -- [A's overrides] -- [B's overrides]`, and builds the line of each setting."""

from __future__ import annotations

from dataclasses import dataclass, replace

from launch.config.line import CommandLine, override_key
from launch.errors import Problem, UserError
from launch.trials.request import expand_short_options, unsupported_problems

SIDES = ("a", "b")
# short for keys of the node `bench`
SHORT = ("steps", "warmup", "repeats", "order", "max_minutes", "loss_tolerance")
# set before the first `--`: they belong to the bench, not to one setting
_COMMON = (*SHORT, "name", "runs", "cache", "restart", "allow")
SEPARATOR = "--"
_USAGE = "bench stage=S [common] -- [A's overrides] -- [B's overrides]"


@dataclass(frozen=True)
class BenchRequest:
    """The command line of a bench, read."""

    common: CommandLine  # of both settings
    own: tuple[tuple[str, ...], tuple[str, ...]]  # the overrides of A alone, and of B alone

    def line(self, side: int) -> CommandLine:
        """The line of A (0) or B (1); a setting's own override replaces the common one."""
        own = self.own[side]
        keys = {override_key(override) for override in own}
        keys |= {f"{key}.mode" for key in keys if key == "parallel"}  # choosing a group sets its keys anew
        return self.common.without(*keys).with_overrides(*own)


def read_request(line: CommandLine) -> BenchRequest:
    """Split the line at its `--`. Raises UserError: bench_settings, bench_alone, bench_common, duplicate_override."""
    parts: list[list[str]] = [[]]
    for word in line.argv:
        if word == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(word)
    if len(parts) != 3:
        given = {1: "no settings: there is no `--`", 2: "one setting: there is one `--`"}
        message = f"bench compares two settings and got {given.get(len(parts), f'{len(parts) - 1} of them')}"
        raise UserError(Problem("bench_settings", message, "command line", f"use {_USAGE}"))
    common, a, b = parts
    problems = list(unsupported_problems(line, "bench", "it runs two settings in turn"))
    for name, arguments in zip(SIDES, (a, b), strict=True):
        for argument in arguments:
            key = override_key(argument)
            if key in _COMMON or key.startswith("bench."):
                message = f"{key}= applies to the whole bench, not to setting {name.upper()} alone"
                problems.append(Problem("bench_common", message, f"override {key}", "move it before the first `--`"))
            elif argument.startswith("-"):
                message = f"'{argument}' is not an override of setting {name.upper()}"
                problems.append(Problem("bench_common", message, "command line", "move it before the first `--`"))
    if problems:
        raise UserError(problems)
    return BenchRequest(expand_short_options(replace(line, argv=tuple(common)), "bench", SHORT), (tuple(a), tuple(b)))
