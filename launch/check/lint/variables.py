"""Resolve the shell variables whose value the text determines, and expand words with them.

A variable is known at a use if the text assigns it exactly once, at the top level (no loop, branch, function,
substitution, pipeline), before the use, and nothing in between could assign it invisibly (`source`, `eval`). Any other
variable is unknown, which is always safe. So are all of a text with a nameref, or with a function that assigns a name
which it computes, and words that IFS splits where the text assigns it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from launch.check.lint.arithmetic import evaluate
from launch.check.lint.launchers import NON_RUNNERS
from launch.check.lint.shell_syntax import (
    ASSIGNS,
    Argument,
    Piece,
    PieceKind,
    ShellDocument,
    ShellWord,
    SimpleCommand,
    literal_argument,
    literal_word,
)
from launch.check.lint.trainers import MARKER

MAX_DEPTH = 20  # levels of variables whose values contain variables
MAX_EXPANDED = 200_000  # characters of one expansion, or words of one command
MAX_TOTAL = 1_000_000  # characters of all expansions of a text; later variables are unknown

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+)?=")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED_NAME = re.compile(r"[A-Za-z_]\w*(?=\[|\+?=|$)")
DECLARING = frozenset({"export", "declare", "typeset", "readonly", "local"})
_READING = frozenset({"read", "mapfile", "readarray", "unset", "getopts", "printf", "wait", "for", "select"})
# Options whose value is no variable's name.
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
_LIST = re.compile(r"\$\{?[@*]")
_PARAMETER = re.compile(r"\$\{?[@*1-9]")
VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
TRAPS = frozenset({"DEBUG", "ERR", "RETURN"})  # they run between the commands of the text
_PATTERN = re.compile(r"[*?]|\[[^]]+\]")
_SPLIT_OR_REPLACED = re.compile(r"[ \t\n*?]|\[[^]]+\]")
_FIELD = re.compile(r"[ \t\n]+")
_WORD = re.compile(r"[^ \t\n]+")


@dataclass(frozen=True)
class _Assignment:
    offset: int
    value: ShellWord
    is_reliable: bool  # a plain assignment at the top level


@dataclass
class Variables:
    """The variables of a text; with no assignments recorded, every variable is unknown."""

    line_of: Callable[[int], int]  # from a character offset of the text to its 1-based line
    assignments: dict[str, list[_Assignment]] = field(default_factory=dict)
    barriers: list[int] = field(default_factory=list)  # offsets where any variable may be assigned invisibly
    expanded: dict[tuple[str, PieceKind, bool, bool], list[Argument | None] | None] = field(default_factory=dict)
    characters: int = 0  # of all expansions so far, a repeated one each time
    is_opaque: bool = False  # any variable may be assigned anywhere
    trainer_commands: set[str] = field(default_factory=set)  # the names of those whose value mentions a trainer
    has_own_ifs: bool = False  # words may be split elsewhere than at blanks
    functions: frozenset[str] = (
        frozenset()
    )  # the functions of a text in which one changes the arguments that it passes on

    def find_assignment(self, name: str, offset: int) -> _Assignment | None:
        """Return the assignment that determines `name` where it is used at `offset`."""
        assignments = self.assignments.get(name, [])
        if self.is_opaque or _SPECIAL.fullmatch(name) or len(assignments) != 1:
            return None
        if not assignments[0].is_reliable or assignments[0].offset >= offset:
            return None
        barriers_between = bisect_right(self.barriers, offset) - bisect_right(self.barriers, assignments[0].offset)
        return None if barriers_between else assignments[0]


def collect_variables(
    document: ShellDocument, line_of: Callable[[int], int], outer_functions: frozenset[str] = frozenset()
) -> Variables:
    """Collect every assignment of the text, and every place where an invisible one may happen.

    `outer_functions`: those of the text that contains this one (see Variables.functions).
    """
    variables = Variables(line_of, functions=outer_functions)
    functions = frozenset(filter(None, map(defined_function, document.commands)))
    if any(map(_changes_arguments, document.commands)):
        variables.functions |= functions
    for command in document.commands:
        barriers = len(variables.barriers)
        _record_assignments(command, variables)
        if len(variables.barriers) > barriers and command.depth and functions:
            variables.is_opaque = True  # a function is called later than it is written
        if functions and not functions.isdisjoint(word.text for word in without_prefix(command.words)[:1]):
            _mark_names(filter(is_assignment, command.words), variables)  # `X=2 function`
    for offset, source in document.arithmetic:
        _mark_arithmetic(variables, source, offset)
    variables.barriers.sort()
    variables.has_own_ifs = "IFS" in variables.assignments
    return variables


def defined_function(command: SimpleCommand) -> str | None:
    """Return the name of the function that the command defines; None if it defines none."""
    if command.words[0].text == "function":
        return command.words[-1].text
    return command.words[0].text if command.after == "(" and len(command.words) == 1 else None


def _changes_arguments(command: SimpleCommand) -> bool:
    """Return True if a command of a function adds to the function's own arguments, or takes some: `"$@" --more`.

    As the last word of a command, `"$@"` passes them on as they are.
    """
    if not command.depth or NON_RUNNERS.fullmatch(command.words[0].text):
        return False
    lists = [
        word for assigned in filter(is_assignment, command.words) for word in (assigned, *(assigned.elements or ()))
    ]
    if any(_LIST.match(piece.source) for word in lists for piece in word.pieces):
        return True
    words = [word for word in command.words if not is_assignment(word)]
    if words and words[-1].text in ("$@", "${@}") and words[-1].pieces[0].quoted:
        words.pop()
    return any(
        _PARAMETER.match(piece.source)
        and not (word.text == piece.source and before.text.startswith("-") and before.text != "--")
        for before, word in pairwise((words[0], *words) if words else ())
        for piece in word.pieces
        if piece.kind is not PieceKind.TEXT
    )


def is_assignment(word: ShellWord) -> bool:
    """Return True for `X=1`, `X+=1`, `X=(a b)` and `X[0]=1`."""
    return bool(word.pieces) and not word.pieces[0].quoted and _ASSIGNMENT.match(word.pieces[0].text) is not None


def without_prefix(words: tuple[ShellWord, ...]) -> tuple[ShellWord, ...]:
    """Return the words from the command's name on, behind assignments, `builtin` and `command`."""
    start = next((index for index, word in enumerate(words) if not is_assignment(word)), 0)
    while len(words) > start + 1 and words[start].text in ("builtin", "command"):
        start += 1
    return words[start:]


