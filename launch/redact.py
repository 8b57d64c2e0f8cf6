"""Masks secrets as `<set>` in text, bytes and objects that leave the process.

`launch.files`, `launch.terminal` and `launch.execution.supervise.streams` use it for all that they
write.

A secret is recognised by its name (`hub_token`, `WANDB_API_KEY`), by its shape (`hf_...`, a JWT, a
PEM block), or because it is the exact value of such a variable in this process's environment. A git
sha is not a secret, although an old wandb key looks the same: that one is only recognised by its
name or from the environment.
"""

from __future__ import annotations

import base64
import bisect
import html
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from launch.secret_names import is_sensitive_name, name_strength

MASK = "<set>"
_MASK = MASK.encode()


@dataclass(frozen=True)
class _Span:
    """A secret: the bytes [start, end)."""

    context: int  # where the text that identifies it begins
    start: int
    end: int
    # The secret may continue after the data, with lines that match this pattern.
    open_block: re.Pattern[bytes] | None = None


_NOT_INSIDE = rb"(?<![A-Za-z0-9])"
# How a secret begins, and a regular expression of what follows.
_TOKENS: Mapping[bytes, bytes] = {
    b"hf_": rb"[A-Za-z0-9]{16,}",
    b"api_org_": rb"[A-Za-z0-9]{16,}",
    b"sk-": rb"[A-Za-z0-9_-]{16,}",
    **{b"gh%c_" % kind: rb"[A-Za-z0-9]{16,}" for kind in b"pousr"},
    b"github_pat_": rb"[A-Za-z0-9_]{16,}",
    b"AKIA": rb"[0-9A-Z]{12,}",
    b"ASIA": rb"[0-9A-Z]{12,}",
    b"xox": rb"[a-z]-[A-Za-z0-9-]{8,}",
    b"wandb-v1": rb"[-_][A-Za-z0-9_-]{8,}",
    b"wandb_v1": rb"[-_][A-Za-z0-9_-]{8,}",
    b"glpat-": rb"[A-Za-z0-9_-]{12,}",
    b"AIza": rb"[0-9A-Za-z_-]{30,}",
    b"npm_": rb"[A-Za-z0-9]{30,}",
    b"SG.": rb"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    b"ya29.": rb"[A-Za-z0-9_-]{20,}",
    b"pypi-": rb"[A-Za-z0-9_-]{32,}",
    b"r8_": rb"[A-Za-z0-9]{30,}",
    b"gsk_": rb"[A-Za-z0-9]{30,}",
    b"nvapi-": rb"[A-Za-z0-9_-]{30,}",
    b"dckr_pat_": rb"[A-Za-z0-9_-]{20,}",
    b"eyJ": rb"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]{8,}",
}
_BASIC = rb"(?i)\bbasic(?: {1,4}|%20)([A-Za-z0-9+/]{6,}={0,2})"
# Other forms: a regular expression whose group 1 is masked, and literals of which one occurs in all
# lower-cased data that matches.
_SHAPES: tuple[tuple[bytes, ...], ...] = (
    (_NOT_INSIDE + rb"([srp]k_(?:live|test)_[A-Za-z0-9]{10,})", b"k_live_", b"k_test_"),
    (_BASIC, b"basic"),
    (rb"(?i)\bbearer\s{1,4}([A-Za-z0-9._~+/=-]{8,})", b"bearer"),
    (rb"(?i)authorization\\?['\"]?\s{0,2}[:=]\s{0,2}\\?['\"]?(\w+ +[^\s'\",]+)", b"authorization"),
    (rb"://([^/\s:@'\"]*:[^/\s'\"]+|[^/\s:@'\"]{20,})@", b"://"),
)
_PEM_LABEL = (
    rb"(?: |%20|\+)(?:[A-Z0-9 +]|%20){0,60}PRIVATE(?: |%20|\+)KEY(?:(?: |%20|\+)BLOCK)?-----"
)
_PEM_BEGIN = re.compile(rb"-----BEGIN" + _PEM_LABEL)
_PEM_END = re.compile(rb"-----END" + _PEM_LABEL)

