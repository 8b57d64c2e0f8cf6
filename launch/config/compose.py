"""Composes configurations with Hydra, which searches the user's folder first."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from omegaconf import OmegaConf

from launch.config import hydra_api
from launch.config.group_files import known_option
from launch.config.line import MULTIRUN, CommandLine
from launch.config.origins import Origins
from launch.config.override_checks import check_overrides
from launch.config.quoting import quote_value
from launch.config.schema import RootConfig
from launch.config.shorthand import expand
from launch.config.token_batch import resolve_global_batch
from launch.config.unknown_keys import find_unknown_keys
from launch.config.validate import validate
from launch.errors import EXIT_DONE, UserError
from launch.resources import GROUPS, config_roots
from launch.terminal import echo, notify
from launch.worker.finding import Finding

# A guard that is switched off; for OmegaConf a node can be null, but not false.
_GUARD_OFF = re.compile(r"^(guards(?:\.\w+)?)=(?:false|off)$", re.IGNORECASE)

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Composed:
    """One composed configuration."""

    config: RootConfig
    plain: Mapping[str, Any]  # the same as plain data, interpolations resolved
    origins: Origins  # where each value is set

    @property
    def stage(self) -> str:
        return self.origins.stage


def compose(line: CommandLine, task: Callable[[Composed], int]) -> int:
    """Compose the configuration of a command line and pass it to `task`; those of a sweep one after
    another.

    Returns the first exit code that is not 0. Raises UserError for whatever Hydra or OmegaConf
    rejects, and for what `task` refuses. All configurations of a sweep are composed before `task`
    is called.
    """
    if line.asks_hydra:
        return _show(line)
    if not line.sweeps:
        return task(compose_once(line))
    codes = map_all(compose_all(line), task)
    return next((code for code in codes if code), EXIT_DONE)


def _show(line: CommandLine) -> int:
    """Print Hydra's answer to --help or --cfg. Secrets are masked, as `--resolve` reads the
    environment.
    """
    with _hydra_arguments(line) as argv:
        shown = hydra_api.answer_of_hydra(argv)
    echo(shown, end="")
    return EXIT_DONE


def compose_all(line: CommandLine) -> list[Composed]:
    """Compose every configuration of a sweep. Raises UserError with the problems of all of them."""
    return map_all(expand_sweep(line), compose_once)


def expand_sweep(line: CommandLine) -> list[CommandLine]:
    """Return a line for each combination of the values of its comma lists, if it sweeps; the values
    of the last list vary fastest.
    """
    if not line.sweeps:
        return [line]
    with hydra_api.initialized():
        choices = [_expand_override(override) for override in line.overrides]
    removed = {*line.overrides, *MULTIRUN}
    options = [argument for argument in line.argv if argument not in removed]
    combinations = itertools.product(*choices)
    return [replace(line, argv=(*combination, *options)) for combination in combinations]


def _expand_override(override: str) -> list[str]:
    """Return an override for each value of a comma list. Any other override is returned as it is,
    and so is one that Hydra cannot parse.
    """
    parsed = hydra_api.parse_override(quote_value(override, sweeps=True))
    if parsed is None:  # is explained when it is composed
        return [override]
    return [f"{parsed.key}={choice}" for choice in parsed.choices] or [override]


def map_all(items: Iterable[T], function: Callable[[T], R]) -> list[R]:
    """Call the function with every item. Raises UserError with the problems of all, each once."""
    results: list[R] = []
    problems: list[Finding] = []
    for item in items:
        try:
            results.append(function(item))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)
    return results


def compose_once(line: CommandLine) -> Composed:
    """Compose the one configuration of a command line without options.

    Raises UserError for whatever Hydra or OmegaConf rejects.
    """
    with _hydra_arguments(line) as argv:
        config, choices = hydra_api.compose_argv(argv)
        chosen = {group: option for group, option in choices.items() if group in GROUPS and option}
        if "trainer" in chosen:
            chosen["trainer"] = _known_trainer(chosen["trainer"])
        origins = Origins(overrides=tuple(argv), choices=chosen)
        resolve_global_batch(config, origins)
        plain: Any = OmegaConf.to_container(
            config, resolve=True, throw_on_missing=True, enum_to_str=True
        )
        typed = OmegaConf.to_object(config)
    assert isinstance(typed, RootConfig)
    problems = [*find_unknown_keys(origins.overrides), *validate(typed, plain, origins)]
    if problems:
        raise UserError(problems)
    return Composed(typed, plain, origins)


def _known_trainer(chosen: str) -> str:
    """Return launch's name of the chosen trainer; print a notice if upstream has another name for
    it.
    """
    known = known_option("trainer", chosen, config_roots())
    if known != chosen:
        _notify_of_name(chosen, known)
    return known


@cache
def _notify_of_name(chosen: str, known: str) -> None:
    """Print that launch has another name for a trainer, once in a process."""
    notify(f"trainer={chosen} is upstream's new name of trainer={known}, which runs")


@contextmanager
def _hydra_arguments(line: CommandLine) -> Iterator[list[str]]:
    """Yield the arguments of a line as Hydra takes them. What it rejects is raised as UserError."""
    line = expand(line)
    check_overrides(line)
    overrides = set(line.overrides)
    argv = []
    for override in line.overrides:
        with_null = _GUARD_OFF.sub(r"\1=null", override)
        argv.append(quote_value(with_null, sweeps=line.sweeps))
    argv += [argument for argument in line.argv if argument not in overrides]  # options come last
    try:
        with hydra_api.initialized():
            yield argv
    except hydra_api.COMPOSE_ERRORS as error:
        from launch.config.compose_errors import explain

        raise explain(error, line, argv[: len(line.overrides)]) from error
