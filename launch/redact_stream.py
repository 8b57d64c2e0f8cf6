"""Masks the secrets of a stream that arrives in pieces."""

from __future__ import annotations

from launch.redact import Redactor, mask_spans
from launch.secret_shapes import PEM_END, PEM_LINE, end_of_lines
from launch.secret_structure import NAME_BYTES, open_line_start

_TOKEN_BYTES = NAME_BYTES + b"~+/=:@%"


def _last_cut(data: bytes) -> int:
    """Return the end of the last whole line: behind an LF, or a CR that is not in a word."""
    cut = data.rfind(b"\n") + 1
    at = data.rfind(b"\r")
    while at >= cut:
        before = data[at - 1 : at]
        if not before.isalnum() and before not in (b"_", b"-", b"+", b"/", b"=", b"."):
            return at + 1
        at = data.rfind(b"\r", 0, at)
    return cut


class StreamRedactor:
    """Redacts a stream that arrives in pieces; a secret that is split over pieces is never written.

    Whole lines (ended by LF, or by a CR that is not in a word) are passed on and the last partial
    one is held back. A line longer than `cap` bytes is passed on in parts, `overlap` bytes late,
    and never cut inside a secret or between a secret and its name. A private key or a YAML block
    that continues over several pieces ends at the first line that cannot be part of it, after
    `block_limit` bytes at the latest.
    """

    def __init__(
        self,
        redactor: Redactor,
        cap: int = 1 << 16,
        overlap: int = 1 << 13,
        block_limit: int = 1 << 16,
    ):
        if not 0 < overlap < cap:
            raise ValueError("the overlap must be smaller than the cap")
        self._redactor = redactor
        self._cap = cap
        self._overlap = overlap
        self._block_limit = block_limit
        self._held = b""
        self._block_left = 0  # bytes that may still be dropped of a block of lines, 0 outside one
        self._block_line = PEM_LINE
        self._header = b""  # of a table, or a list, that may continue
        self._in_secret = False  # whether a secret longer than the cap continues

    def feed(self, data: bytes) -> bytes:
        """Take the next piece and return what can be written by now."""
        if self._in_secret:
            data = self._drop_secret(data)
        data = self._held + data
        cut = _last_cut(data)
        cut = open_line_start(data[:cut])
        self._held = data[cut:]
        out = self._redact(data[:cut])
        if len(self._held) > self._cap:
            out += self._cut_long_line()
        return out

    def close(self) -> bytes:
        """Return what was held back, at the end of the stream."""
        held = self._held
        self._held = b""
        return self._redact(held)

    def _redact(self, data: bytes) -> bytes:
        if self._block_left:
            data = self._drop_block(data)
        if not data:
            return b""
        known = len(self._header)  # passed on before, with no secret in it
        data = self._header + data
        spans = self._redactor.spans(data)
        self._header = b""
        for span in spans:
            self._header = span.header or self._header
            if span.open_block:
                self._block_left = self._block_limit
                self._block_line = span.open_block
        new = [span for span in spans if span.start >= known]
        return mask_spans(data, new)[known:] if new else data[known:]

    def _drop_block(self, data: bytes) -> bytes:
        """Return the data without the rest of a block of lines that began in an earlier piece."""
        end = None
        if self._block_line is PEM_LINE:
            end = PEM_END.search(data, 0, self._block_left)
        if end:
            self._block_left = 0
            return data[end.end() :]
        dropped = min(end_of_lines(self._block_line, data, 0), self._block_left)
        if dropped < len(data):
            self._block_left = 0
        else:
            self._block_left -= dropped
        return data[dropped:]

    def _cut_long_line(self) -> bytes:
        """Pass on the start of the held line, up to a cut that splits no secret."""
        data = self._held
        cut = len(data) - self._overlap
        spans = self._redactor.spans(data)
        # The cut moves before every secret that it would split; there it may split another one.
        crossing = [span for span in spans if span.context < cut < span.end]
        while crossing:
            cut = min(span.context for span in crossing)
            crossing = [span for span in spans if span.context < cut < span.end]
        if cut > 0:
            self._held = data[cut:]
            return self._redact(data[:cut])
        self._held = b""
        self._in_secret = any(span.end == len(data) and not span.open_block for span in spans)
        return self._redact(data)

    def _drop_secret(self, data: bytes) -> bytes:
        left = data.lstrip(_TOKEN_BYTES)
        self._in_secret = not left
        return left
