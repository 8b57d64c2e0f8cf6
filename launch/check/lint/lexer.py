"""A small lexer for the POSIX shell language and bash's extensions: from text to simple commands.

tree-sitter 0.26.1 with tree-sitter-bash 0.25.1 was compared and does not replace it. Both give the
same commands of the 127 scripts of upstream that start a trainer, but its tree has errors in 3 that
bash accepts. Of 400 random command lines it splits 11 unlike bash, without an error in the tree (a
backslash before a blank), this one none. It loses `!(*)` and the second here-document of a line,
and continues a line behind a backslash and a carriage return.

It follows bash where that determines which words a program gets (quotes, continuations, comments,
expansions, here-documents, substitutions, arrays) and skims the rest (tests, arithmetic, case
patterns). It reads each character once, so it takes linear time.
"""

from __future__ import annotations

import re
from dataclasses import replace

from launch.check.lint.shell_syntax import (
    MAX_SUBSTITUTION,
    Heredoc,
    Piece,
    PieceKind,
    ShellDocument,
    ShellWord,
    SimpleCommand,
    TooDeepError,
    UnbalancedError,
    find_closing,
    literal_word,
    parse_parameter,
    unquoted_pieces,
)
from launch.check.lint.trainer_commands import MARKER

MAX_NESTING = 30  # levels of substitutions inside substitutions
# of one command; Linux refuses to start a program with more than 2 MiB of arguments
MAX_WORDS = 100_000
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
_FILE_DESCRIPTOR = re.compile(r"\d+|\{[A-Za-z_]\w*\}")  # right before a redirection
_SUBSTITUTION = re.compile(r"\\.|\$\((?!\()|`", re.DOTALL)
_ANSI_QUOTE = re.compile(r"\$'((?:[^'\\]++|\\.)*+)'", re.DOTALL)
_OPENERS = {
    "if": "if",
    "for": "do",
    "while": "do",
    "until": "do",
    "select": "do",
    "case": "case",
    "{": "{",
}
_CLOSERS = {"fi": "if", "done": "do", "esac": "case", "}": "{"}
_JOINING = ("&&", "||", "|", "|&")
LEADING = frozenset({"if", "then", "elif", "else", "while", "until", "do", "{", "!", "time"})


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