_LONGEST_KEY = 1 << 14  # bytes; about an RSA key of 16,384 bits in PEM
_PEM_LINE_REST = re.compile(rb"(?:\\+[nr]|%(?:0[AaDd]|2[BbFf]|3[Dd])|[A-Za-z0-9+/=])*")
# A line of a key: base64, perhaps behind a rank's prefix; a header of an encrypted key; an empty
# line; the end's mark.
_PEM_LINE = re.compile(
    rb"(?:[ \t]*[A-Za-z0-9+/=]{8,}|[^\r\n]*[ \t:|][A-Za-z0-9+/=]{40,}"
    rb"|(?:Proc-Type|DEK-Info|Version|Comment):[^\r\n]*"
    rb"|[^\r\n]*-----END" + _PEM_LABEL + rb")?[ \t]*\r?\n?"
)

# What may come between the halves of a secret: a colour code, a progress bar, a return to the
# line's start.
_INTERRUPTION = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\r[^\r\n]{0,80}?\d{1,3}%\|[^\r\n]{0,200}?\]|\r(?!\n)"
)

# Name, separator, value: matched wherever a keyword occurs in the lower-cased data. The start of
# the name is found afterwards, as a leading \w* would be quadratic on a long line.
_KEYWORDS = (b"token", b"secret", b"passw", b"passphrase", b"credential", b"key")
_NAMED = re.compile(
    rb"[A-Za-z0-9_]{3,64}+"
    rb"(?P<sep>(?:\\*['\"]|&(?:quot|#3[49]|#x27);|%2[27])?\s{0,4}(?:[:=]|%3[ADad])(?:\s{0,4}|%20)"
    rb"|\s{1,4})"
    rb"(?:&(?:quot|#3[49]|#x27);(?P<html>[^&\n\r]+)"
    rb"|%2[27](?P<quoted>(?:(?!%2[27])[^\s&\"'])+)"
    rb"|(?P<slashes>\\+)\"(?P<escaped>(?:(?!(?P=slashes)\")[^\n\r])+)"
    rb"|\"(?P<double>(?:[^\"\\\n\r]|\\[^\n\r])+)"
    rb"|'(?P<single>(?:[^'\\\n\r]|\\[^\n\r])+)|(?P<bare>[^\s,;'\"}\])&]+(?<!\\)))"
)
_NAME_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_PLAIN = frozenset(b"none null true false str bool int <set> any optional[str]".split())
# Values of a token of text, not of access: a count, a rate, `<pad>`, `</s>`, `<|end|>`
_TEXT_TOKEN = re.compile(
    rb"-?(?:\d{1,7}|\d*\.\d+(?:e[+-]?\d+)?|nan|inf)\.?|</?\|?\w{1,32}\|?>", re.IGNORECASE
)
_TEXT_BEFORE = re.compile(
    rb"(?i)\b(?:pad|eos|bos|unk|mask|special|next|per|first|last|stop|new|unexpected)(?:ding)? \Z"
)
_MOUNTED = re.compile(rb"/\S*|r[ow]\S{0,20}|[zZ]")
_BLOCK_SCALAR = re.compile(rb"[|>][-+0-9]{0,2}[ \t]*(?:#[^\n]*)?\r?\n")
_TOKEN_BYTES = _NAME_BYTES + b"~+/=:@%"
_HARMLESS_VALUES = frozenset(["enabled", "disabled", "default", "required", "optional"])


def _shape_spans(data: bytes, lowered: bytes) -> list[_Span]:
    """Find the secrets that have a known form; `lowered` is `data` in lower case."""
    patterns = []
    for start, rest in _TOKENS.items():
        if start in data:
            patterns.append(_NOT_INSIDE + b"(" + re.escape(start) + rest + b")")
    for pattern, *literals in _SHAPES:
        if any(literal in lowered for literal in literals):
            patterns.append(pattern)
    spans: list[_Span] = []
    for pattern in patterns:
        matches = re.finditer(pattern, data)
        if pattern == _BASIC:
            matches = filter(_is_basic, matches)
        spans.extend(_Span(match.start(), *match.span(1)) for match in matches)
    return spans