def expand_words(words: tuple[ShellWord, ...], variables: Variables) -> list[Argument]:
    """Return the arguments that the words expand to."""
    arguments: list[Argument] = []
    for word in words:
        arguments.extend(_expand_word(word, variables, 0))
        if len(arguments) > MAX_EXPANDED:
            break
    return arguments


def _record_assignments(command: SimpleCommand, variables: Variables) -> None:
    words = without_prefix(command.words)
    _record_expansions(command.words, variables)
    first = words[0].text
    is_top_level = command.depth == 0 and command.before in ("", "\n", ";") and command.after in ("", "\n", ";", "&&")
    if first in ("source", ".", "eval"):
        if not (len(words) > 1 and words[1].text.endswith("/activate")):
            variables.barriers.append(words[-1].start + 1)  # it expands its own words before
    elif first == "trap":
        variables.is_opaque |= any(word.text in TRAPS for word in words)
    elif first in ("let", "[["):
        for word in words[1:]:
            _mark_arithmetic(variables, word.text, word.start)
    elif first in _READING:
        _mark_names(_names_read(first, words), variables)
    elif first in DECLARING:
        _declare(words, variables, is_top_level and first != "local")
    elif all(is_assignment(word) for word in words):
        _assign(words, variables, is_top_level)


def _record_expansions(words: tuple[ShellWord, ...], variables: Variables) -> None:
    """Mark what expansions assign: `${X:=1}`, `${A[X=1]}`."""
    for word in words:
        for piece in word.pieces:
            if piece.kind in (PieceKind.TEXT, PieceKind.VARIABLE):
                continue
            match = ASSIGNS.match(piece.source)
            if match is not None:
                _mark_unknown(variables, match.group(1), word.start)
            elif piece.source.startswith("${") and _SUBSCRIPT.search(piece.source):
                _mark_arithmetic(variables, piece.source, word.start)


def _declare(words: tuple[ShellWord, ...], variables: Variables, is_reliable: bool) -> None:
    flags = {flag for word in words[1:] if word.text[:1] in ("-", "+") for flag in word.text[1:]}
    names = tuple(word for word in words[1:] if word.text[:1] not in ("-", "+"))
    variables.is_opaque |= "n" in flags and words[0].text != "export"
    is_changed = not flags <= set("aFfgprtx")  # the shell computes what is assigned
    _mark_names([word for word in names if is_changed or _ASSIGNED_NAME.match(word.text) is None], variables)
    _assign(tuple(filter(is_assignment, names)), variables, is_reliable)


