"""Collects the words that the lexer reads into simple commands."""

from __future__ import annotations

import re

from launch.check.lint.shell_syntax import ShellDocument, ShellWord, SimpleCommand

# Words of one command; Linux refuses to start a program with more than 2 MiB of arguments.
MAX_WORDS = 100_000
# The text right before a redirection that names its file descriptor.
_FILE_DESCRIPTOR = re.compile(r"\d+|\{[A-Za-z_]\w*\}")
# The reserved words that open a compound command, and those that close it.
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


class CommandBuilder:
    """Collects words into simple commands and tracks the compound commands around them."""

    def __init__(self, document: ShellDocument, nesting: int) -> None:
        self.document = document  # the commands are appended to it
        self.nesting = nesting  # levels of substitutions around the commands
        self.words: list[ShellWord] = []
        self.stack: list[str] = []  # the compound commands around it, the innermost last
        self.before = ""  # the operator before the command
        # the rest is about the redirections of the command
        self.input = ""
        self.outputs: list[str] = []
        self.skip_next = ""  # the operator of a redirection, whose file is the next word

    def add(self, word: ShellWord) -> None:
        """Add a word to the command, unless it is the file of a redirection."""
        if self.skip_next:
            if ">" in self.skip_next:
                self.outputs.append(word.text)
            self.skip_next = ""
        elif len(self.words) < MAX_WORDS:
            self.words.append(word)

    def redirect(self, start: int, operator: str) -> None:
        """Skip the next word, which is a file, and drop the file descriptor before the operator."""
        if self.words and not operator.startswith("&"):
            last = self.words[-1]
            is_adjacent = last.start + len(last.text) == start
            if is_adjacent and _FILE_DESCRIPTOR.fullmatch(last.text):
                self.words.pop()
                if last.text.startswith("{"):  # it assigns the variable, as arithmetic may
                    self.document.arithmetic.append((last.start, f"{last.text[1:-1]}=0"))
        self.skip_next = operator
        if operator in ("<", "<<<", "<>", "<&"):
            self.input = operator

    def end(self, operator: str, is_truncated: bool = False) -> None:
        """Record the command that ends with this operator."""
        texts = [word.text for word in self.words[:3]]
        if len(texts) == 3 and texts[0] == "function" and texts[2] == "{":
            # `function NAME { ...` has no parentheses that would end its first command
            body = self.words[2:]
            self.words = self.words[:2]
            self.end("(")
            self.words = body
        if self.words:
            is_too_long = len(self.words) >= MAX_WORDS
            self._record_command(operator, is_truncated or is_too_long)
            self.words = []
            self.before = operator
        elif operator != "\n" or self.before not in _JOINING:  # a newline may follow `&&`
            self.before = operator
        self.skip_next = ""
        self.input = ""
        self.outputs = []

    def _record_command(self, operator: str, is_truncated: bool) -> None:
        """Append the words after the reserved ones as a command; track the reserved words."""
        reserved = self._track_reserved_words()
        words = tuple(self.words[reserved:])
        if not words:
            return
        command = SimpleCommand(
            words,
            start=words[0].start,
            before="keyword" if reserved else self.before,
            after=operator,
            depth=len(self.stack) + self.nesting,
            is_truncated=is_truncated,
            input=self.input,
            outputs=tuple(self.outputs),
        )
        self.document.commands.append(command)

    def _track_reserved_words(self) -> int:
        """Process the reserved words at the start of the command; return how many to drop."""
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
        """Return whether the innermost compound command is of this kind."""
        return bool(self.stack) and self.stack[-1] == kind
