"""The shell variables whose value a text determines.

A variable is known at a use if the text assigns it exactly once, at the top level (no loop, branch,
function, substitution, pipeline), before the use, and nothing in between could assign it invisibly
(`source`, `eval`). What `+=` appends at the top level counts as a part of that assignment. Any other
variable is unknown, which is always safe.

All variables of a text are unknown if it has a nameref, or a function that assigns a name which it
computes. If a text assigns IFS, the words that IFS splits are unknown.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from launch.check.lint.launchers import NON_RUNNERS
from launch.check.lint.shell_syntax import (
    ASSIGNS,
    Argument,
    Piece,
    ShellDocument,
    ShellWord,
    SimpleCommand,
    literal_word,
    parse_default,
)
from launch.check.lint.trainer_commands import MARKER

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+)?=")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED_NAME = re.compile(r"[A-Za-z_]\w*(?=\[|\+?=|$)")
_DECLARING = frozenset({"export", "declare", "typeset", "readonly", "local"})
_READING = frozenset(
    {"read", "mapfile", "readarray", "unset", "getopts", "printf", "wait", "for", "select"}
)
# Options whose value is not the name of a variable.
_TAKES_VALUE = {
    "read": re.compile(r"-[a-z]*[pdntuNi]"),
    **dict.fromkeys(("mapfile", "readarray"), re.compile(r"-[a-z]*[dnOsuCc]")),
}
_SETS_IN_ARITHMETIC = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)|(?:<<|>>)=")
_SETS_NAMED = re.compile(r"\$\{?\w+\}?\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)")
_EXPRESSION = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)")
_SUBSCRIPT = re.compile(r"\[[^]@*]|:[^-+=?]")
# Variables that bash assigns.
_SPECIAL = re.compile(r"S?RANDOM|SECONDS|LINENO|EPOCH\w+|(?:OLD)?PWD|REPLY|OPTARG|OPTIND")
# Variables that nearly every environment sets.
_ALWAYS_SET = re.compile(r"HOME|USER|LOGNAME|PATH|SHELL|TERM|HOSTNAME|LANG|TMPDIR|IFS")
_LIST = re.compile(r"\$\{?[@*]")
_PARAMETER = re.compile(r"\$\{?[@*1-9]")
VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_TRAPS = frozenset({"DEBUG", "ERR", "RETURN"})  # traps that run between the commands of the text


@dataclass
class Variables:
    """The variables of a text; with no assignments recorded, every variable is unknown."""

    line_of: Callable[[int], int]  # from a character offset of the text to its 1-based line
    # The last value of each name, at its place in the text.
    values: dict[str, ShellWord] = field(default_factory=dict)
    # The names that are assigned twice, or not at the top level.
    unknown: set[str] = field(default_factory=set)
    # Every value that the text gives to a name, wherever it stands.
    parts: dict[str, list[ShellWord]] = field(default_factory=dict)
    # Offsets where any variable may be assigned invisibly.
    barriers: list[int] = field(default_factory=list)
    expanded: dict[Piece, list[Argument | None] | None] = field(default_factory=dict)
    characters: int = 0  # length of all expansions so far, a repeated one each time
    is_opaque: bool = False  # any variable may be assigned anywhere
    # Messages about commands that change the meaning of others, by their offsets.
    doubts: dict[int, str] = field(default_factory=dict)
    # The names of the variables whose value mentions a trainer.
    trainer_commands: set[str] = field(default_factory=set)
    has_own_ifs: bool = False  # words may be split elsewhere than at blanks
    # The functions of a text in which one of them changes the arguments that it passes on.
    functions: frozenset[str] = frozenset()

    def find_value(self, name: str, offset: int) -> ShellWord | None:
        """Return the value that `name` has where it is used at `offset`.

        None is returned if the text does not determine it.
        """
        if self.is_opaque or name in self.unknown or _SPECIAL.fullmatch(name):
            return None
        value = self.values.get(name)
        if value is None or value.start >= offset:
            return None
        first_barrier = bisect_right(self.barriers, value.start)
        barriers_between = bisect_right(self.barriers, offset) - first_barrier
        return None if barriers_between else value

    def is_never_assigned(self, name: str, offset: int) -> bool:
        """Return whether the text leaves `name` to the environment, up to its use at `offset`.

        So it is in the only value that it gets: `X=${X:-1}`.
        """
        value = self.values.get(name)
        is_own = value is not None and value.start == offset and len(self.parts[name]) == 1
        if self.is_opaque or name in self.unknown or not (value is None or is_own):
            return False
        is_from_shell = _SPECIAL.fullmatch(name) or _ALWAYS_SET.fullmatch(name)
        return not is_from_shell and not bisect_right(self.barriers, offset)


def collect_variables(
    document: ShellDocument,
    line_of: Callable[[int], int],
    outer_functions: frozenset[str] = frozenset(),
) -> Variables:
    """Collect every assignment of the text, and every place where an invisible one may happen.

    `outer_functions` are the functions of the text that contains this one.
    """
    variables = Variables(line_of, functions=outer_functions)
    defined = [defined_function(command) for command in document.commands]
    functions = frozenset(name for name in defined if name is not None)
    if any(map(_changes_arguments, document.commands)):
        variables.functions |= functions
    for command in document.commands:
        barriers = len(variables.barriers)
        _record_assignments(command, variables)
        has_barrier = len(variables.barriers) > barriers
        if has_barrier and command.depth and functions:
            variables.is_opaque = True  # a function is called later than it is written
        program = without_prefix(command.words)[:1]
        if program and program[0].text in functions:
            _mark_names(filter(is_assignment, command.words), variables)  # `X=2 function`
    for offset, source in document.arithmetic:
        _mark_arithmetic(variables, source, offset)
    variables.barriers.sort()
    variables.has_own_ifs = "IFS" in variables.unknown | variables.values.keys()
    return variables


def defined_function(command: SimpleCommand) -> str | None:
    """Return the name of the function that the command defines; None if it defines none."""
    if command.words[0].text == "function":
        return command.words[-1].text
    if command.after == "(" and len(command.words) == 1:
        return command.words[0].text
    return None


def _changes_arguments(command: SimpleCommand) -> bool:
    """Return True if a command of a function changes the function's arguments: `"$@" --more`.

    As the last word of a command, `"$@"` passes them on as they are.
    """
    if not command.depth or NON_RUNNERS.fullmatch(command.words[0].text):
        return False
    words: list[ShellWord] = []
    for word in command.words:
        if not is_assignment(word):
            words.append(word)
        elif any(_uses_all_arguments(part) for part in (word, *(word.elements or ()))):
            return True
    if words and _is_all_arguments(words[-1]):
        words.pop()
    if not words:
        return False
    return any(_passes_argument(before, word) for before, word in pairwise((words[0], *words)))


def _is_all_arguments(word: ShellWord) -> bool:
    """Return True for the word `"$@"`."""
    return word.text in ("$@", "${@}") and word.pieces[0].quoted


def _uses_all_arguments(word: ShellWord) -> bool:
    """Return True if a word contains `$@` or `$*`."""
    return any(_LIST.match(piece.source) for piece in word.pieces)


def _passes_argument(before: ShellWord, word: ShellWord) -> bool:
    """Return True if a word contains an argument of the function that is not an option's value."""
    follows_option = before.text.startswith("-") and before.text != "--"
    for piece in word.pieces:
        if piece.kind == "text" or not _PARAMETER.match(piece.source):
            continue
        is_option_value = follows_option and word.text == piece.source
        if not is_option_value:
            return True
    return False