def _names_read(first: str, words: tuple[ShellWord, ...]) -> list[ShellWord]:
    """Return the words that name the variables which a command like `read` assigns."""
    if first in ("for", "select"):
        return list(words[1:2])
    if first in ("printf", "wait"):
        option = "-v" if first == "printf" else "-p"
        named = [word for before, word in pairwise(words) if before.text == option]
        return named + [literal_word(word.start, word.text[2:]) for word in words if word.text.startswith(option)]
    takes_value = _TAKES_VALUE.get(first)
    return [
        word
        for option, word in pairwise(words)
        if not word.text.startswith("-") and (takes_value is None or takes_value.fullmatch(option.text) is None)
    ]


def _mark_names(words: Iterable[ShellWord], variables: Variables) -> None:
    """Mark the variables that the words name as unknown; a name that is not written may be that of any variable."""
    for word in words:
        name = _ASSIGNED_NAME.match(word.text)
        if name is not None:
            _mark_unknown(variables, name.group(), word.start)
        elif any(piece.kind is not PieceKind.TEXT for piece in word.pieces):
            variables.barriers.append(word.start)


def _mark_arithmetic(variables: Variables, source: str, offset: int) -> None:
    if _SETS_NAMED.search(source):
        variables.barriers.append(offset)  # of a name that a variable holds
    if _SETS_IN_ARITHMETIC.search(source):
        for name in _NAME.finditer(source):
            _mark_unknown(variables, name.group(), offset)


def _assign(words: tuple[ShellWord, ...], variables: Variables, is_reliable: bool) -> None:
    for word in words:
        head = word.pieces[0]
        match = _ASSIGNMENT.match(head.text)
        if match is None:
            continue
        _mark_arithmetic(variables, match.group(2) or "", word.start)
        is_plain = match.group(2) is None and match.group(3) is None and head.kind is PieceKind.TEXT
        rest = head._replace(text=head.text[match.end() :], source=head.text[match.end() :])
        value = ShellWord(word.start + match.end(), (rest, *word.pieces[1:]), word.elements)
        source = " ".join(map(_own_text, (value, *(value.elements or ()))))
        if MARKER.search(source) or not variables.trainer_commands.isdisjoint(VARIABLE.findall(source)):
            variables.trainer_commands.add(match.group(1))
        if named := _EXPRESSION.match(value.text):  # arithmetic may evaluate the value
            _mark_unknown(variables, named.group(1), word.start)
        variables.assignments.setdefault(match.group(1), []).append(
            _Assignment(word.start, value, is_reliable and is_plain)
        )


def _own_text(word: ShellWord) -> str:
    """Return the word without its substitutions, whose commands run where they stand."""
    return "".join(piece.source for piece in word.pieces if not piece.source.startswith(("$(", "`")))


def _mark_unknown(variables: Variables, name: str, offset: int) -> None:
    variables.assignments.setdefault(name, []).append(_Assignment(offset, ShellWord(offset, ()), False))


def _literal_part(piece: Piece, line: int) -> Argument:
    return Argument(piece.text, line, prefix=piece.text, raw=piece.text or piece.source.strip("\"'"))


def _unknown_part(source: str, line: int, is_single: bool) -> Argument:
    # A substitution's content was parsed where it stands; it must not count as this word's own text.
    raw = "$_" if source.startswith(("$(", "`", "<(", ">(")) else source
    return Argument(source, line, is_resolved=False, is_single=is_single, raw=raw)


def _join(parts: list[Argument], line: int) -> Argument:
    """Return the argument that the parts form; without any, an empty one on `line`."""
    is_resolved = all(part.is_resolved for part in parts)
    unknown = next((index for index, part in enumerate(parts) if not part.is_resolved), len(parts))
    return Argument(
        "".join(part.text for part in parts),
        parts[0].line if parts else line,
        is_resolved,
        all(part.is_single for part in parts),
        "".join(part.prefix for part in parts[: unknown + 1]),
        "".join(part.raw for part in parts),
    )


def _expand_word(word: ShellWord, variables: Variables, depth: int) -> list[Argument]:
    groups: list[list[Argument]] = [[]]  # the parts of each argument
    line = variables.line_of(word.start)
    for piece in word.pieces:
        if piece.kind is PieceKind.TEXT:
            # Quoted pieces and any text form an argument; an empty unquoted piece is the rest of `X=`.
            if piece.text or piece.quoted:
                groups[-1].append(_literal_part(piece, line))
            continue
        parts = _expand_piece(piece, word.start, variables, depth)
        if parts is None:
            is_single = piece.quoted and piece.kind is not PieceKind.ARRAY
            parts = [_unknown_part(piece.source, line, is_single)]
        for index, part in enumerate(parts):
            if index:
                groups.append([])
            if part is not None:
                groups[-1].append(part)
    return [_join(parts, line) for parts in groups if parts]


