"""Convert Makefiles, justfiles, Dockerfiles and templates to shell text with the same lines."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from launch.check.lint.shell import find_commands, line_lookup
from launch.check.lint.shell_syntax import logical_lines
from launch.check.lint.trainer_commands import MARKER, ScanResult, merge_scans, not_followed

_ASSIGNMENT = re.compile(
    r"^(?:export[ \t]+|override[ \t]+)?([A-Za-z_][\w.-]*)[ \t]*(\?|\+|::?:?)?=[ \t]*(.*)$"
)
_OF_TARGET = re.compile(r"^[^\t#=:][^#=:]*:[ \t]*([A-Za-z_][\w.-]*)[ \t]*[?+:]*=")
_INLINE = re.compile(r"^[^\t#=:][^#=:]*::?[^=#;:]*;[ \t]*")  # `target: prerequisites; command`
_REFERENCE = re.compile(
    r"\$\$|\$\(([A-Za-z_][\w.-]*)\)|\$\{([A-Za-z_][\w.-]*)\}|\$[@<^*?+%|]|\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
)
_CONDITION = re.compile(r"\s*(?:(ifn?def|ifn?eq)|(endif))\b")
# Directives that may assign any variable.
_OPEN = re.compile(r"^[ \t]*(?:-?s?include\b|\$\(eval\b)", re.MULTILINE)
_JINJA = re.compile(r"\{\{.*?\}\}")
_TAG_IN_COMMAND = re.compile(r"(?<=\\\n)[ \t]*\{%.*?%\}[ \t]*(?=\n[ \t]*(-|\{%)?)")
_TAG = re.compile(r"\{%.*?%\}")
_EXEC_FORM = re.compile(r"[ \t]*(CMD|ENTRYPOINT|RUN)[ \t]+(\[.*\])[ \t]*")
_STAGE = re.compile(r"[ \t]*FROM[ \t]", re.IGNORECASE)
_MAX_EXPANDED = 100_000  # characters of one line after substitution


def find_in_makefile(text: str, first: int, is_makefile: bool = True) -> ScanResult:
    """Find the commands in the recipes of a Makefile that starts on line `first`.

    Each line of a recipe has its own shell. A variable that is assigned once, under no condition,
    is substituted; others stay unknown. A trainer that is named outside the recipes is not
    followed.
    """
    lines = list(logical_lines(text))
    variables: dict[str, str] = {}
    if is_makefile and _OPEN.search(text) is None:
        variables = _read_variables(lines)
    is_one_shell = ".ONESHELL" in text
    recipes: list[tuple[int, str]] = []  # the 1-based line where the shell's text starts, the text
    scans: list[ScanResult] = []
    number = first
    for parts in lines:
        command = _recipe_command(parts[0], is_makefile)
        if command is not None:
            shell_lines = [command, *parts[1:]]
            if is_makefile:
                shell_lines = [_substitute(line, variables) for line in shell_lines]
            shell = "\n".join(shell_lines)
            continues_recipe = recipes and (is_one_shell or recipes[-1][1].startswith("#!"))
            if continues_recipe:
                start, before = recipes.pop()
                blank_lines = "\n" * (number - start - before.count("\n"))
                recipes.append((start, before + blank_lines + shell))
            else:
                recipes.append((number, shell))
        elif _names_unfollowed_trainer(parts, variables, text):
            scans.append(not_followed("a trainer is named outside of the recipes", number))
        number += len(parts)
    scans += [find_commands(shell, line_lookup(shell, start)) for start, shell in recipes]
    return merge_scans(scans)


def _recipe_command(line: str, is_makefile: bool) -> str | None:
    """Return the command in a line of a recipe; None for a line outside of the recipes."""
    inline = _INLINE.match(line) if is_makefile else None
    if inline is not None:
        return line[inline.end() :]
    indents = ("\t",) if is_makefile else ("\t", " ")
    if not line.startswith(indents):
        return None
    return line.lstrip("\t ").lstrip("@-+")


def _names_unfollowed_trainer(
    parts: Sequence[str], variables: Mapping[str, str], text: str
) -> bool:
    """Return True if a line outside the recipes names a trainer, but not in a variable's value.

    The value of a variable that is substituted is followed in the recipes.
    """
    if MARKER.search(" ".join(parts)) is None or parts[0].startswith("#"):
        return False
    if parts[0].startswith("export") or "$(shell" in parts[0]:
        return True
    assignment = _ASSIGNMENT.match(parts[0])
    if assignment is None:
        return True
    name = assignment.group(1)
    return name not in variables or f"call {name}" in text


def find_in_justfile(text: str, first: int) -> ScanResult:
    """Find the commands in the recipes of a justfile, whose variables are unknown."""
    return find_in_makefile(_JINJA.sub("${_}", text), first, is_makefile=False)


def template_as_shell(text: str) -> str:
    """Return a Jinja template as shell text.

    Each `{{...}}`, and each `{%...%}` inside of a command, becomes an unknown variable.
    """

    def as_variable(match: re.Match[str]) -> str:
        return "${_} \\" if match.group(1) else "${_}"

    text = _JINJA.sub("${_}", text)
    text = _TAG_IN_COMMAND.sub(as_variable, text)
    return _TAG.sub("", text)


def dockerfile_as_shell(text: str) -> str:
    """Return a Dockerfile with the lists of CMD, ENTRYPOINT and RUN as commands.

    The list of CMD is the arguments of the ENTRYPOINT of its stage, which gets unknown ones
    without it.
    """
    shell: list[str] = []
    stage: dict[str, int] = {}  # the indices in `shell` of the stage's instructions with a list
    for parts in logical_lines(text):
        joined = " ".join(part.removesuffix("\\") for part in parts)
        if _STAGE.match(joined) is not None:
            _give_arguments(shell, stage)
            stage = {}
        lines = parts
        match = _EXEC_FORM.fullmatch(joined)
        with suppress(ValueError, TypeError):  # the text in brackets is not a list of strings
            if match is not None:
                instruction, words = match.groups()
                empty_lines = [""] * (len(parts) - 1)  # the line numbers stay
                lines = [f"{instruction} {shlex.join(json.loads(words))}", *empty_lines]
                stage[instruction] = len(shell)
        shell.extend(lines)
    _give_arguments(shell, stage)
    return "\n".join(shell)


def _give_arguments(shell: list[str], stage: Mapping[str, int]) -> None:
    """Move the words of a stage's CMD behind those of its ENTRYPOINT."""
    if "ENTRYPOINT" not in stage:
        return
    arguments = '"$@"'
    if "CMD" in stage:
        arguments = shell[stage["CMD"]].removeprefix("CMD ")
        shell[stage["CMD"]] = ""
    shell[stage["ENTRYPOINT"]] += f" {arguments}"