def is_assignment(word: ShellWord) -> bool:
    """Return True for `X=1`, `X+=1`, `X=(a b)` and `X[0]=1`."""
    if not word.pieces or word.pieces[0].quoted:
        return False
    return _ASSIGNMENT.match(word.pieces[0].text) is not None


def without_prefix(words: tuple[ShellWord, ...]) -> tuple[ShellWord, ...]:
    """Return the words from the command's name on, after assignments, `builtin` and `command`."""
    names = (index for index, word in enumerate(words) if not is_assignment(word))
    start = next(names, 0)
    while len(words) > start + 1 and words[start].text in ("builtin", "command"):
        start += 1
    return words[start:]


def _record_assignments(command: SimpleCommand, variables: Variables) -> None:
    words = without_prefix(command.words)
    first = words[0].text
    is_top_level = (
        command.depth == 0
        and command.before in ("", "\n", ";")
        and command.after in ("", "\n", ";", "&&")
    )
    _record_expansions(command.words, variables, is_top_level)
    if first in ("source", ".", "eval"):
        is_environment = len(words) > 1 and words[1].text.endswith("/activate")
        if not is_environment:
            # The command expands its own words before it assigns anything.
            variables.barriers.append(words[-1].start + 1)
    elif first == "trap":
        if any(word.text in _TRAPS for word in words):
            variables.is_opaque = True
            doubt = "a trap runs between the commands, so every variable is unknown"
            variables.doubts[words[0].start] = doubt
    elif first in ("let", "[["):
        for word in words[1:]:
            _mark_arithmetic(variables, word.text, word.start)
    elif first in _READING:
        _mark_names(_names_read(first, words), variables)
    elif first in _DECLARING:
        _declare(words, variables, is_top_level and first != "local")
    elif all(is_assignment(word) for word in words):
        _assign(words, variables, is_top_level)


