"""Masks secrets as `<set>`, for the functions through which text leaves the process: see
`launch.files`, `launch.terminal` and `launch.execution.supervise.streams`.

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
    # it may continue after the data, with lines that match this
    open_block: re.Pattern[bytes] | None = None


_NOT_INSIDE = rb"(?<![A-Za-z0-9])"
# how a secret begins, and a regular expression of what follows
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
# other forms: a regular expression whose group 1 is masked, and texts without which no lower-cased
# data can match it
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

_LONGEST_KEY = 1 << 14  # bytes of an RSA key of 16,384 bits in PEM, about
_PEM_LINE_REST = re.compile(rb"(?:\\+[nr]|%(?:0[AaDd]|2[BbFf]|3[Dd])|[A-Za-z0-9+/=])*")
# a line of base64, perhaps behind a rank's prefix; a header of an encrypted key; the line's end
# alone; the end's mark
_PEM_LINE = re.compile(
    rb"(?:[ \t]*[A-Za-z0-9+/=]{8,}|[^\r\n]*[ \t:|][A-Za-z0-9+/=]{40,}|(?:Proc-Type|DEK-Info|Version|Comment):[^\r\n]*"
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
    rb"[A-Za-z0-9_]{3,64}+(?P<sep>(?:\\*['\"]|&(?:quot|#3[49]|#x27);|%2[27])?\s{0,4}(?:[:=]|%3[ADad])(?:\s{0,4}|%20)|\s{1,4})"
    rb"(?:&(?:quot|#3[49]|#x27);(?P<html>[^&\n\r]+)|%2[27](?P<quoted>(?:(?!%2[27])[^\s&\"'])+)"
    rb"|(?P<slashes>\\+)\"(?P<escaped>(?:(?!(?P=slashes)\")[^\n\r])+)|\"(?P<double>(?:[^\"\\\n\r]|\\[^\n\r])+)"
    rb"|'(?P<single>(?:[^'\\\n\r]|\\[^\n\r])+)|(?P<bare>[^\s,;'\"}\])&]+(?<!\\)))"
)
_NAME_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_PLAIN = frozenset(b"none null true false str bool int <set> any optional[str]".split())
# values of a token of text, not of access: a count, a rate, `<pad>`, `</s>`, `<|end|>`
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
    found = [
        _NOT_INSIDE + b"(" + re.escape(start) + rest + b")"
        for start, rest in _TOKENS.items()
        if start in data
    ]
    found += [
        pattern for pattern, *literals in _SHAPES if any(literal in lowered for literal in literals)
    ]
    return [
        _Span(match.start(), *match.span(1))
        for pattern in found
        for match in re.finditer(pattern, data)
        if pattern != _BASIC or _is_basic(match[1])
    ]


def _pem_spans(data: bytes) -> list[_Span]:
    """Find private keys. One whose end is not near stops at the first line that is no part of a
    key.
    """
    spans: list[_Span] = []
    at = 0
    while b"-----BEGIN" in data and (begin := _PEM_BEGIN.search(data, at)):
        end = _PEM_END.search(data, begin.end(), begin.end() + _LONGEST_KEY)
        if end:
            at = end.end()
        else:
            rest = _PEM_LINE_REST.match(data, begin.end())
            at = _end_of_lines(_PEM_LINE, data, rest.end() if rest else begin.end())
        spans.append(
            _Span(begin.start(), begin.start(), at, None if end or at < len(data) else _PEM_LINE)
        )
    return spans


def _end_of_lines(line: re.Pattern[bytes], data: bytes, at: int) -> int:
    """Return where the lines end that match `line` and begin at `at`, which may be inside the
    first.
    """
    while at < len(data):
        stop = data.find(b"\n", at) + 1 or len(data)
        if not line.fullmatch(data, at, stop):
            break
        at = stop
    return at


def _named_spans(data: bytes, lowered: bytes) -> list[_Span]:
    spans: list[_Span] = []
    for keyword in _KEYWORDS:
        at = lowered.find(keyword)
        while at >= 0:
            match = _NAMED.match(data, at)
            at = lowered.find(keyword, at + len(keyword))
            if match and (span := _named_span(data, match)):
                spans.append(span)
    return spans


def _is_basic(text: bytes) -> bool:
    """Whether it is the user and password of `Basic` credentials, which need no name of their
    header.
    """
    try:
        user, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except ValueError:
        return False
    return bool(user and colon and password) and (user + password).isprintable()


def _named_span(data: bytes, match: re.Match[bytes]) -> _Span | None:
    start = len(data[max(0, match.start() - 64) : match.start()].rstrip(_NAME_BYTES)) + max(
        0, match.start() - 64
    )
    name = data[start : match.start("sep")]
    if match["sep"].isspace() and not name.startswith(b"--"):
        return None
    group = match.lastgroup or "bare"
    value = match[group]
    if (
        value.lower() in _PLAIN
        or not value.strip(b"{[(")
        or not is_sensitive_name(name.decode("ascii", "replace"))
    ):
        return None
    if group == "bare" and _is_shell_or_path(data[max(0, start - 2) : start], match["sep"], value):
        return None
    if group == "bare" and (block := _BLOCK_SCALAR.match(data, match.start("bare"))):
        first = data.rfind(b"\n", 0, start) + 1
        indent = len(data) - len(data[first:].lstrip(b" ")) - first
        line = re.compile(rb"(?: {%d,}[^\n]*|[ \t\r]*)\n?" % (indent + 1))
        end = _end_of_lines(line, data, block.end())
        return _Span(
            start,
            match.start("bare"),
            len(data[:end].rstrip()) if end < len(data) else end,
            line if end == len(data) else None,
        )
    if b"token" in name.lower() and (
        _TEXT_TOKEN.fullmatch(value) or _TEXT_BEFORE.search(data, max(0, start - 20), start)
    ):
        return None
    return _Span(start, *match.span(group))


def _is_shell_or_path(before: bytes, separator: bytes, value: bytes) -> bool:
    """Whether it is the message of `${NAME:?message}`, or the second half of a pair of paths, as in
    a mount.
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
        self._needles = tuple(
            _needles(environ.items() if isinstance(environ, Mapping) else environ)
        )

    def spans(self, data: bytes) -> list[_Span]:
        """Find the secrets in `data`, also those that are interrupted by escape codes; they may
        overlap.
        """
        spans = self._plain_spans(data)
        if b"\x1b" in data or b"\r" in data:
            spans += self._interrupted_spans(data)
        return spans

    def _interrupted_spans(self, data: bytes) -> list[_Span]:
        """Find the secrets in `data` without its interruptions, as spans of `data`."""
        kept: list[
            tuple[int, int]
        ] = []  # position without interruptions, position in `data`, of each kept part
        parts: list[bytes] = []
        at = length = 0
        for match in [*_INTERRUPTION.finditer(data), None]:
            end = match.start() if match else len(data)
            kept.append((length, at))
            parts.append(data[at:end])
            length += end - at
            at = match.end() if match else end
        if len(parts) == 1:
            return []
        starts = [position for position, _ in kept]

        def original(position: int, side: int) -> int:
            index = bisect.bisect(starts, position + side) - 1
            return kept[index][1] + position - kept[index][0]

        joined = b"".join(parts)
        return [
            _Span(
                original(span.context, 0),
                original(span.start, 0),
                original(span.end, -1),
                span.open_block,
            )
            for span in self._plain_spans(joined)
            if span.end > span.start
        ]

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
        """Mask the secrets in `data`, preferably whole lines; everything else is kept byte for
        byte.
        """
        spans = self.spans(data)
        return _mask(data, spans) if spans else data

    def redact_text(self, text: str) -> str:
        return self.redact_bytes(text.encode("utf-8", "surrogatepass")).decode(
            "utf-8", "surrogatepass"
        )

    def redact_value(self, name: str, value: str) -> str:
        """Mask the value of a variable, flag or key: all of it if the name is sensitive and the
        value is not empty.
        """
        if value and is_sensitive_name(name) and value.lower().encode() not in _PLAIN:
            return MASK
        return self.redact_text(value)

    def redact_object(self, value: Any, name: str = "") -> Any:
        """Mask the secrets in a JSON-like object, those of a dict by its keys. Lists and tuples
        become lists.

        In `{"hub_token": {"value": ..., "origin": ...}}`, the form of a plan's flags, the outer key
        names the value.
        """
        if isinstance(value, Mapping):
            named = {str(key): name if key == "value" else str(key) for key in value}
            return {
                self.redact_text(str(key)): self.redact_object(item, named[str(key)])
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            if all(isinstance(item, str) for item in value):
                return [self.redact_value(name, item) for item in self.redact_argv(value)]
            return [self.redact_object(item, name) for item in value]
        if isinstance(value, str):
            return self.redact_value(name, value)
        if (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and name_strength(name) == 2
        ):
            return MASK
        return value

    def redact_argv(self, argv: Sequence[str]) -> list[str]:
        """Mask a command line, `--hub_token VALUE` and `--hub_token=VALUE` too."""
        masked: list[str] = []
        flag = ""
        for argument in argv:
            name, equals, value = argument.partition("=")
            if (argument.startswith("-") and equals) or (
                equals and re.fullmatch(r"[\w.+~]+", name)
            ):
                masked.append(f"{name}={self.redact_value(name, value)}")
            else:
                redacted = (
                    self.redact_text(argument)
                    if argument.startswith("-")
                    else self.redact_value(flag, argument)
                )
                masked.append(redacted)
            flag = argument if argument.startswith("--") and not equals else ""
        return masked


_added: set[tuple[str, str]] = set()


def add_secrets(environ: Mapping[str, str]) -> None:
    """Have this process mask the secrets of `environ`, such as a plan's variables, too, from now
    on.
    """
    _added.update((name, value) for name, value in environ.items() if name_strength(name))


def process_redactor() -> Redactor:
    """Return the redactor of this process's environment, built once and again only when a variable
    changes.
    """
    return _redactor_of((*os.environ.items(), *_added))


@lru_cache(maxsize=1)
def _redactor_of(variables: tuple[tuple[str, str], ...]) -> Redactor:
    return Redactor(variables)


def _needles(variables: Iterable[tuple[str, str]]) -> set[bytes]:
    needles: set[bytes] = set()
    for name, value in variables:
        strength = name_strength(name)
        guessable = value.lower() in _HARMLESS_VALUES or (
            strength == 1 and len(value) < 16 and value.isalpha()
        )
        if not strength or guessable:
            continue
        in_json, in_url = json.dumps(value)[1:-1], quote(value, safe="", errors="surrogateescape")
        forms = (
            in_json,
            json.dumps(value, ensure_ascii=False)[1:-1],
            json.dumps(in_json)[1:-1],
            repr(value)[1:-1],
        )
        urls = (
            in_url,
            quote(value, errors="surrogateescape"),
            quote_plus(value, errors="surrogateescape"),
        )
        lowered = re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), in_url)
        for form in (value, *value.splitlines(), *forms, *urls, lowered, html.escape(value)):
            if len(form.strip()) >= 6 and not form.startswith("-----"):
                needles.add(form.strip().encode("utf-8", "surrogateescape"))
    return needles