def _read_variables(lines: Iterable[list[str]]) -> dict[str, str]:
    """Return the values of the variables that a Makefile assigns once, under no condition."""
    values: dict[str, str] = {}
    unknown: set[str] = set()
    depth = 0  # number of enclosing conditions
    for first, *continuations in lines:
        condition = _CONDITION.match(first)
        if condition is not None:
            depth += 1 if condition.group(1) else -1
        target_variable = _OF_TARGET.match(first)
        if target_variable:
            unknown.add(target_variable.group(1))
        match = _ASSIGNMENT.match(first)
        if match is not None and not first.startswith("\t"):
            name = match.group(1)
            operator = match.group(2)
            if name in values or operator in ("?", "+") or depth > 0:
                unknown.add(name)
            parts = [match.group(3), *continuations]
            values[name] = " ".join(part.rstrip("\\").strip() for part in parts)
    variables = {name: value for name, value in values.items() if name not in unknown}
    for _ in range(5):  # values that refer to other variables
        variables = {
            name: _substitute(value, variables, for_shell=False)
            for name, value in variables.items()
        }
    return variables


def _substitute(line: str, variables: Mapping[str, str], for_shell: bool = True) -> str:
    """Replace the references to variables.

    `for_shell` also converts `$$` and unknown references to those of the shell.
    """

    def value_of(match: re.Match[str]) -> str:
        source = match.group()
        if source == "$$":
            return "$" if for_shell else "$$"
        name = match.group(1) or match.group(2)
        value = variables.get(name) if name else None
        if value is not None and len(value) <= _MAX_EXPANDED:
            return value
        # A `$(shell ...)` that starts a trainer is kept.
        is_kept = not for_shell or (name is None and MARKER.search(source) is not None)
        if is_kept:
            return source
        unknown_name = re.sub(r"\W+", "_", source[1:].strip("(){}"))
        return f"${{_{unknown_name}}}"

    substituted = _REFERENCE.sub(value_of, line)
    return substituted if len(substituted) <= _MAX_EXPANDED else line
