"""Checks the overrides of a command line before Hydra reads them: what it would misread is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile, zip_longest
from pathlib import Path

from launch.config.line import (
    MULTIRUN,
    NAME_AFTER_FILE,
    SHOWING_OPTIONS,
    VALUE_OPTIONS,
    CommandLine,
    is_bare_word,
    override_key,
    set_twice,
)
from launch.errors import UserError, did_you_mean
from launch.resources import GROUPS, config_roots, group_options
from launch.worker.finding import Finding, Fix

_NOT_A_NAME = re.compile(
    r"null|true|false|[-+]?[\d.]+(?:e[-+]?\d+)?|[\[{].*", re.IGNORECASE | re.DOTALL
)
_END = "\0"  # separates arguments
# `key = value`, `key =value`, `key= value`
_SPACES = re.compile(
    rf"(?<![^{_END}])[^{_END}]*?(?:{_END}={_END}?|={_END}(?![^{_END}]*=))[^{_END}]+"
)
# a comma outside quotes and brackets
_BARE_COMMA = re.compile(
    r"""^(?:[^'"\[\](){},]|'[^']*'|"[^"]*"|\[.*\]|\{.*\}|\(.*\))*,""", re.DOTALL
)


def check_overrides(line: CommandLine) -> None:
    """Reject overrides that Hydra would misread.

    A comma list outside brackets is a sweep and needs `sweep=true`; an argument without `=` is not
    an override. Hydra's own settings are refused: they write folders, or are ignored.

    Raises UserError, with all of them: unknown_option, duplicate_override, not_an_override,
    several_values, reserved_key; shell_split, spaces, bad_value, unknown_tuned.
    """
    split = _find_split(line.overrides) or _find_spaces(line.overrides)
    if split:
        raise UserError(split)
    problems, option_values = _find_unknown_options(line)
    values: dict[str, str] = {}
    previous = ""
    for override in line.overrides:
        if override in option_values:
            continue
        key = override_key(override)
        value = override.partition("=")[2]
        if key in values:
            problems.append(_repeated_key(key, values[key] + value))
        values[key] = value
        problem = _name_behind_file(key, value) or _override_problem(line, override, previous)
        if problem is not None:
            problems.append(problem)
        previous = override
    if problems:
        raise UserError(problems)


def _repeated_key(key: str, values: str) -> Finding:
    """Return the problem of a key that is set twice: by the user, or as the shell expanded braces.

    `values` are the two values, one after the other.
    """
    has_two_lists = values.count("[") == values.count("]") == 2
    if not has_two_lists or ":" not in values:
        return set_twice(key)
    message = f"'{key}' is set twice: the shell expands braces outside quotes"
    cure = f"quote the whole argument: '{key}=[{{name: X}}]'"
    return Finding.error("shell_split", message, f"override {key}", cure)


def _override_problem(line: CommandLine, override: str, previous: str) -> Finding | None:
    """Return the problem of one override; `previous` is the override before it."""
    key = override_key(override)
    value = override.partition("=")[2]
    if re.match(r"hydra\b", key):
        return hydra_problem(key, f"override {key}")
    is_override = "=" in override or override.startswith("~")
    if not key or not is_override:
        message = f"'{override}' is not a key=value override"
        cure = _explain_bare_word(override, previous)
        return Finding.error("not_an_override", message, "command line", cure)
    if key in GROUPS and _NOT_A_NAME.fullmatch(value):
        from launch.config.other_tools import explain_value

        cure = explain_value(key, value)
        if cure is None and value.startswith("["):
            cure = Fix("add sweep=true and write stage=A,B to run each")
        message = f"{key}={value} must be the name of a file of configs/tulu"
        return Finding.error("bad_value", message, None, cure or "set its name")
    overlays = group_options("tuned") if key == "tuned" else []
    if key == "tuned" and not line.sweeps and value.strip("'\"") not in overlays:
        message = f"there is no overlay '{value}' in {config_roots()[0] / 'tuned'}"
        near = did_you_mean(value, overlays, prefix="tuned=")
        where = f"override {override}"
        return Finding.error("unknown_tuned", message, where, near or "`tune` writes one")
    if not line.sweeps and _BARE_COMMA.match(value):
        from launch.config.other_tools import explain_name

        named = None if key.startswith("flags.") else explain_name(key, value)
        message = f"'{line.verb}' takes one value"
        cure = named or _one_value(key, value)
        return Finding.error("several_values", message, f"override {key}", cure)
    return None


def _name_behind_file(key: str, value: str) -> Finding | None:
    """Return the problem of `data=rows.jsonl:alpaca`, as axolotl has it, where rows.jsonl is a file."""
    name = value.removeprefix("[{name: ").removesuffix("}]")  # as launch.config.shorthand writes it
    behind = NAME_AFTER_FILE.fullmatch(name) if key in ("data", "data.mix") else None
    if behind is None or not Path(behind[1]).is_file() or Path(name).exists():
        return None
    message = f"there is no file {name}: the form of rows is recognised by their columns"
    cure = Fix.of("set {0}", f"data={behind[1]}")
    return Finding.error("bad_value", message, f"override {key}", cure)


def _explain_bare_word(word: str, previous: str) -> Fix | None:
    """Return what an argument without `=` may be: the cure for it."""
    from launch.config.other_tools import explain_name

    if word in group_options("stage"):
        return Fix(f"a stage is set as stage={word}")
    named = explain_name(word, None)
    if named is not None or not previous:
        return named
    return Fix(f"if it belongs to the value before it, quote both: '{previous} {word}'")


# The cure for a comma list where one value is expected, by key.
_ONE_VALUE_CURES = {
    "stage": "set one stage, or add sweep=true to run each in turn",
    "pipeline": "set stage=; `run`, `plan`, `check` and `submit` take a pipeline",
    "gpus": "set one width, add sweep=true to run each, or use rollout, which puts gates between "
    "them",
}


def _one_value(key: str, value: str) -> Fix:
    """Return the cure for a comma list where one value is expected."""
    if value.endswith(","):
        return Fix.of("remove the comma: {0}", f"{key}={value.rstrip(',')}")
    if key == "gpus" and value.startswith("0,"):  # the numbers of GPUs, not several widths
        width = f"gpus={len(value.split(','))}"
        return Fix.of("set {0}, after {1}", width, f"$ export CUDA_VISIBLE_DEVICES={value}")
    if re.fullmatch(r"0,\d+", value):
        return Fix.of("write {0}", f"{key}={value.replace(',', '.')}")
    if key in _ONE_VALUE_CURES:
        return Fix(_ONE_VALUE_CURES[key])
    sweep = "add sweep=true to run each value in turn"
    if key.startswith(("flags.", "cluster.")):
        return Fix(f"write a list as '{key}=[{value}]', or {sweep}")
    return Fix(sweep)


def _find_unknown_options(line: CommandLine) -> tuple[list[Finding], list[str]]:
    """Find options that neither the verb nor Hydra has. Hydra would print its own usage for them.

    Also returns the arguments that are such an option's value, as in `--learning_rate 1e-5`.
    """
    problems: list[Finding] = []
    values: list[str] = []
    hydra_options = set(MULTIRUN)
    if line.asks_hydra:
        hydra_options |= {*SHOWING_OPTIONS, *VALUE_OPTIONS, "--resolve"}
    is_value = False  # whether the argument is the value of an option of Hydra's
    for argument, following in zip_longest(line.argv, line.argv[1:], fillvalue=""):
        name, equals, value = argument.partition("=")
        if not is_value and argument.startswith("-") and name not in hydra_options:
            if not equals:
                value = "true"
                is_stage = name != "--stage" and following in group_options("stage")
                if following and is_bare_word(following) and not is_stage:
                    value = following
                    values.append(following)
            message = f"'{line.verb}' has no option {name}"
            cure = _explain_option(name, value)
            problems.append(Finding.error("unknown_option", message, "command line", cure))
        is_value = not is_value and argument in VALUE_OPTIONS
    return problems, values


def _explain_option(name: str, value: str) -> Fix | str | None:
    """Return what to write in place of an unknown option: a key, another option or a flag."""
    from launch.config.other_tools import explain_like, explain_name, trainer_flag

    exact = explain_name(name, value)
    if exact is not None:
        return exact
    near = did_you_mean(name, ("--json", "--help", "--version"), cutoff=0.66)
    return near or explain_like(name, value) or trainer_flag(name, value)


def hydra_problem(key: str, where: str) -> Finding:
    """Return the problem of a setting of Hydra itself, such as `hydra.run.dir`, which `launch`
    sets.
    """
    from launch.config.other_tools import explain_name

    message = f"{key} cannot be set: launch sets it"
    return Finding.error("reserved_key", message, where, explain_name(key, None) or "remove it")


def _find_split(overrides: Sequence[str]) -> list[Finding]:
    """Find an argument that the shell split at its spaces: a bracket that opens in one and closes
    in another.
    """
    for start, override in enumerate(overrides, 1):
        if "=" not in override or _count_open(override) <= 0:
            continue
        rest = takewhile(_sets_nothing, overrides[start:])
        whole = " ".join([override, *rest])
        if _count_open(whole) <= 0:
            message = f"the shell split {whole} at its spaces"
            return [Finding.error("shell_split", message, "command line", f"quote it: '{whole}'")]
    return []


def _sets_nothing(argument: str) -> bool:
    return re.match(r"[^=\s]+=", argument) is None


def _find_spaces(overrides: Sequence[str]) -> list[Finding]:
    """Find spaces around a `=`, which make three arguments of one: `stage = demo`."""
    spaced = _SPACES.search(_END.join(overrides))
    if spaced is None:
        return []
    message = f"'{spaced[0].replace(_END, ' ')}' has spaces around its ="
    cure = f"write {spaced[0].replace(_END, '')}"
    return [Finding.error("spaces", message, "command line", cure)]


def _count_open(text: str) -> int:
    """Count the brackets that are open at the end of a text; those in quotes do not count."""
    unquoted = re.sub(r"""'[^']*'|"[^"]*\"""", "", text)
    opened = unquoted.count("[") + unquoted.count("{")
    closed = unquoted.count("]") + unquoted.count("}")
    return opened - closed
