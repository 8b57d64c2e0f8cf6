"""A small lexer for the POSIX shell language and bash's extensions: from text to simple commands.

It follows bash where that determines which words a program gets (quotes, continuations, comments,
expansions, here-documents, substitutions, arrays) and skims the rest (tests, arithmetic, case
patterns). It reads each character once, so it takes linear time.

tree-sitter 0.26.1 with tree-sitter-bash 0.25.1 was compared and does not replace it. Both give the
same commands of the 127 scripts of upstream that start a trainer, but tree-sitter reports errors in
3 scripts that bash accepts. It also splits 11 of 400 random command lines unlike bash, without an
error in the tree (at a backslash before a blank); this lexer splits all of them like bash.
tree-sitter loses `!(*)` and the second here-document of a line, and continues a line after a
backslash and a carriage return.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from launch.check.lint.command_builder import CommandBuilder
from launch.check.lint.shell_syntax import (
    MAX_SUBSTITUTION,
    Heredoc,
    Piece,
    PieceKind,
    ShellDocument,
    ShellWord,
    TooDeepError,
    UnbalancedError,
    find_closing,
    literal_word,
    parse_parameter,
    unquoted_pieces,
)
from launch.check.lint.trainer_commands import MARKER

MAX_NESTING = 30  # levels of substitutions inside substitutions
MAX_UNENDED = 20  # here-documents without an end before the search for ends stops

_TOKEN = re.compile(
    r"""(?P<blank>(?:[ \t]|\\\n)++)
      | (?P<newline>\n)
      | (?P<comment>\#[^\n]*+)
      | (?P<heredoc><<-?(?!<)[ \t]*+)
      | (?P<redirect>&>>?|<<<|>>|>&|>\||<&|<>|>(?!\()|<(?!\())
      | (?P<operator>&&|\|\||;;&|;;|;&|\|&|[;&|()])
      | (?P<plain>[^ \t\n'"\\$`;&|<>(){}*?[~]++(?=[ \t\n;&|)]|\Z))""",
    re.VERBOSE,
)
_BARE = re.compile(r"[^ \t\n'\"\\$`;&|<>()]++")
_IN_DOUBLE = re.compile(r"[^\"\\$`]++")
_BACKTICKS = re.compile(r"`((?:[^`\\]++|\\.)*+)`", re.DOTALL)
_ARRAY_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_SUBSTITUTION = re.compile(r"\\.|\$\((?!\()|`", re.DOTALL)
_ANSI_QUOTE = re.compile(r"\$'((?:[^'\\]++|\\.)*+)'", re.DOTALL)


def lex(text: str, tolerant: bool = False, nesting: int = 0) -> ShellDocument:
    """Return the commands of a shell text.

    A quote or substitution that is never closed raises UnbalancedError, or drops the rest of the
    text if `tolerant`.
    """
    lexer = _Lexer(text, tolerant, nesting)
    try:
        lexer.read_list(0, stop=False)
    except UnbalancedError as error:
        if not tolerant:
            raise
        lexer.document.unbalanced = error
    lexer.document.commands.sort(key=lambda command: command.start)
    return lexer.document


def _unescape_in_quotes(source: str) -> str:
    """Return the text of a backslash and the next character inside double quotes."""
    escaped = source[1:]
    if escaped == "\n":
        return ""
    return escaped if escaped in ('"', "\\", "$", "`") else source


class _OpenHeredoc(NamedTuple):
    """A here-document whose body starts on the next line."""

    delimiter: str
    expands: bool  # the shell substitutes variables in it
    strips_tabs: bool  # it was opened with `<<-`
    command: str  # the first word of the command that reads it


class _Lexer:
    def __init__(self, text: str, tolerant: bool, nesting: int) -> None:
        self.text = text
        self.tolerant = tolerant
        self.nesting = nesting
        self.has_extglob = "extglob" in text
        self.document = ShellDocument()
        self.pending: list[_OpenHeredoc] = []  # here-documents opened on this line
        self.unended: set[str] = set()  # delimiters that do not occur again

    def read_list(self, pos: int, stop: bool) -> int:
        """Read commands to the end, or to the `)` that closes this list (`stop`).

        Returns the offset after the list.
        """
        if self.nesting > MAX_NESTING:
            raise TooDeepError(pos, f"a substitution inside more than {MAX_NESTING} others")
        commands = CommandBuilder(self.document, self.nesting)
        try:
            return self._read_list(pos, stop, commands)
        except UnbalancedError as error:
            if self.tolerant:
                tail = Piece("array", "", False, self.text[error.offset : error.offset + 40])
                commands.add(ShellWord(error.offset, (tail,)))
                commands.end("", is_truncated=True)
            raise

    def _read_list(self, pos: int, stop: bool, commands: CommandBuilder) -> int:
        opened = pos
        size = len(self.text)
        while pos < size:
            match = _TOKEN.match(self.text, pos)
            if match is None:
                word, pos = self._read_word(pos)
                commands.add(word)
                continue
            token = match.group()
            start = pos
            pos = match.end()
            if match.lastgroup == "plain":
                commands.add(literal_word(start, token))
            elif match.lastgroup == "newline":
                commands.end("\n")
                pos = self._read_heredoc_bodies(pos)
            elif match.lastgroup == "heredoc":
                commands.input = "<<"
                reader = commands.words[0].text if commands.words else ""
                pos = self._open_heredoc(pos, token, reader)
            elif match.lastgroup == "redirect":
                commands.redirect(start, token)
            elif match.lastgroup == "operator":
                commands.end(token)
                if token == "(":
                    pos = self._open_group(pos, commands)
                elif token == ")" and not commands.close("("):
                    ends_pattern = commands.inside("case")
                    if stop and not ends_pattern:
                        return pos
        if stop:
            raise UnbalancedError(opened - 2, "$(")
        commands.end("")
        if self.pending and not self.tolerant:
            raise UnbalancedError(max(0, size - 1), f"<<{self.pending[0].delimiter}")
        return pos

    def _open_group(self, pos: int, commands: CommandBuilder) -> int:
        """Enter the group whose `(` is before `pos`, or read the arithmetic command `((...))`."""
        commands.stack.append("(")
        if not self.text.startswith("(", pos):
            return pos
        end = self._read_arithmetic(pos - 1, pos - 1)
        commands.close("(")
        return end

    def _read_word(self, pos: int) -> tuple[ShellWord, int]:
        """Read the word with quotes or expansions that starts at `pos`.

        Returns the word and the offset after it.
        """
        text = self.text
        start = pos
        pieces: list[Piece] = []
        while pos < len(text):
            char = text[pos]
            bare = _BARE.match(text, pos)
            if bare is not None:
                pos = bare.end()
                before_parenthesis = text.startswith("(", pos)
                is_assignment = not pieces and _ARRAY_ASSIGNMENT.fullmatch(bare.group())
                if before_parenthesis and is_assignment:
                    elements, pos = self._read_array(pos + 1)
                    return literal_word(start, bare.group())._replace(elements=elements), pos
                if before_parenthesis and self.has_extglob and bare.group()[-1] in "?*+@!":
                    pos = find_closing(text, pos, pos, "((")
                pieces.extend(unquoted_pieces(text[bare.start() : pos], is_start=not pieces))
            elif char == "'":
                end = text.find("'", pos + 1)
                if end < 0:
                    raise UnbalancedError(pos, "'")
                pieces.append(Piece("text", text[pos + 1 : end], True, text[pos : end + 1]))
                pos = end + 1
            elif char == '"':
                pos = self._read_double_quotes(pos, pieces)
            elif char == "\\":
                escaped = text[pos + 1 : pos + 2]
                # A backslash before a newline continues the line; before a blank it makes the blank
                # part of the word.
                if escaped != "\n":
                    pieces.append(Piece("text", escaped or "\\", True, text[pos : pos + 2]))
                pos += 2
            elif char in "$`":
                pos = self._read_expansion(pos, pieces, quoted=False)
            elif char in "<>" and text.startswith("(", pos + 1):
                end = self._read_substitution(pos + 2)
                pieces.append(Piece("unknown", "", True, text[pos:end]))
                pos = end
            else:
                break
        return ShellWord(start, tuple(pieces)), min(pos, len(text))

    def _read_double_quotes(self, pos: int, pieces: list[Piece]) -> int:
        """Append the pieces of the double-quoted string that opens at `pos`.

        Returns the offset after the string.
        """
        text = self.text
        opened = pos
        pos += 1
        count_before = len(pieces)
        while pos < len(text):
            match = _IN_DOUBLE.match(text, pos)
            if match is not None:
                pieces.append(Piece("text", match.group(), True, match.group()))
                pos = match.end()
            elif text[pos] == '"':
                if len(pieces) == count_before:
                    pieces.append(Piece("text", "", True, '""'))
                return pos + 1
            elif text[pos] == "\\":
                source = text[pos : pos + 2]
                pieces.append(Piece("text", _unescape_in_quotes(source), True, source))
                pos += 2
            else:
                pos = self._read_expansion(pos, pieces, quoted=True)
        raise UnbalancedError(opened, '"')

    def _read_expansion(self, pos: int, pieces: list[Piece], quoted: bool) -> int:
        """Append the expansion that starts with the `$` or backtick at `pos`.

        Returns the offset after the expansion.
        """
        text = self.text
        if text[pos] == "`":
            match = _BACKTICKS.match(text, pos, pos + MAX_SUBSTITUTION)
            if match is None:
                raise UnbalancedError(pos, "`")
            if MARKER.search(match.group(1)) is not None:
                self._read_backticks(match.group(1), pos + 1)
            end = match.end()
        elif text.startswith("((", pos + 1):
            end = self._read_arithmetic(pos + 1, pos)
        elif text.startswith("(", pos + 1):
            end = self._read_substitution(pos + 2)
        elif not quoted and text.startswith("'", pos + 1):
            match = _ANSI_QUOTE.match(text, pos)
            if match is None:
                raise UnbalancedError(pos, "$'")
            kind: PieceKind = "unknown" if "\\" in match.group(1) else "text"
            pieces.append(Piece(kind, match.group(1), True, match.group()))
            return match.end()
        elif not quoted and text.startswith('"', pos + 1):
            return self._read_double_quotes(pos + 1, pieces)
        else:
            piece, end = parse_parameter(text, pos, quoted)
            self._read_substitutions_in(pos + 1, end)
            pieces.append(piece)
            return end
        pieces.append(Piece("unknown", text[pos:end], quoted, text[pos:end]))
        return end

    def _read_substitution(self, pos: int) -> int:
        """Read the commands of a substitution into this document; return the offset after it."""
        self.nesting += 1
        end = self.read_list(pos, stop=True)
        self.nesting -= 1
        return end

    def _read_arithmetic(self, pos: int, start: int) -> int:
        """Record the arithmetic that starts at `start` and whose `((` is at `pos`.

        Returns the offset after the arithmetic.
        """
        end = find_closing(self.text, pos, start, "((")
        self.document.arithmetic.append((start, self.text[start:end]))
        self._read_substitutions_in(pos, end)
        return end

    def _read_substitutions_in(self, pos: int, end: int) -> None:
        """Read the commands of the substitutions inside `${...}` or arithmetic."""
        if MARKER.search(self.text, pos, end) is None:
            return
        match = _SUBSTITUTION.search(self.text, pos, end)
        while match is not None:
            if match.group() == "`":
                pos = self._read_expansion(match.start(), [], quoted=True)
            elif match.group() == "$(":
                pos = self._read_substitution(match.end())
            else:  # an escaped character
                pos = match.end()
            match = _SUBSTITUTION.search(self.text, pos, end)

    def _read_backticks(self, source: str, offset: int) -> None:
        """Read the commands between backticks, which start at `offset`, into this document."""
        for command in lex(source, tolerant=True, nesting=self.nesting + 1).commands:
            moved = replace(
                command,
                words=tuple(word._replace(start=word.start + offset) for word in command.words),
                start=command.start + offset,
                after=command.after or ")",
            )
            self.document.commands.append(moved)

    def _read_array(self, pos: int) -> tuple[tuple[ShellWord, ...], int]:
        """Read the words of the array literal whose `(` is before `pos`.

        Returns the words and the offset after the literal.
        """
        words: list[ShellWord] = []
        opened = pos - 1
        while pos < len(self.text):
            match = _TOKEN.match(self.text, pos)
            if match is None:
                word, pos = self._read_word(pos)
                words.append(word)
                continue
            if match.lastgroup == "plain":
                words.append(literal_word(pos, match.group()))
            elif match.group() == ")":
                return tuple(words), match.end()
            pos = match.end()
        raise UnbalancedError(opened, "(")

    def _open_heredoc(self, pos: int, operator: str, command: str) -> int:
        """Record the delimiter of a here-document, whose body starts on the next line."""
        word, end = self._read_word(pos)
        if end == pos:
            return pos
        expands = not any(piece.quoted for piece in word.pieces)
        strips_tabs = operator.startswith("<<-")
        self.pending.append(_OpenHeredoc(word.text, expands, strips_tabs, command))
        return end

    def _read_heredoc_bodies(self, pos: int) -> int:
        """Read the bodies of the here-documents that were opened on the line before `pos`."""
        for heredoc in self.pending:
            if heredoc.delimiter in self.unended or len(self.unended) > MAX_UNENDED:
                continue
            tabs = r"\t*" if heredoc.strips_tabs else ""
            last_line = re.compile(rf"^{tabs}{re.escape(heredoc.delimiter)}$", re.MULTILINE)
            end = last_line.search(self.text, pos)
            if end is None:
                self.unended.add(heredoc.delimiter)
                if self.tolerant:
                    continue
                raise UnbalancedError(max(0, pos - 1), f"<<{heredoc.delimiter}")
            body = self.text[pos : end.start()]
            self.document.heredocs.append(Heredoc(pos, body, heredoc.expands, heredoc.command))
            pos = end.end()
        self.pending = []
        return pos
