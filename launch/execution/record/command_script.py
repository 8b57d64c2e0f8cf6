"""Write a run's command as a bash script that a person can read, run and change."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.redact import process_redactor


def render_command_script(argv: Sequence[str], env: Mapping[str, str], unset: Sequence[str], cwd: Path | None) -> str:
    """Return the script's text, without secrets: a variable that holds one must be in the caller's environment.

    `unset` has names, or prefixes that end in `*`.
    """
    from launch.planning.command import quote_argument  # its classes are slow to import, and readers need none

    redactor = process_redactor()
    lines = ["#!/usr/bin/env bash", "set -euo pipefail", ""]
    lines += [f"unset {_unset_argument(name)}" for name in unset]
    for name, value in env.items():
        clean = redactor.redact_value(name, value)
        if clean == value:
            lines.append(f"export {name}={shlex.quote(value)}")
        else:
            lines.append(f': "${{{name}:?export it first; its value is a secret and not stored here}}"')
    if cwd is not None:
        lines.append(f"cd {shlex.quote(str(cwd))}")
    command = _split_lines([quote_argument(argument) for argument in redactor.redact_argv(argv)])
    return "\n".join([*lines, "", " \\\n    ".join(command), ""])


def _unset_argument(name: str) -> str:
    return f"${{!{name[:-1]}@}}" if name.endswith("*") else name


def _split_lines(arguments: Sequence[str]) -> list[str]:
    """Put each flag and its values on a line of their own."""
    lines: list[list[str]] = [[]]
    for index, argument in enumerate(arguments):
        if index and (argument.startswith("--") or (argument.startswith("-") and not argument[1:2].isdigit())):
            lines.append([])
        lines[-1].append(argument)
    return [" ".join(line) for line in lines]