def _last_cut(data: bytes) -> int:
    """Return the end of the last whole line: behind an LF, or behind a CR that does not interrupt a
    word.
    """
    cut = data.rfind(b"\n") + 1
    at = data.rfind(b"\r")
    while at >= cut:
        if not data[at - 1 : at].isalnum() and data[at - 1 : at] not in (
            b"_",
            b"-",
            b"+",
            b"/",
            b"=",
            b".",
        ):
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
        self._cap, self._overlap, self._block_limit = cap, overlap, block_limit
        self._held = b""
        self._block_left = 0  # inside a block of lines: how many more bytes of it to drop at most
        self._block_line = _PEM_LINE
        self._in_secret = False  # inside a secret longer than the cap: drop its bytes

    def feed(self, data: bytes) -> bytes:
        """Take the next piece and return what can be written by now."""
        if self._in_secret:
            data = self._drop_secret(data)
        data = self._held + data
        cut = _last_cut(data)
        out, self._held = self._redact(data[:cut]), data[cut:]
        if len(self._held) > self._cap:
            out += self._cut_long_line()
        return out

    def close(self) -> bytes:
        """Return what was held back, at the end of the stream."""
        held, self._held = self._held, b""
        return self._redact(held)

    def _redact(self, data: bytes) -> bytes:
        if self._block_left:
            end = (
                _PEM_END.search(data, 0, self._block_left)
                if self._block_line is _PEM_LINE
                else None
            )
            dropped = (
                end.end()
                if end
                else min(_end_of_lines(self._block_line, data, 0), self._block_left)
            )
            self._block_left = 0 if end or dropped < len(data) else self._block_left - dropped
            data = data[dropped:]
        if not data:
            return b""
        spans = self._redactor.spans(data)
        for span in spans:
            if span.open_block:
                self._block_left, self._block_line = self._block_limit, span.open_block
        return _mask(data, spans) if spans else data

    def _cut_long_line(self) -> bytes:
        data = self._held
        cut = len(data) - self._overlap
        spans = self._redactor.spans(data)
        # move the cut before every secret that it would split; the new cut may split another one
        while crossing := [span for span in spans if span.context < cut < span.end]:
            cut = min(span.context for span in crossing)
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