def _expand_piece(piece: Piece, offset: int, variables: Variables, depth: int) -> list[Argument | None] | None:
    """Expand a piece to words; None in the list is an empty end (`X=" a"`). Returns None if it is unknown."""
    if not piece.text or depth >= MAX_DEPTH or variables.characters > MAX_TOTAL:
        return None
    if piece.kind is PieceKind.UNKNOWN:
        return _expand_arithmetic(piece, offset, variables, depth)
    assignment = variables.find_assignment(piece.text, offset)
    if assignment is None:
        return None
    is_joined = piece.quoted and "[*]" in piece.source
    if variables.has_own_ifs and (is_joined or not piece.quoted):
        return None
    key = (piece.text, piece.kind, piece.quoted, is_joined)
    if key not in variables.expanded:
        is_array = assignment.value.elements is not None
        parts: list[Argument | None] | None = None
        if piece.kind is PieceKind.ARRAY and is_array:
            parts = _expand_elements(assignment.value, piece.quoted, variables, depth)
            if is_joined and parts is not None:
                parts = _join_elements(parts, variables.line_of(offset))
        elif piece.kind is PieceKind.VARIABLE and not is_array:
            parts = _expand_value(assignment.value, piece.quoted, variables, depth)
        variables.expanded[key] = None if parts is None or _count_characters(parts) > MAX_EXPANDED else parts
    expanded = variables.expanded[key]
    variables.characters += _count_characters(expanded or ())
    return expanded if variables.characters <= MAX_TOTAL else None


def _count_characters(parts: Iterable[Argument | None]) -> int:
    return sum(len(part.text) + 1 for part in parts if part is not None)


def _expand_arithmetic(piece: Piece, offset: int, variables: Variables, depth: int) -> list[Argument | None] | None:
    def lookup(name: str) -> str | None:
        inner = Piece(PieceKind.VARIABLE, name, True, "$" + name)
        parts = _expand_piece(inner, offset, variables, depth + 1)
        return parts[0].text if parts and parts[0] is not None and parts[0].is_resolved else None

    number = evaluate(piece.source, lookup)
    return None if number is None else [literal_argument(str(number), variables.line_of(offset))]


def _expand_elements(value: ShellWord, quoted: bool, variables: Variables, depth: int) -> list[Argument | None] | None:
    """Expand an array. Unquoted elements would be split again, so they must be known and contain no blank."""
    arguments: list[Argument | None] = []
    for element in value.elements or ():
        if element.text.startswith("["):
            return None  # `[key]=value`
        for argument in _expand_word(element, variables, depth + 1):
            if not quoted and not argument.text:
                continue
            if not quoted and not (argument.is_resolved and _SPLIT_OR_REPLACED.search(argument.text) is None):
                return None
            arguments.append(argument)
    return arguments or [None]


def _join_elements(elements: list[Argument | None], line: int) -> list[Argument | None]:
    """Return the one word of `"${A[*]}"`."""
    blank = literal_argument(" ", line)
    parts = [part for element in elements if element is not None for part in (blank, element)]
    return [_join(parts[1:], line)]


def _expand_value(value: ShellWord, quoted: bool, variables: Variables, depth: int) -> list[Argument | None] | None:
    """Expand a variable's value: to one word if quoted, else split at blanks. An assignment itself splits no words."""
    line = variables.line_of(value.start)
    joined: list[Argument] = []
    for piece in value.pieces:
        if piece.kind is PieceKind.TEXT:
            joined.append(_literal_part(piece, line))
            continue
        parts = _expand_piece(piece._replace(quoted=True), value.start, variables, depth + 1)
        if parts is None or len(parts) != 1:
            joined.append(_unknown_part(piece.source, line, is_single=True))
        elif parts[0] is not None:
            joined.append(parts[0])
    argument = _join(joined, line)
    if quoted:
        return [argument]
    if not argument.is_resolved:
        return None if not argument.prefix or _FIELD.search(argument.raw) else [argument._replace(is_single=False)]
    return list(_split(argument))


def _split(argument: Argument) -> Iterator[Argument | None]:
    """Yield the words of a value with their lines; None at either end is a blank that ends a word."""
    fields = _FIELD.split(argument.text)
    raw = argument.raw.replace("\\\n", " \n")
    lines = [argument.line + raw.count("\n", 0, match.start()) for match in _WORD.finditer(raw)]
    lines_match = len(lines) == sum(map(bool, fields))  # else a line continuation is inside a word
    field_lines = iter(lines if lines_match else ())
    for text in fields:
        if not text:
            yield None
            continue
        word = argument._replace(text=text, line=next(field_lines, argument.line), prefix=text, raw=text)
        pattern = _PATTERN.search(text)
        if pattern is not None:  # the names of files replace it
            word = word._replace(is_resolved=False, is_single=False, prefix=text[: pattern.start()])
        yield word
