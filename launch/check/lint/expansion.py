"""Expand shell words: variables whose values are known, and arithmetic with known operands."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator

from launch.check.lint.shell_syntax import (
    Argument,
    Piece,
    ShellWord,
    literal_argument,
    parse_default,
)
from launch.check.lint.variables import Variables

MAX_DEPTH = 20  # levels of variables whose values contain variables
MAX_EXPANDED = 200_000  # characters of one expansion, or words of one command
MAX_TOTAL = 1_000_000  # characters of all expansions of a text; later variables are unknown
_LIMIT = 1 << 63  # bash computes in 64 bits and wraps around

_EXPANSION = re.compile(r"\$\(\((.{0,200})\)\)", re.DOTALL)  # longer ones are not evaluated
_OPERAND = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$?\b([A-Za-z_]\w*)\b")
_ARITHMETIC = re.compile(r"[\d\s()+*/%-]+")

# `$(which trl)`, whose output is the path of the program
_PROGRAM_PATH = re.compile(
    r"(?:\$\(|`)\s*(?:which|command\s+-v|type\s+-[pP])\s+([A-Za-z_][\w.+-]*)\s*[)`]"
)
# `${X:+words}`, also with - or = for +
_ALTERNATIVE = re.compile(r"\$\{\w+(?:\[[@*]\])?:?[-+=](.*)\}", re.DOTALL)
_PATTERN = re.compile(r"[*?]|\[[^]]+\]")
_SPLIT_OR_REPLACED = re.compile(r"[ \t\n*?]|\[[^]]+\]")
_FIELD = re.compile(r"[ \t\n]+")
_WORD = re.compile(r"[^ \t\n]+")


def expand_words(words: tuple[ShellWord, ...], variables: Variables) -> list[Argument]:
    """Return the arguments that the words expand to."""
    arguments: list[Argument] = []
    for word in words:
        arguments.extend(_expand_word(word, variables, 0))
        if len(arguments) > MAX_EXPANDED:
            break
    return arguments


def _join(parts: list[Argument], line: int) -> Argument:
    """Return the argument that the parts form; without any, an empty one on `line`."""
    if len(parts) == 1:
        return parts[0]
    prefix = ""
    for part in parts:
        prefix += part.prefix
        if not part.is_resolved:
            break
    return Argument(
        text="".join(part.text for part in parts),
        line=parts[0].line if parts else line,
        is_resolved=all(part.is_resolved for part in parts),
        is_single=all(part.is_single for part in parts),
        prefix=prefix,
        raw="".join(part.raw for part in parts),
    )


def _expand_word(word: ShellWord, variables: Variables, depth: int) -> list[Argument]:
    groups: list[list[Argument]] = [[]]  # the parts of each argument
    line = variables.line_of(word.start)
    for piece in word.pieces:
        if piece.kind == "text":
            # quoted pieces and any text form an argument; an empty unquoted piece, the rest of
            # `X=`, does not
            if piece.text or piece.quoted:
                raw = piece.text or piece.source.strip("\"'")
                groups[-1].append(Argument(piece.text, line, prefix=piece.text, raw=raw))
            continue
        parts = _expand_piece(piece, word.start, variables, depth)
        if parts is None:
            # the content of a substitution is parsed separately, and is not text of this word
            raw = "$_" if piece.source.startswith(("$(", "`", "<(", ">(")) else piece.source
            is_single = piece.quoted and piece.kind != "array"
            unknown = Argument(piece.source, line, is_resolved=False, is_single=is_single, raw=raw)
            parts = [unknown._replace(may_hold=_possible_words(piece, word.start, variables))]
        for index, part in enumerate(parts):
            if index:
                groups.append([])
            if part is not None:
                groups[-1].append(part)
    return [_join(parts, line) for parts in groups if parts]


def _possible_words(piece: Piece, offset: int, variables: Variables) -> tuple[Argument, ...]:
    """Return the literal words of every value that the text gives to an unknown variable, and those
    of what stands in its place: `${X:+--packing}`.
    """
    words = _alternative_words(piece, variables.line_of(offset))
    if piece.kind in ("variable", "array"):
        for value in variables.parts.get(piece.text, ()):
            line = variables.line_of(value.start)
            if value.elements is None:
                words += [literal_argument(text, line) for text in value.text.split()]
                for part in value.pieces:
                    words += _alternative_words(part, line)
            for word in value.elements or ():
                if all(part.kind == "text" for part in word.pieces):
                    words.append(literal_argument(word.text, variables.line_of(word.start)))
    return tuple(words)


def _alternative_words(piece: Piece, line: int) -> list[Argument]:
    """Return the words of `${X:+words}` and the like, without their quotes."""
    match = _ALTERNATIVE.fullmatch(piece.source)
    words = re.sub(r"[\"']", "", match.group(1)).split() if match is not None else []
    return [literal_argument(text, line) for text in words]


def _expand_default(
    piece: Piece, offset: int, variables: Variables, depth: int
) -> list[Argument | None] | None:
    """Expand `${X:-1}` and `${X:=1}`: to the value of X if it is known, to the default if the text
    assigns none.

    The environment may set X; the text as it stands has the default.
    """
    default = parse_default(piece)
    if default is None:
        return None
    if not variables.is_never_assigned(default.name, offset):
        inner = Piece("variable", default.name, piece.quoted, f"${{{default.name}}}")
        parts = _expand_piece(inner, offset, variables, depth + 1)
        is_empty = parts is not None and not any(part and part.text for part in parts)
        if not is_empty or not default.replaces_empty:
            return parts
    value = default.value
    if value.kind != "text":
        return _expand_piece(value, offset, variables, depth + 1)
    if not value.quoted and _SPLIT_OR_REPLACED.search(value.text):
        return None
    if not value.text and not value.quoted:
        return [None]
    return [literal_argument(value.text, variables.line_of(offset))]


def _expand_piece(
    piece: Piece, offset: int, variables: Variables, depth: int
) -> list[Argument | None] | None:
    """Expand a piece to words; None in the list is an empty end (`X=" a"`).

    Returns None if the piece is unknown.
    """
    if not piece.text or depth >= MAX_DEPTH or variables.characters > MAX_TOTAL:
        return None
    if piece.kind == "unknown":
        return _expand_unknown(piece, offset, variables, depth)
    value = variables.find_value(piece.text, offset)
    if value is None:
        return None
    is_joined = piece.quoted and "[*]" in piece.source
    if variables.has_own_ifs and (is_joined or not piece.quoted):
        return None
    if piece not in variables.expanded:
        is_array = value.elements is not None
        parts: list[Argument | None] | None = None
        if piece.kind == "array" and is_array:
            parts = _expand_elements(value, piece.quoted, variables, depth)
            if is_joined and parts is not None:
                parts = [_join_elements(parts, variables.line_of(offset))]
        elif piece.kind == "variable" and not is_array:
            parts = _expand_value(value, piece.quoted, variables, depth)
        if parts is not None and _count_characters(parts) > MAX_EXPANDED:
            parts = None
        variables.expanded[piece] = parts
    expanded = variables.expanded[piece]
    variables.characters += _count_characters(expanded or ())
    return expanded if variables.characters <= MAX_TOTAL else None


def _expand_unknown(
    piece: Piece, offset: int, variables: Variables, depth: int
) -> list[Argument | None] | None:
    """Expand `$(which trl)`, `${X:-1}` and `$((X + 1))`; None for everything else."""
    program = _PROGRAM_PATH.fullmatch(piece.source)
    if program is not None:
        return [literal_argument(program.group(1), variables.line_of(offset))]
    if piece.source.startswith("${"):
        return _expand_default(piece, offset, variables, depth)
    return _expand_arithmetic(piece, offset, variables, depth)


def _join_elements(elements: Iterable[Argument | None], line: int) -> Argument:
    """Join the elements of an array with blanks, as `"${X[*]}"` does."""
    blank = literal_argument(" ", line)
    parts: list[Argument] = []
    for element in elements:
        if element is not None:
            parts += [blank, element]
    return _join(parts[1:], line)


def _count_characters(parts: Iterable[Argument | None]) -> int:
    return sum(len(part.text) + 1 for part in parts if part is not None)


def _expand_arithmetic(
    piece: Piece, offset: int, variables: Variables, depth: int
) -> list[Argument | None] | None:
    def lookup(name: str) -> str | None:
        inner = Piece("variable", name, True, "$" + name)
        parts = _expand_piece(inner, offset, variables, depth + 1)
        value = parts[0] if parts else None
        return value.text if value is not None and value.is_resolved else None

    number = _evaluate(piece.source, lookup)
    if number is None:
        return None
    return [literal_argument(str(number), variables.line_of(offset))]


def _expand_elements(
    value: ShellWord, quoted: bool, variables: Variables, depth: int
) -> list[Argument | None] | None:
    """Expand an array.

    Unquoted elements would be split again, so they must be known and contain no blank.
    """
    arguments: list[Argument | None] = []
    for element in value.elements or ():
        if element.text.startswith("["):
            return None  # `[key]=value`
        for argument in _expand_word(element, variables, depth + 1):
            if not quoted:
                if not argument.text:
                    continue
                if not argument.is_resolved or _SPLIT_OR_REPLACED.search(argument.text):
                    return None
            arguments.append(argument)
    return arguments or [None]


def _expand_value(
    value: ShellWord, quoted: bool, variables: Variables, depth: int
) -> list[Argument | None] | None:
    """Expand a variable's value: to one word if quoted, else split at blanks.

    An assignment itself splits no words.
    """
    pieces = tuple(piece._replace(quoted=True) for piece in value.pieces)
    quoted_value = value._replace(pieces=pieces)
    arguments = _expand_word(quoted_value, variables, depth + 1)
    if len(arguments) != 1:
        return None  # the elements of an array
    argument = arguments[0]._replace(is_single=True)
    if quoted:
        return [argument]
    if argument.is_resolved:
        return list(_split(argument))
    if not argument.prefix or _FIELD.search(argument.raw):
        return None
    return [argument._replace(is_single=False)]


def _split(argument: Argument) -> Iterator[Argument | None]:
    """Yield the words of a value with their lines; None at either end is a blank."""
    fields = _FIELD.split(argument.text)
    raw = argument.raw.replace("\\\n", " \n")
    lines = [argument.line + raw.count("\n", 0, match.start()) for match in _WORD.finditer(raw)]
    word_count = sum(1 for text in fields if text)
    # The numbers differ if a line continuation is inside a word.
    field_lines = iter(lines if len(lines) == word_count else ())
    for text in fields:
        if not text:
            yield None
            continue
        line = next(field_lines, argument.line)
        word = argument._replace(text=text, line=line, prefix=text, raw=text)
        pattern = _PATTERN.search(text)
        if pattern is not None:  # the names of files replace it
            word = word._replace(is_resolved=False, is_single=False, prefix=text[: pattern.start()])
        yield word


def _evaluate(source: str, lookup: Callable[[str], str | None]) -> int | None:
    """Return the value of `$((...))`; None if an operand is unknown.

    The operators are + - * / %; the value is None if there is any other one.
    """
    arithmetic = _EXPANSION.fullmatch(source)
    if arithmetic is None:
        return None

    def substitute(match: re.Match[str]) -> str:
        value = (lookup(match.group(1) or match.group(2)) or "").strip()
        if not value.isdecimal():
            raise ValueError(f"unknown: {match.group()}")
        return value

    try:
        expression = _OPERAND.sub(substitute, arithmetic.group(1)).strip()
        if _ARITHMETIC.fullmatch(expression) is None:
            return None
        return _compute(ast.parse(expression, mode="eval").body)
    except (SyntaxError, KeyError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _compute(node: ast.expr) -> int:
    """Compute with integers. Raises KeyError or ValueError for any other expression."""
    match node:
        case ast.Constant(value=int(number)):
            result = number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_compute(operand)
        case ast.BinOp(left=left, op=symbol, right=right):
            result = _OPERATORS[type(symbol)](_compute(left), _compute(right))
        case _:
            raise ValueError(ast.dump(node))
    if abs(result) >= _LIMIT:
        raise ValueError("out of range")
    return result


def _divide(left: int, right: int) -> int:
    """Divide, truncating towards zero as bash does."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.Mod: lambda left, right: left - right * _divide(left, right),
}