def _record_expansions(
    words: tuple[ShellWord, ...], variables: Variables, is_reliable: bool
) -> None:
    """Record what expansions assign: `${X:=1}`, `${A[X=1]}`."""
    for word in words:
        for piece in word.pieces:
            if piece.kind in ("text", "variable"):
                continue
            match = ASSIGNS.match(piece.source)
            if match is not None and is_reliable:
                _assign_default(match.group(1), piece, word.start, variables)
            elif match is not None:
                variables.unknown.add(match.group(1))
            elif piece.source.startswith("${") and _SUBSCRIPT.search(piece.source):
                _mark_arithmetic(variables, piece.source, word.start)


def _assign_default(name: str, piece: Piece, offset: int, variables: Variables) -> None:
    """Record what `${X:=1}` assigns: nothing if X has a value, and else the default.

    The environment may set X; the text as it stands has the default.
    """
    before = variables.values.get(name)
    if before is not None and any(part.kind == "text" and part.text for part in before.pieces):
        return
    default = parse_default(piece)
    is_open = variables.is_never_assigned(name, offset)
    if default is None or default.value.kind == "array" or not is_open:
        variables.unknown.add(name)
        return
    # it counts in its own word already
    value = ShellWord(offset - 1, (default.value,))
    variables.parts.setdefault(name, []).append(value)
    variables.values[name] = value


def _declare(words: tuple[ShellWord, ...], variables: Variables, is_reliable: bool) -> None:
    """Record the assignments of `declare`, `export` and the like."""
    flags: set[str] = set()
    names: list[ShellWord] = []
    for word in words[1:]:
        if word.text[:1] in ("-", "+"):
            flags.update(word.text[1:])
        else:
            names.append(word)
    if "n" in flags and words[0].text != "export":
        variables.is_opaque = True
        reason = f"'{words[0].text} -n' names another variable, so every variable is unknown"
        variables.doubts[words[0].start] = reason
    is_computed = not flags <= set("aFfgprtx")  # as by `declare -i`, the shell changes the value
    unnamed = [word for word in names if _ASSIGNED_NAME.match(word.text) is None]
    _mark_names(names if is_computed else unnamed, variables)
    _assign(tuple(filter(is_assignment, names)), variables, is_reliable)