class _Lexer:
    def __init__(self, text: str, tolerant: bool, nesting: int) -> None:
        self.text = text
        self.tolerant = tolerant
        self.nesting = nesting
        self.has_extglob = "extglob" in text
        self.document = ShellDocument()
        self.pending: list[tuple[str, bool, bool, str]] = []  # here-documents opened on this line
        self.unended: set[str] = set()  # delimiters that do not occur any more

    def read_list(self, pos: int, stop: bool) -> int:
        """Read commands to the end, or to the `)` that closes this list (`stop`); return the offset
        behind it.
        """
        if self.nesting > MAX_NESTING:
            raise TooDeepError(pos, f"a substitution inside more than {MAX_NESTING} others")
        commands = _CommandBuilder(self)
        try:
            return self._read_list(pos, stop, commands)
        except UnbalancedError as error:
            if self.tolerant:
                tail = Piece("array", "", False, self.text[error.offset : error.offset + 40])
                commands.add(ShellWord(error.offset, (tail,)))
                commands.end("", is_truncated=True)
            raise

    def _read_list(self, pos: int, stop: bool, commands: _CommandBuilder) -> int:
        text, size, opened = self.text, len(self.text), pos
        while pos < size:
            match = _TOKEN.match(text, pos)
            if match is None:
                word, pos = self._read_word(pos)
                commands.add(word)
                continue
            kind, start, pos = match.lastgroup, pos, match.end()
            if kind == "plain":
                commands.add(literal_word(start, match.group()))
            elif kind == "newline":
                commands.end("\n")
                pos = self._read_heredoc_bodies(pos)
            elif kind == "heredoc":
                commands.input = "<<"
                pos = self._open_heredoc(
                    pos, match.group(), commands.words[0].text if commands.words else ""
                )
            elif kind == "redirect":
                commands.redirect(start, match.group())
            elif kind == "operator":
                operator = match.group()
                commands.end(operator)
                if operator == "(":
                    commands.stack.append("(")
                    if text.startswith("(", pos):
                        pos = self._read_arithmetic(start, start)
                        commands.close("(")
                elif (
                    operator == ")"
                    and not commands.close("(")
                    and not commands.inside("case")
                    and stop
                ):
                    return pos
        if stop:
            raise UnbalancedError(opened - 2, "$(")
        commands.end("")
        if self.pending and not self.tolerant:
            raise UnbalancedError(max(0, size - 1), f"<<{self.pending[0][0]}")
        return pos

    def _read_word(self, pos: int) -> tuple[ShellWord, int]:
        """Read the word with quotes or expansions that starts at `pos`; return it and the offset
        behind it.
        """
        text, size, start = self.text, len(self.text), pos
        pieces: list[Piece] = []
        while pos < size:
            char = text[pos]
            bare = _BARE.match(text, pos)
            if bare is not None:
                pos = bare.end()
                if (
                    text.startswith("(", pos)
                    and not pieces
                    and _ARRAY_ASSIGNMENT.fullmatch(bare.group())
                ):
                    elements, pos = self._read_array(pos + 1)
                    return literal_word(start, bare.group())._replace(elements=elements), pos
                if self.has_extglob and text.startswith("(", pos) and bare.group()[-1] in "?*+@!":
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
                # A backslash before a blank makes it part of the word; it is not a line
                # continuation.
                if not text.startswith("\n", pos + 1):
                    pieces.append(
                        Piece("text", text[pos + 1 : pos + 2] or "\\", True, text[pos : pos + 2])
                    )
                pos += 2
            elif char in "$`":
                pos = self._read_expansion(pos, pieces, quoted=False)
            elif char in "<>" and text.startswith("(", pos + 1):
                end = self._read_substitution(pos + 2)
                pieces.append(Piece("unknown", "", True, text[pos:end]))
                pos = end
            else:
                break
        return ShellWord(start, tuple(pieces)), min(pos, size)

    def _read_double_quotes(self, pos: int, pieces: list[Piece]) -> int:
        """Append the pieces of the double-quoted string that opens at `pos`; return the offset
        behind it.
        """
        text, size, opened = self.text, len(self.text), pos
        pos += 1
        before = len(pieces)
        while pos < size:
            match = _IN_DOUBLE.match(text, pos)
            if match is not None:
                pieces.append(Piece("text", match.group(), True, match.group()))
                pos = match.end()
            elif text[pos] == '"':
                if len(pieces) == before:
                    pieces.append(Piece("text", "", True, '""'))
                return pos + 1
            elif text[pos] == "\\":
                escaped = text[pos + 1 : pos + 2]
                plain = (
                    ""
                    if escaped == "\n"
                    else escaped
                    if escaped in ('"', "\\", "$", "`")
                    else "\\" + escaped
                )
                pieces.append(Piece("text", plain, True, "\\" + escaped))
                pos += 2
            else:
                pos = self._read_expansion(pos, pieces, quoted=True)
        raise UnbalancedError(opened, '"')

    def _read_expansion(self, pos: int, pieces: list[Piece], quoted: bool) -> int:
        """Append the expansion that starts with the `$` or backtick at `pos`; return the offset
        behind it.
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
        """Read the command list of a substitution; its commands count as this text's own."""
        self.nesting += 1
        end = self.read_list(pos, stop=True)
        self.nesting -= 1
        return end

    def _read_arithmetic(self, pos: int, start: int) -> int:
        """Record the arithmetic that starts at `start` and whose `((` is at `pos`; return the
        offset behind it.
        """
        end = find_closing(self.text, pos, start, "((")
        self.document.arithmetic.append((start, self.text[start:end]))
        self._read_substitutions_in(pos, end)
        return end

    def _read_substitutions_in(self, pos: int, end: int) -> None:
        """Read the commands of the substitutions inside `${...}` or arithmetic."""
        if MARKER.search(self.text, pos, end) is None:
            return
        while (match := _SUBSTITUTION.search(self.text, pos, end)) is not None:
            if match.group() == "`":
                pos = self._read_expansion(match.start(), [], quoted=True)
            else:
                pos = self._read_substitution(match.end()) if match.group() == "$(" else match.end()

    def _read_backticks(self, source: str, offset: int) -> None:
        for command in lex(source, tolerant=True, nesting=self.nesting + 1).commands:
            words = tuple(word._replace(start=word.start + offset) for word in command.words)
            inner = replace(
                command, words=words, start=command.start + offset, after=command.after or ")"
            )
            self.document.commands.append(inner)

    def _read_array(self, pos: int) -> tuple[tuple[ShellWord, ...], int]:
        """Read the words of the array literal whose `(` is before `pos`; return them and the offset
        behind it.
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
        expands = all(not piece.quoted for piece in word.pieces)
        self.pending.append((word.text, expands, operator.startswith("<<-"), command))
        return end

    def _read_heredoc_bodies(self, pos: int) -> int:
        """Read the bodies of the here-documents that were opened on the line before `pos`."""
        for delimiter, expands, strips_tabs, command in self.pending:
            tabs = r"\t*" if strips_tabs else ""
            if delimiter in self.unended or len(self.unended) > MAX_UNENDED:
                continue
            end = re.compile(rf"^{tabs}{re.escape(delimiter)}$", re.MULTILINE).search(
                self.text, pos
            )
            if end is None:
                self.unended.add(delimiter)
                if self.tolerant:
                    continue
                raise UnbalancedError(max(0, pos - 1), f"<<{delimiter}")
            self.document.heredocs.append(
                Heredoc(pos, self.text[pos : end.start()], expands, command)
            )
            pos = end.end()
        self.pending = []
        return pos


class _CommandBuilder:
    """Collects words into simple commands and tracks the compound commands around them."""

    def __init__(self, lexer: _Lexer) -> None:
        self.lexer = lexer
        self.words: list[ShellWord] = []
        self.stack: list[str] = []
        self.before = ""
        self.input = ""
        self.outputs: list[str] = []
        self.skip_next = ""  # the operator of a redirection, whose file is the next word

    def add(self, word: ShellWord) -> None:
        if self.skip_next:
            if ">" in self.skip_next:
                self.outputs.append(word.text)
            self.skip_next = ""
        elif len(self.words) < MAX_WORDS:
            self.words.append(word)

    def redirect(self, start: int, operator: str) -> None:
        """Skip the next word, which is a file; drop the file descriptor right before the
        operator.
        """
        last = self.words[-1] if self.words and not operator.startswith("&") else None
        if (
            last is not None
            and _FILE_DESCRIPTOR.fullmatch(last.text)
            and last.start + len(last.text) == start
        ):
            self.words.pop()
            if last.text.startswith("{"):  # it assigns the variable, as arithmetic may
                self.lexer.document.arithmetic.append((last.start, f"{last.text[1:-1]}=0"))
        self.skip_next = operator
        if operator in ("<", "<<<", "<>", "<&"):
            self.input = operator

    def end(self, operator: str, is_truncated: bool = False) -> None:
        if len(self.words) > 2 and self.words[0].text == "function" and self.words[2].text == "{":
            self.words, body = self.words[:2], self.words[2:]
            self.end("(")
            self.words = body
        if self.words:
            leading = self._track_reserved_words()
            depth = len(self.stack) + self.lexer.nesting
            words, before = tuple(self.words[leading:]), self.before if leading == 0 else "keyword"
            if words:
                is_cut = is_truncated or len(self.words) >= MAX_WORDS
                self.lexer.document.commands.append(
                    SimpleCommand(
                        words,
                        words[0].start,
                        before,
                        operator,
                        depth,
                        is_cut,
                        self.input,
                        tuple(self.outputs),
                    )
                )
            self.words = []
            self.before = operator
        elif operator != "\n" or self.before not in _JOINING:  # a newline may follow `&&`
            self.before = operator
        self.skip_next, self.input, self.outputs = "", "", []

    def _track_reserved_words(self) -> int:
        """Process the reserved words at the start of the command; return how many there are to
        drop.
        """
        count = 0
        for word in self.words:
            text = word.text
            if text in _OPENERS:
                self.stack.append(_OPENERS[text])
            elif text in _CLOSERS:
                self.close(_CLOSERS[text])
            if text not in LEADING:
                break
            count += 1
        return count

    def close(self, kind: str) -> bool:
        """Leave the innermost compound command if it is of this kind; return whether it was."""
        if self.inside(kind):
            self.stack.pop()
            return True
        return False

    def inside(self, kind: str) -> bool:
        return bool(self.stack) and self.stack[-1] == kind
