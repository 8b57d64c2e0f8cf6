"""Find the code in Markdown: fenced blocks and blocks indented by four columns, also in lists and quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from launch.check.lint.trainers import MARKER

_QUOTE = re.compile(r"(?: {0,3}> ?)+")
_FENCE = re.compile(r"(?P<indent>\s*(?:[-*+]\s+|\d+[.)]\s+)?)(?P<fence>`{3,}|~{3,})\s*(?P<info>[^`]*)$")
_PROMPT = re.compile(r"^[^\S\n]*(?:\([\w.-]+\)[^\S\n]*)?(?:\[[^\]\n]*\][^\S\n]*)?[$%][^\S\n]+", re.MULTILINE)
_INDENTED = re.compile(r"(?: {4}|\t)")


@dataclass(frozen=True)
class CodeBlock:
    """A block of code."""

    language: str  # "" if none is given
    text: str
    line: int  # 1-based line where the text starts
    fenced: bool


def find_code_blocks(text: str) -> Iterator[CodeBlock]:
    """Yield the code blocks of a Markdown text. A fence that is never closed extends to the end."""
    lines = text.split("\n")
    index = 0
    blank_before = True
    while index < len(lines):
        line = _strip_quote_marks(lines[index])
        fence = _FENCE.match(line)
        if fence is not None:
            end = _fence_end(lines, index + 1, fence.group("fence"))
            language = re.split(r"[\s,{:]", fence.group("info").strip().lower() + " ")[0]
            indent = len(fence.group("indent").expandtabs(4))
            body = [_dedent(_strip_quote_marks(inner), indent) for inner in lines[index + 1 : end]]
            yield CodeBlock(language, _PROMPT.sub("", "\n".join(body)), index + 2, True)
            index = end + 1
            blank_before = True
        elif blank_before and _INDENTED.match(line) and line.strip():
            end = index
            while end < len(lines) and (not lines[end].strip() or _INDENTED.match(_strip_quote_marks(lines[end]))):
                end += 1
            body = [_strip_quote_marks(inner).strip() for inner in lines[index:end]]
            code = _PROMPT.sub("", "\n".join(body))
            if MARKER.search(code) is not None:
                yield CodeBlock("", code, index + 1, False)
            index = end
        else:
            blank_before = not line.strip()
            index += 1


def _strip_quote_marks(line: str) -> str:
    match = _QUOTE.match(line)
    return line if match is None else line[match.end() :]


def _dedent(line: str, indent: int) -> str:
    blank = len(line) - len(line.lstrip(" \t"))
    return line[min(blank, indent) :]


def _fence_end(lines: list[str], start: int, fence: str) -> int:
    """Return the index of the line that closes the fence, or the number of lines."""
    for index in range(start, len(lines)):
        stripped = _strip_quote_marks(lines[index]).strip()
        if len(stripped) >= len(fence) and stripped[:3] == fence[:3] and not stripped.strip(fence[0]):
            return index
    return len(lines)