def _pem_spans(data: bytes) -> list[_Span]:
    """Find private keys.

    A key whose end is not near stops at the first line that cannot be part of a key.
    """
    spans: list[_Span] = []
    if b"-----BEGIN" not in data:
        return spans
    begin = _PEM_BEGIN.search(data)
    while begin:
        end = _PEM_END.search(data, begin.end(), begin.end() + _LONGEST_KEY)
        if end:
            stop = end.end()
        else:
            rest = _PEM_LINE_REST.match(data, begin.end())
            stop = _end_of_lines(_PEM_LINE, data, rest.end() if rest else begin.end())
        is_open = end is None and stop == len(data)
        open_block = _PEM_LINE if is_open else None
        spans.append(_Span(begin.start(), begin.start(), stop, open_block))
        begin = _PEM_BEGIN.search(data, stop)
    return spans


def _end_of_lines(line: re.Pattern[bytes], data: bytes, at: int) -> int:
    """Return where the lines from `at` on that match `line` end.

    `at` may be inside the first line.
    """
    while at < len(data):
        stop = data.find(b"\n", at) + 1 or len(data)
        if not line.fullmatch(data, at, stop):
            break
        at = stop
    return at


def _named_spans(data: bytes, lowered: bytes) -> list[_Span]:
    """Find the values of sensitive names; `lowered` is `data` in lower case."""
    spans: list[_Span] = []
    for keyword in _KEYWORDS:
        at = lowered.find(keyword)
        while at >= 0:
            match = _NAMED.match(data, at)
            span = _named_span(data, match) if match else None
            if span:
                spans.append(span)
            at = lowered.find(keyword, at + len(keyword))
    return spans


def _is_basic(match: re.Match[bytes]) -> bool:
    """Whether group 1 is the user and password of `Basic` credentials.

    These are recognised without the name of their header.
    """
    try:
        user, colon, password = base64.b64decode(match[1], validate=True).decode().partition(":")
    except ValueError:
        return False
    return bool(user and colon and password) and (user + password).isprintable()


def _named_span(data: bytes, match: re.Match[bytes]) -> _Span | None:
    """Return the secret of a match of _NAMED, None if it is not one."""
    # The match begins at the keyword; the name may begin up to 64 bytes before it.
    earliest = max(0, match.start() - 64)
    start = earliest + len(data[earliest : match.start()].rstrip(_NAME_BYTES))
    name = data[start : match.start("sep")]
    if match["sep"].isspace() and not name.startswith(b"--"):
        return None
    group = match.lastgroup or "bare"
    value = match[group]
    if value.lower() in _PLAIN or not value.strip(b"{[("):
        return None
    if not is_sensitive_name(name.decode("ascii", "replace")):
        return None
    if group == "bare":
        before = data[max(0, start - 2) : start]
        if _is_shell_or_path(before, match["sep"], value):
            return None
        block = _BLOCK_SCALAR.match(data, match.start("bare"))
        if block:
            return _block_span(data, start, block)
    is_text_token = b"token" in name.lower() and (
        _TEXT_TOKEN.fullmatch(value) or _TEXT_BEFORE.search(data, max(0, start - 20), start)
    )
    return None if is_text_token else _Span(start, *match.span(group))


def _block_span(data: bytes, start: int, block: re.Match[bytes]) -> _Span:
    """Return the YAML block scalar that `block` opens; its name begins at `start`."""
    first = data.rfind(b"\n", 0, start) + 1
    indent = len(data) - len(data[first:].lstrip(b" ")) - first
    line = re.compile(rb"(?: {%d,}[^\n]*|[ \t\r]*)\n?" % (indent + 1))
    end = _end_of_lines(line, data, block.end())
    if end == len(data):
        return _Span(start, block.start(), end, open_block=line)
    return _Span(start, block.start(), len(data[:end].rstrip()))


