"""Finds the code blocks of a Markdown text, and those of a Jupyter notebook."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# The prompt before a command, such as `(venv) $ `.
_PROMPT = re.compile(
    r"^[^\S\n]*(?:\([\w.-]+\)[^\S\n]*)?(?:\[[^\]\n]*\][^\S\n]*)?[$%][^\S\n]+", re.MULTILINE
)
_SHELL_CELL = re.compile(r"%%(?:bash|sh|script\s+(?:ba)?sh|writefile\s.*\.sh)\b")
# `!accelerate launch ...`, `out = !trl sft ...`
_SHELL_LINE = re.compile(r"\s*(?:\w+\s*=\s*)?!+")
# A Python expression that IPython inserts into a line of shell; `{"a": 1}` stays as it is.
_INSERTED = re.compile(r"(?<!\$)\{[A-Za-z_][\w.]*(?:\[[^]{}]*\]|\([^){}]*\))*\}")
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


def find_notebook_blocks(text: str) -> Iterator[CodeBlock]:
    """Yield the shell commands of a notebook's cells, and the rest of each cell as Python.

    Each `!` line is a command of its own, as it has a shell of its own. The lines are right for a
    notebook that Jupyter has written, which has a line of the file for each line of a cell.

    Raises ValueError for a text that is no notebook.
    """
    notebook = json.loads(text)
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise ValueError("it has no cells")
    offset = 0
    line = 1
    for cell in cells:
        source = cell.get("source") if isinstance(cell, dict) else None
        parts = source if isinstance(source, list) else str(source or "").splitlines(keepends=True)
        code = [str(part) for part in parts]
        found = _find_json_text(text, code[0], offset) if code else -1
        if found >= 0:
            line += text.count("\n", offset, found)
            offset = found
        if code and cell.get("cell_type") == "code":
            yield from _split_cell(code, line)


def _find_json_text(text: str, part: str, start: int) -> int:
    """Return the offset of a string in a JSON text; -1 without it."""
    for is_ascii in (False, True):
        found = text.find(json.dumps(part, ensure_ascii=is_ascii), start)
        if found >= 0:
            return found
    return -1


def _split_cell(code: Iterable[str], line: int) -> Iterator[CodeBlock]:
    first, *others = code
    if _SHELL_CELL.match(first):
        yield CodeBlock("bash", "".join(others), line + 1, True)
        return
    python: list[str] = []
    command = ""
    start = line
    for number, part in enumerate((first, *others), line):
        shell = _SHELL_LINE.match(part)
        if not command and shell is None:
            python.append(part)
            continue
        if not command:
            start = number
        command += _INSERTED.sub("${_}", part if command or shell is None else part[shell.end() :])
        if not part.rstrip("\n").endswith("\\"):
            yield CodeBlock("bash", command, start, True)
            command = ""
    if command:
        yield CodeBlock("bash", command, start, True)
    yield CodeBlock("python", "".join(python), line, True)
