"""Parse the shell's parameter expansions: `$X`, `${X}`, `${X[@]}`, `${X:-1}`."""

from __future__ import annotations

import re

from launch.check.lint.shell_syntax import Piece, PieceKind, UnbalancedError

MAX_PARAMETER = 20_000  # characters of one ${...}

_NAMED = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
_LIST = re.compile(r"\$(?:[@*]|\{(?:[@*]|([A-Za-z_]\w*)\[[@*]\])\})")
_SPECIAL = re.compile(r"\$[0-9?#$!-]")
_BRACE = re.compile(r"\\.|\$\{|\}|\{", re.DOTALL)
ASSIGNS = re.compile(r"\$\{([A-Za-z_]\w*):?=")  # ${X:=1} assigns


def parse_parameter(text: str, pos: int, quoted: bool) -> tuple[Piece, int]:
    """Return the expansion that starts with the `$` at `pos`, and the offset behind it; any other `$` is literal.

    Raises UnbalancedError for a `${` that is never closed.
    """
    match = _NAMED.match(text, pos)
    if match is not None:
        return Piece(PieceKind.VARIABLE, match.group(1) or match.group(2), quoted, match.group()), match.end()
    match = _LIST.match(text, pos)
    if match is not None:
        return Piece(PieceKind.ARRAY, match.group(1) or "", quoted, match.group()), match.end()
    match = _SPECIAL.match(text, pos)
    if match is not None:
        return Piece(PieceKind.UNKNOWN, match.group(), quoted, match.group()), match.end()
    if text.startswith("${", pos):
        end = _closing_brace(text, pos)
        source = text[pos:end]
        if "[@]" in source or "[*]" in source or source.startswith(("${@", "${*")):
            return Piece(PieceKind.ARRAY, "", quoted, source), end
        return Piece(PieceKind.UNKNOWN, source, quoted, source), end
    return Piece(PieceKind.TEXT, "$", quoted, "$"), pos + 1


def _closing_brace(text: str, pos: int) -> int:
    depth = 0
    limit = pos + MAX_PARAMETER
    for match in _BRACE.finditer(text, pos, limit):
        if match.group() in ("${", "{"):
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0:
                return match.end()
    raise UnbalancedError(pos, "${")
