"""Finds where a secret of several lines ends: YAML's scalars and lists, and maps of secrets.

Everything here begins with the name of a secret, at `start` in the data.
"""

from __future__ import annotations

import re

from launch.secret_shapes import Span, end_of_lines

_MOST_BYTES = 4096  # of a map of secrets
_DEEPEST = 8  # levels of one
_LINE_START = re.compile(rb"[ \t]*(?:[-?][ \t]+)*['\"]?")
_BLOCK_SCALAR = re.compile(rb"[ \t]{1,4}(?P<mark>[|>])[-+0-9]{0,2}[ \t]*(?:#[^\n]*)?\r?\n")
# `tokens:`, `"tokens": [`, `"tokens": {`, and nothing else on the line
_OPENED = re.compile(rb"['\"]?[ \t]*:[ \t]*(?P<bracket>[\[{]?)[ \t]*\r?\n")
_MAPPING = re.compile(rb"[ \t]*(?:-[ \t]+)?['\"]?[\w.-]+['\"]?:(?:[ \t]|\r?\n|\Z)")
_PLAIN_REST = re.compile(rb"(?:(?!:[ \t]|[ \t]#|, \w+[=:])[^\n\r])*")


def holds_secrets(name: str) -> bool:
    """Whether what has the name of a secret is a collection of them: `passwords`, `credentials`."""
    return name.lower().endswith("s") and not name.lower().endswith("ss")


def scalar_span(data: bytes, start: int, colon: int) -> Span | None:
    """Return the YAML block scalar that `|` or `>` opens behind the colon at `colon`."""
    mark = _BLOCK_SCALAR.match(data, colon + 1) if data[colon : colon + 1] == b":" else None
    if mark is None:
        return None
    first = data.rfind(b"\n", 0, colon) + 1
    indent = len(data[first:colon]) - len(data[first:colon].lstrip(b" "))
    line = re.compile(rb"(?: {%d,}[^\n]*|[ \t\r]*)\n?" % (indent + 1))
    return _lines_span(data, start, mark.start("mark"), mark.end(), line)


def lines_span(data: bytes, start: int, end: int, name: str) -> Span | None:
    """Return the lines below a name that ends at `end` and is alone on its line with a colon.

    They are the items of a list, a scalar, or all that a collection of secrets holds.
    """
    column = _column(data, start)
    opened = _OPENED.match(data, end)
    if column is None or opened is None or opened.end() == len(data):
        return None
    deeper = rb"[ \t]{%d,}" % (column + 1)
    if re.compile(rb"[ \t]{%d,}-[ \t]" % column).match(data, opened.end()):
        line = rb"(?:[ \t]{%d,}-[ \t]|%s)[^\n]*\n?" % (column, deeper)
    elif not re.compile(deeper).match(data, opened.end()):
        return None
    elif holds_secrets(name) or opened["bracket"] == b"[":
        line = deeper + rb"[^\n]*\n?"
    elif opened["bracket"] or _MAPPING.match(data, opened.end()):
        return None
    else:
        line = _continuation(column)
    indent = re.compile(rb"[ \t]*").match(data, opened.end())
    first = indent.end() if indent else opened.end()
    return _lines_span(data, start, first, opened.end(), re.compile(line))


def whole_scalar(data: bytes, span: Span, separator: bytes) -> Span:
    """Return a value in YAML to its end: the rest of its line, and the lines that continue it.

    `separator` is what stands between the name and the value, with the quote that opens it.
    """
    column = _column(data, span.context)
    if column is None or not re.fullmatch(rb"['\"]?[ \t]*:[ \t].*", separator, re.DOTALL):
        return span
    end = span.end
    quote = separator[-1:]
    if quote not in (b"'", b'"'):
        rest = _PLAIN_REST.match(data, end)
        end = rest.end() if rest else end
    line_end = re.compile(rb"[ \t\r]*(?:\n|\Z)").match(data, end)
    if line_end is None:
        return span
    line = re.compile(_continuation(column))
    if quote in (b"'", b'"'):
        line = re.compile(rb"[ \t]{%d,}[^\n]*\n?" % (column + 1))
    after = end_of_lines(line, data, line_end.end())
    is_open = after == len(data)
    if after > line_end.end():
        end += len(data[end:after].rstrip())
    return Span(span.context, span.start, end, line if is_open else None)


def map_extent(data: bytes, end: int) -> tuple[int, int] | None:
    """Return where the map or list of maps is that opens behind a name, which ends at `end`."""
    opened = re.compile(rb"\\*['\"]?\s{0,4}[:=]\s{0,4}(?=\[?\s{0,4}\{)").match(data, end)
    if opened is None:
        return None
    depth = 0
    for bracket in re.compile(rb"[\[{}\]]").finditer(data, opened.end(), end + _MOST_BYTES):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth in (0, _DEEPEST):
            return opened.end(), bracket.end()
    return opened.end(), min(len(data), end + _MOST_BYTES)


def _column(data: bytes, start: int) -> int | None:
    """Return the column of a name that begins its line, behind quotes and the marks of a list."""
    first = data.rfind(b"\n", 0, start) + 1
    before = data[first:start]
    if not _LINE_START.fullmatch(before):
        return None
    return len(before.rstrip(b"'\""))


def _continuation(column: int) -> bytes:
    """Return the pattern of a line that continues a plain scalar whose key is in this column."""
    return (
        rb"[ \t]{%d,}(?![-#][ \t])(?:(?!:[ \t\r\n]|:\Z)[^\n\r])+\r?(?:\n|\Z)|[ \t]*\r?\n(?=[ \t]{%d,}[^\s#-])"
        % (column + 1, column + 1)
    )


def _lines_span(data: bytes, start: int, first: int, lines: int, line: re.Pattern[bytes]) -> Span:
    """Return the span from `first` to the end of the lines from `lines` on that match."""
    end = end_of_lines(line, data, lines)
    stop = first + len(data[first:end].rstrip())
    return Span(start, first, stop, open_block=line if end == len(data) else None)
