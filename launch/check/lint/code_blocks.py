"""Finds the code blocks of a Markdown text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# The prompt before a command, such as `(venv) $ `.
_PROMPT = re.compile(
    r"^[^\S\n]*(?:\([\w.-]+\)[^\S\n]*)?(?:\[[^\]\n]*\][^\S\n]*)?[$%][^\S\n]+", re.MULTILINE
)
MAX_ADMONITIONS = 4  # levels of admonitions inside others


@dataclass(frozen=True)
class CodeBlock:
    """A block of code."""

    language: str  # "" if none is given
    text: str
    line: int  # 1-based line where the text starts
    fenced: bool


def find_code_blocks(text: str, line: int = 1, depth: int = 0) -> Iterator[CodeBlock]:
    """Yield the code blocks of a Markdown text that starts on `line`.

    A fence that is never closed extends to the end. `depth` is the number of indented blocks around
    the text: an admonition is such a block, and may contain fences.
    """
    from markdown_it import MarkdownIt  # slow to import, and most files are scripts

    parser = MarkdownIt("zero").enable(["fence", "code", "list", "blockquote"])
    for token in parser.parse(text.replace("\r", " ")):
        start = line + (token.map[0] if token.map else 0)
        code = _PROMPT.sub("", token.content)
        if token.type == "fence":
            # the language ends at `{`, as in ```bash {.numbered}, or at `:` or a comma
            language = re.split(r"[\s,{:]", token.info.strip().lower())[0]
            yield CodeBlock(language, code, start + 1, True)
        elif token.type == "code_block":
            fences: list[CodeBlock] = []
            if depth < MAX_ADMONITIONS:
                inner = find_code_blocks(token.content, start, depth + 1)
                fences = [block for block in inner if block.fenced]
            if fences:
                yield from fences
            else:
                yield CodeBlock("", code, start, False)
