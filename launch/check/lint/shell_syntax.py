"""The data model of shell text: pieces, words, simple commands, and arguments after expansion.

The pieces of `$X`, `${X}`, `${X[@]}` and `${X:-1}` are parsed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

MAX_SUBSTITUTION = 200_000  # characters of one `...`, $((...)) or ${...}

# $X, ${X}, $@, ${A[@]}, $1
_PARAMETER = re.compile(r"\$(?:\{(?:[A-Za-z_]\w*(?:\[[@*]\])?|[@*])\}|[A-Za-z_]\w*|[@*0-9?#$!-])")
_BRACKETS = {"{": re.compile(r"\\.|[{}]", re.DOTALL), "(": re.compile(r"[()]")}
# Text that may become any number of words: brace expansion, and patterns of file names.
_MANY_WORDS = re.compile(r"\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}|[*?]|[+@!]\(|\[[^]]+\]")
_INDEX = re.compile(r"[A-Za-z_]\w*\[[^]]*\]\+?=|")  # `A[0]=`, whose brackets are not a pattern
# The text before a `~` that is a home folder: `~/x`, `X=~/x`, `X=a:~/x`.
_HOME = re.compile(r"(?:[A-Za-z_]\w*\+?=(?:[^~]*:)?)?(?=~)")
ASSIGNS = re.compile(r"\$\{([A-Za-z_]\w*):?=")  # ${X:=1} assigns
# `${X[@]+"${X[@]}"}`, which is `"${X[@]}"` that `set -u` takes when X is empty
_ELEMENTS_IF_ANY = re.compile(r"\$\{([A-Za-z_]\w*)\[@\]:?\+(\"?)\$\{\1\[@\]\}\2\}")
# `${X:-1}` and `${X:="1"}`; a default with escapes, or with quotes inside, is not read
_DEFAULT = re.compile(
    r"\$\{([A-Za-z_]\w*)(:?)[-=]"
    r"(\$\{[^\"'\\`]*\}|\$\w+|\"[^$\"\\`{}]*\"|'[^'\\{}]*'|[^$\"'\\`{}]*)\}",
    re.DOTALL,
)


PieceKind = Literal["text", "variable", "array", "unknown"]


class Piece(NamedTuple):
    """One piece of a word.

    A variable is $X or ${X}, with its name as `text`; an array is ${X[@]} or $@: any number of
    words even in double quotes, with its name as `text`; unknown are $(...), ${X:-1} and $1, with
    their source as `text`.
    """

    kind: PieceKind
    text: str
    quoted: bool  # the shell does not split its value
    source: str  # as written


class ShellWord(NamedTuple):
    """One shell word."""

    start: int  # character offset
    pieces: tuple[Piece, ...]
    elements: tuple[ShellWord, ...] | None = None  # the words of an array literal (`X=(a b)`)

    @property
    def text(self) -> str:
        """The word, with its unknown pieces as written."""
        if len(self.pieces) == 1 and self.pieces[0].kind == "text":
            return self.pieces[0].text
        texts = [piece.text if piece.kind == "text" else piece.source for piece in self.pieces]
        return "".join(texts)


def literal_word(start: int, text: str) -> ShellWord:
    """Build the word that consists of `text`."""
    return ShellWord(start, (Piece("text", text, False, text),))


@dataclass(frozen=True)
class SimpleCommand:
    """One simple command."""

    words: tuple[ShellWord, ...]
    start: int  # character offset
    before: str  # the operator before it, "" at the start of the text
    after: str  # the operator after it, "" at the end
    # Number of enclosing loops, branches, functions, groups and substitutions: 0 is the top level
    depth: int
    # Whether a quote or substitution in it is never closed, so that its tail cannot be read.
    is_truncated: bool = False
    # `<`, `<<` or `<<<` if its standard input is a file, a here-document or a string.
    input: str = ""
    outputs: tuple[str, ...] = ()  # the files that its output is redirected to


@dataclass(frozen=True)
class Heredoc:
    """A here-document."""

    start: int  # character offset of the body
    body: str
    expands: bool  # the shell substitutes variables in it
    command: str  # the first word of the command that reads it


@dataclass
class ShellDocument:
    """The content of one shell text."""

    commands: list[SimpleCommand] = field(default_factory=list)  # in source order
    heredocs: list[Heredoc] = field(default_factory=list)
    # Offset and source of each `((...))` and `$((...))`.
    arithmetic: list[tuple[int, str]] = field(default_factory=list)
    unbalanced: UnbalancedError | None = None


class UnbalancedError(Exception):
    """A quote or substitution is opened at `offset` and never closed."""

    def __init__(self, offset: int, opener: str) -> None:
        self.offset = offset
        self.opener = opener
        super().__init__(f"{opener} is opened here and never closed")


class TooDeepError(UnbalancedError):
    """A substitution at `offset` is nested too deep to be read."""

    def __str__(self) -> str:
        return self.opener


class Argument(NamedTuple):
    """One argument as the program receives it."""

    text: str  # unknown parts as written
    line: int  # 1-based
    # False if part of it depends on a value that the text does not determine.
    is_resolved: bool = True
    is_single: bool = True  # False if it may become any number of words, including none
    prefix: str = ""  # the literal text before the first unknown part
    raw: str = ""  # the text with the line continuations of its double quotes, for counting lines
    # for an unknown variable: the words that the text puts into it somewhere
    may_hold: tuple[Argument, ...] = ()

    @property
    def base(self) -> str:
        """The name of the program at this path."""
        return self.text.rsplit("/", 1)[-1]


def literal_argument(text: str, line: int) -> Argument:
    """Build an argument whose text is known."""
    return Argument(text, line, True, True, text, text)


def parse_parameter(text: str, pos: int, quoted: bool) -> tuple[Piece, int]:
    """Return the expansion that starts with the `$` at `pos`, and the offset after it.

    A `$` without an expansion is literal.

    Raises UnbalancedError for a `${` that is never closed.
    """
    match = _PARAMETER.match(text, pos)
    if match is not None:
        source = match.group()
        inner = source[1:].strip("{}")
        name = inner.rstrip("[@*]")
        if name != inner:
            return Piece("array", name, quoted, source), match.end()
        if name.isidentifier():
            return Piece("variable", name, quoted, source), match.end()
        return Piece("unknown", source, quoted, source), match.end()
    if text.startswith("${", pos):
        end = find_closing(text, pos + 1, pos, "${")
        source = text[pos:end]
        return _parse_braces(source, quoted), end
    return Piece("text", "$", quoted, "$"), pos + 1


def _parse_braces(source: str, quoted: bool) -> Piece:
    """Return the expansion of `${...}` with more than a name in its braces."""
    elements = _ELEMENTS_IF_ANY.fullmatch(source)
    if elements is not None:
        return Piece("array", elements.group(1), quoted or elements.group(2) != "", source)
    if "[@]" in source or "[*]" in source or source.startswith(("${@", "${*")):
        return Piece("array", "", quoted, source)
    return Piece("unknown", source, quoted, source)


class Default(NamedTuple):
    """A parameter with a default: `${X:-1}`, `${X=1}`."""

    name: str
    replaces_empty: bool  # with a colon: the default also counts where the value is empty
    value: Piece


def parse_default(piece: Piece) -> Default | None:
    """Return the parameter and the default of `${X:-1}` or `${X:=1}`; None for everything else."""
    match = _DEFAULT.fullmatch(piece.source)
    if match is None:
        return None
    name, colon, default = match.groups()
    if default.startswith("$"):
        value, end = parse_parameter(default, 0, piece.quoted)
        return Default(name, bool(colon), value) if end == len(default) else None
    is_quoted = default[:1] in ("'", '"')
    if default[:1] == "'" and piece.quoted:
        return None  # in double quotes these are characters of the value, in an assignment quotes
    text = default[1:-1] if is_quoted else default
    value = Piece("text", text, piece.quoted or is_quoted, default)
    return Default(name, bool(colon), value)


def find_closing(text: str, pos: int, opened: int, opener: str) -> int:
    """Return the offset after the bracket that closes the one at `pos`.

    Raises UnbalancedError, with the `opener` at `opened`, if there is none.
    """
    depth = 0
    for match in _BRACKETS[text[pos]].finditer(text, pos, pos + MAX_SUBSTITUTION):
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.end()
    raise UnbalancedError(opened, opener)


def logical_lines(text: str) -> Iterator[list[str]]:
    """Yield each line together with those that continue it, after an unescaped backslash."""
    parts: list[str] = []
    for line in text.split("\n"):
        parts.append(line)
        if (len(line) - len(line.rstrip("\\"))) % 2 == 0:
            yield parts
            parts = []
    if parts:
        yield parts


def unquoted_pieces(text: str, is_start: bool) -> list[Piece]:
    """Return unquoted text as pieces.

    A home folder (`~`), brace expansion and patterns of file names are unknown, with the text that
    follows them. `is_start` is whether the text starts a word.
    """
    home = _HOME.match(text) if is_start else None
    index = _INDEX.match(text) if is_start else None
    pattern = _MANY_WORDS.search(text, index.end() if index else 0)
    end = len(text)
    if home:
        end = home.end()
    elif pattern:
        end = pattern.start()
    pieces = []
    if text[:end]:
        pieces.append(Piece("text", text[:end], False, text[:end]))
    if text[end:]:
        unknown = Piece("unknown", "", True, text[end:])
        any_words = Piece("array", "", False, text[end:])
        pieces.append(unknown if home else any_words)
    return pieces
