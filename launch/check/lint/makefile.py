"""Convert the recipes of Makefiles and justfiles to shell text that keeps the line numbers of the file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from launch.check.lint.shell_syntax import logical_lines

_ASSIGNMENT = re.compile(r"^(?:export[ \t]+|override[ \t]+)?([A-Za-z_][\w.-]*)[ \t]*(\?|\+|::?:?)?=[ \t]*(.*)$")
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)|\$\{([A-Za-z_][\w.-]*)\}")
_JINJA = re.compile(r"\{\{.*?\}\}")
MAX_EXPANDED = 100_000  # characters of one line after substitution


def makefile_as_shell(text: str) -> str:
    """Return the recipes of a Makefile; a variable that is assigned once is substituted, others stay unknown."""
    lines = list(logical_lines(text))
    variables = _read_variables(lines)
    shell: list[str] = []
    for parts in lines:
        if parts[0].startswith("\t"):
            first = parts[0].lstrip("\t ").lstrip("@-+")
            shell.extend(_substitute(line, variables) for line in (first, *parts[1:]))
        else:
            shell.extend("" for _ in parts)
    return "\n".join(shell)


def template_as_shell(text: str) -> str:
    """Return a justfile or Jinja template with each `{{...}}` replaced by an unknown variable."""
    return _JINJA.sub("${_}", text)


def _read_variables(lines: Iterable[list[str]]) -> dict[str, str]:
    values: dict[str, str] = {}
    assignments: Counter[str] = Counter()
    for first, *continuations in lines:
        match = _ASSIGNMENT.match(first)
        if match is not None and not first.startswith("\t"):
            name, operator = match.group(1), match.group(2)
            assignments[name] += 1 if operator in (None, ":", "::", ":::") else 2
            parts = [match.group(3), *continuations]
            values[name] = " ".join(part.rstrip("\\").strip() for part in parts)
    variables = {name: value for name, value in values.items() if assignments[name] == 1}
    for _ in range(5):  # values that refer to other variables
        variables = {name: _substitute(value, variables, for_shell=False) for name, value in variables.items()}
    return variables


def _substitute(line: str, variables: dict[str, str], for_shell: bool = True) -> str:
    """Replace the references to variables; `for_shell` also converts `$$` and unknown references to the shell's."""

    def value_of(match: re.Match[str]) -> str:
        if match.group() == "$$":
            return "$" if for_shell else "$$"
        name = match.group(1) or match.group(2)
        value = variables.get(name)
        if value is None or len(value) > MAX_EXPANDED:
            return "${" + re.sub(r"\W", "_", name) + "}" if for_shell else match.group()
        return value

    substituted = _REFERENCE.sub(value_of, line)
    return substituted if len(substituted) <= MAX_EXPANDED else line