def _is_shell_or_path(before: bytes, separator: bytes, value: bytes) -> bool:
    """Whether it is the message of `${NAME:?message}`, or the second path of a mount.

    `before` are the two bytes before the name.
    """
    if before == b"${":
        return separator == b":" and value.startswith(b"?")
    return before.endswith(b"/") and separator == b":" and bool(_MOUNTED.fullmatch(value))


def _mask(data: bytes, spans: Iterable[_Span]) -> bytes:
    parts: list[bytes] = []
    at = 0
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if span.end <= at:
            continue
        if span.start >= at:
            parts += [data[at : span.start], _MASK]
        at = span.end
    parts.append(data[at:])
    return b"".join(parts)


class Redactor:
    """Masks secrets in text, bytes, named values and JSON-like objects.

    `environ` is the current environment: the values (6 characters or more) of its variables with
    sensitive names are masked wherever they appear, also JSON-escaped, URL-quoted or line by line.
    """

    def __init__(self, environ: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
        variables = environ.items() if isinstance(environ, Mapping) else environ
        self._needles = tuple(_needles(variables))

    def spans(self, data: bytes) -> list[_Span]:
        """Find the secrets in `data`, also those that escape codes interrupt; they may overlap."""
        spans = self._plain_spans(data)
        if b"\x1b" in data or b"\r" in data:
            spans += self._interrupted_spans(data)
        return spans

    def _interrupted_spans(self, data: bytes) -> list[_Span]:
        """Find the secrets in `data` without its interruptions, as spans of `data`."""
        # The offsets of each part without interruptions: in the joined parts, and in `data`.
        joined_starts: list[int] = []
        data_starts: list[int] = []
        parts: list[bytes] = []
        at = 0
        length = 0
        for match in [*_INTERRUPTION.finditer(data), None]:
            end = match.start() if match else len(data)
            joined_starts.append(length)
            data_starts.append(at)
            parts.append(data[at:end])
            length += end - at
            at = match.end() if match else end
        if len(parts) == 1:
            return []

        def in_data(offset: int, side: int = 0) -> int:
            """The offset in `data`; `side` -1 is the end of a part, not the start of the next."""
            index = bisect.bisect(joined_starts, offset + side) - 1
            return data_starts[index] + offset - joined_starts[index]

        spans = []
        for span in self._plain_spans(b"".join(parts)):
            if span.end > span.start:
                context = in_data(span.context)
                end = in_data(span.end, side=-1)
                spans.append(_Span(context, in_data(span.start), end, span.open_block))
        return spans

    def _plain_spans(self, data: bytes) -> list[_Span]:
        lowered = data.lower()
        spans = _shape_spans(data, lowered) + _pem_spans(data) + _named_spans(data, lowered)
        for needle in self._needles:
            at = data.find(needle)
            while at >= 0:
                spans.append(_Span(at, at, at + len(needle)))
                at = data.find(needle, at + len(needle))
        return spans

    def redact_bytes(self, data: bytes) -> bytes:
        """Mask the secrets in `data`, preferably whole lines; keep every other byte."""
        spans = self.spans(data)
        return _mask(data, spans) if spans else data

    def redact_text(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        return self.redact_bytes(data).decode("utf-8", "surrogatepass")

    def redact_value(self, name: str, value: str) -> str:
        """Mask the value of a variable, flag or key, all of it if the name is sensitive."""
        if value and is_sensitive_name(name) and value.lower().encode() not in _PLAIN:
            return MASK
        return self.redact_text(value)

    def redact_object(self, value: Any, name: str = "") -> Any:
        """Mask the secrets in a JSON-like object, those of a dict by its keys.

        Lists and tuples become lists. In `{"hub_token": {"value": ..., "origin": ...}}`, the form
        of a plan's flags, the outer key names the value.
        """
        if isinstance(value, Mapping):
            masked = {}
            for key, item in value.items():
                item_name = name if key == "value" else str(key)
                masked[self.redact_text(str(key))] = self.redact_object(item, item_name)
            return masked
        if isinstance(value, (list, tuple)):
            if all(isinstance(item, str) for item in value):
                return [self.redact_value(name, item) for item in self.redact_argv(value)]
            return [self.redact_object(item, name) for item in value]
        if isinstance(value, str):
            return self.redact_value(name, value)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and name_strength(name) == 2:
            return MASK
        return value

    def redact_argv(self, argv: Sequence[str]) -> list[str]:
        """Mask a command line, `--hub_token VALUE` and `--hub_token=VALUE` too."""
        masked: list[str] = []
        flag = ""
        for argument in argv:
            name, equals, value = argument.partition("=")
            is_flag = argument.startswith("-")
            if equals and (is_flag or re.fullmatch(r"[\w.+~]+", name)):
                masked.append(f"{name}={self.redact_value(name, value)}")
            elif is_flag:
                masked.append(self.redact_text(argument))
            else:
                masked.append(self.redact_value(flag, argument))
            flag = argument if argument.startswith("--") and not equals else ""
        return masked


_added: set[tuple[str, str]] = set()


def add_secrets(environ: Mapping[str, str]) -> None:
    """Have this process also mask the secrets of `environ`, such as a plan's variables."""
    _added.update((name, value) for name, value in environ.items() if name_strength(name))


def process_redactor() -> Redactor:
    """Return the redactor of this process's environment; it is rebuilt when a variable changes."""
    return _redactor_of((*os.environ.items(), *_added))


@lru_cache(maxsize=1)
def _redactor_of(variables: tuple[tuple[str, str], ...]) -> Redactor:
    return Redactor(variables)


def _needles(variables: Iterable[tuple[str, str]]) -> set[bytes]:
    """Return the texts that are masked wherever they occur: the forms of all secret values."""
    needles: set[bytes] = set()
    for name, value in variables:
        if not _is_secret_value(name, value):
            continue
        for form in _written_forms(value):
            text = form.strip()
            if len(text) >= 6 and not form.startswith("-----"):
                needles.add(text.encode("utf-8", "surrogateescape"))
    return needles


def _is_secret_value(name: str, value: str) -> bool:
    """Whether the value of a variable is a secret; a short word of a doubtful name is not one."""
    strength = name_strength(name)
    if not strength or value.lower() in _HARMLESS_VALUES:
        return False
    is_word = len(value) < 16 and value.isalpha()
    return strength > 1 or not is_word


def _written_forms(value: str) -> list[str]:
    """Return how a value is written as text, in JSON, Python, a URL and HTML."""
    in_json = json.dumps(value)[1:-1]
    forms = (
        in_json,
        json.dumps(value, ensure_ascii=False)[1:-1],
        json.dumps(in_json)[1:-1],
        repr(value)[1:-1],
    )
    in_url = quote(value, safe="", errors="surrogateescape")
    urls = (
        in_url,
        quote(value, errors="surrogateescape"),
        quote_plus(value, errors="surrogateescape"),
        re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), in_url),
    )
    return [value, *value.splitlines(), *forms, *urls, html.escape(value)]


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
    that goes on over several pieces ends at the first line that cannot be part of it, after
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
        self._block_line = _PEM_LINE
        self._in_secret = False  # whether a secret longer than the cap goes on

    def feed(self, data: bytes) -> bytes:
        """Take the next piece and return what can be written by now."""
        if self._in_secret:
            data = self._drop_secret(data)
        data = self._held + data
        cut = _last_cut(data)
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
        spans = self._redactor.spans(data)
        for span in spans:
            if span.open_block:
                self._block_left = self._block_limit
                self._block_line = span.open_block
        return _mask(data, spans) if spans else data

    def _drop_block(self, data: bytes) -> bytes:
        """Return the data without the rest of a block of lines that began in an earlier piece."""
        end = None
        if self._block_line is _PEM_LINE:
            end = _PEM_END.search(data, 0, self._block_left)
        if end:
            self._block_left = 0
            return data[end.end() :]
        dropped = min(_end_of_lines(self._block_line, data, 0), self._block_left)
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