def _names_read(first: str, words: tuple[ShellWord, ...]) -> list[ShellWord]:
    """Return the words that name the variables which a command like `read` assigns."""
    if first in ("for", "select"):
        return list(words[1:2])
    if first in ("printf", "wait"):
        option = "-v" if first == "printf" else "-p"
        names = [word for before, word in pairwise(words) if before.text == option]
        attached = [word for word in words if word.text.startswith(option)]
        names.extend(literal_word(word.start, word.text[2:]) for word in attached)
        return names
    takes_value = _TAKES_VALUE.get(first)
    names = []
    for before, word in pairwise(words):
        is_option_value = takes_value is not None and takes_value.fullmatch(before.text)
        if not word.text.startswith("-") and not is_option_value:
            names.append(word)
    return names


def _mark_names(words: Iterable[ShellWord], variables: Variables) -> None:
    """Mark the variables that the words name as unknown.

    A name that is computed may be that of any variable.
    """
    for word in words:
        name = _ASSIGNED_NAME.match(word.text)
        if name is not None:
            variables.unknown.add(name.group())
        elif any(piece.kind != "text" for piece in word.pieces):
            variables.barriers.append(word.start)


def _mark_arithmetic(variables: Variables, source: str, offset: int) -> None:
    if _SETS_NAMED.search(source):
        variables.barriers.append(offset)  # it assigns the variable that another one names
    if _SETS_IN_ARITHMETIC.search(source):
        variables.unknown.update(_NAME.findall(source))


def _assign(words: tuple[ShellWord, ...], variables: Variables, is_reliable: bool) -> None:
    for word in words:
        head = word.pieces[0]
        match = _ASSIGNMENT.match(head.text)
        if match is None:
            continue
        name, subscript, plus = match.groups()
        _mark_arithmetic(variables, subscript or "", word.start)
        rest = head.text[match.end() :]
        pieces = (head._replace(text=rest, source=rest), *word.pieces[1:])
        value = ShellWord(word.start + match.end(), pieces, word.elements)
        if _names_trainer(value, variables):
            variables.trainer_commands.add(name)
        if name == "IFS":
            doubt = "IFS is set, so what unquoted variables become is unknown"
            variables.doubts[word.start] = doubt
        expression = _EXPRESSION.match(value.text)
        if expression:  # arithmetic may evaluate the value
            variables.unknown.add(expression.group(1))
        variables.parts.setdefault(name, []).append(value)
        is_plain = subscript is None and head.kind == "text"
        is_certain = is_reliable and is_plain
        if plus and is_certain:
            appended = _append(variables, name, value)
            is_certain = appended is not None
            value = appended or value
        elif name in variables.values:
            is_certain = False
        if not is_certain:
            variables.unknown.add(name)
        variables.values[name] = value


def _append(variables: Variables, name: str, value: ShellWord) -> ShellWord | None:
    """Return the known value of `name` with what `+=` appends; None if it is not known before.

    The result counts as assigned where it is appended.
    """
    before = variables.values.get(name)
    if before is None or name in variables.unknown:
        return None
    if any(before.start < barrier <= value.start for barrier in variables.barriers):
        return None
    if (before.elements is None) != (value.elements is None):
        return None
    elements = None
    if before.elements is not None and value.elements is not None:
        elements = (*before.elements, *value.elements)
    return ShellWord(value.start, (*before.pieces, *value.pieces), elements)


def _names_trainer(value: ShellWord, variables: Variables) -> bool:
    """Return True if a value names a trainer, or a variable whose value does."""
    words = (value, *(value.elements or ()))
    source = " ".join(_without_substitutions(word) for word in words)
    if MARKER.search(source):
        return True
    return not variables.trainer_commands.isdisjoint(VARIABLE.findall(source))


def _without_substitutions(word: ShellWord) -> str:
    """Return the word without its substitutions, whose commands run where they stand."""
    sources = [piece.source for piece in word.pieces]
    return "".join(source for source in sources if not source.startswith(("$(", "`")))
