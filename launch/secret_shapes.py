"""Finds secrets in bytes by their shape: a token's first letters, a private key, a user and a
password in an address.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from launch.secret_names import is_basic_credential, looks_random

MASK_BYTES = b"<set>"


@dataclass(frozen=True)
class Span:
    """A secret: the bytes [start, end)."""

    context: int  # where the text that identifies it begins
    start: int
    end: int
    # The secret may continue after the data, with lines that match this pattern.
    open_block: re.Pattern[bytes] | None = None
    # Or with more rows of the table, or items of the list, that has this header.
    header: bytes = b""


# A token starts behind any byte but a letter or digit, and behind the last letter of an escape as
# repr, JSON and URLs print it: `\n`, `\x0a`, `\u000a`, `%0A`, or of a colour (`[32m`).
_NOT_INSIDE = (
    rb"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbfv0])|(?<=\\x[0-9a-fA-F]{2})|(?<=\\u[0-9a-fA-F]{4})"
    rb"|(?<=%[0-9a-fA-F]{2})|(?<=\[\dm)|(?<=\[\d\dm)|(?<=;\dm)|(?<=;\d\dm))"
)
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
    b"xapp-": rb"[A-Za-z0-9-]{20,}",
    b"wandb-v1": rb"[-_][A-Za-z0-9_-]{8,}",
    b"wandb_v1": rb"[-_][A-Za-z0-9_-]{8,}",
    b"glpat-": rb"[A-Za-z0-9_-]{12,}",
    b"AIza": rb"[0-9A-Za-z_-]{30,}",
    b"npm_": rb"[A-Za-z0-9]{30,}",
    b"SG.": rb"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    b"ya29.": rb"[A-Za-z0-9_-]{20,}",
    b"pypi-": rb"[A-Za-z0-9_-]{32,}",
    b"r8_": rb"[A-Za-z0-9]{30,}",
    b"rpa_": rb"[A-Za-z0-9]{30,}",
    b"gsk_": rb"[A-Za-z0-9]{30,}",
    b"nvapi-": rb"[A-Za-z0-9_-]{30,}",
    b"xai-": rb"[A-Za-z0-9_-]{30,}",
    b"pplx-": rb"[A-Za-z0-9]{30,}",
    b"hvs.": rb"[A-Za-z0-9_-]{20,}",
    b"whsec_": rb"[A-Za-z0-9+/]{20,}",
    b"dckr_pat_": rb"[A-Za-z0-9_-]{20,}",
    b"AGE-SECRET-KEY-1": rb"[A-Z0-9]{20,}",
    b"tskey-": rb"[a-z]{2,12}-[A-Za-z0-9-]{16,}",
    b"eyJ": rb"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]{8,}",
    b"LS0tLS1CRUdJTi": rb"[A-Za-z0-9+/=]{20,}",  # base64 of -----BEGIN
}
_BASIC = rb"(?i)\bbasic(?: {1,4}|%20)([A-Za-z0-9+/]{6,}={0,2})"
# A password may hold a slash, a port in front of a path is none.
_IN_ADDRESS = (
    rb"://([^/\s:@'\"]{0,200}:[^/\s'\"]{1,2000}|[^/\s:@'\"]{20,2000}"
    rb"|[^/\s:@'\"]{0,200}:(?!\d{1,5}/)[^\s@'\"]{1,500})@"
)
_NO_USER = (
    rb"(?!(?:mailto|e?mail|authors?|from|to|cc|by|contact|owner|maintainers?|sip|xmpp|acct):)"
)
# A part of an address after one that names a secret, as conda's `/t/TOKEN/`
_IN_PATH = rb"(?i)://[^\s'\"<>]{1,200}?/(?:t|tokens?|api[_-]?keys?|secrets?|auth|webhooks?)/([^\s/?#'\"<>&,;)]{16,})"
_SMTP = rb"\bAUTH (?:PLAIN |LOGIN )?([A-Za-z0-9+/]{8,}={0,2})(?![^\s'\"])"
# Other forms: a regular expression whose group 1 is masked, and literals of which one occurs in all
# lower-cased data that matches.
_SHAPES: tuple[tuple[bytes, ...], ...] = (
    (_NOT_INSIDE + rb"([srp]k_(?:live|test)_[A-Za-z0-9]{10,})", b"k_live_", b"k_test_"),
    (_BASIC, b"basic"),
    (rb"(?i)\bbearer(?:\s|,\s{0,4}){1,4}([A-Za-z0-9._~+/=-]{8,})", b"bearer"),
    (_IN_ADDRESS, b"://"),
    (  # without a scheme, at a host with a dot or a port
        rb"(?i)(?<![\w/@.:+-])" + _NO_USER + rb"([\w.+-]{1,64}:(?!\d+@)[^\s:@/'\"]{4,64})"
        rb"@(?!sha\d+:)(?:[\w-]+\.)*(?:[\w-]+\.[a-z]|[\w-]+:\d{2,5}\b)",
        b"@",
    ),
    (rb"hooks\.slack\.com/(?:services|workflows)/([\w/+-]+)", b"hooks.slack.com"),
    (rb"/api/webhooks/\d+/([\w-]+)", b"/api/webhooks/"),
    (rb"(?i):thin:[^/\s]+/([^@\s]+)@", b":thin:"),
    (rb"/bot(\d{6,}:[\w-]{20,})", b"/bot"),
    (
        rb"(?m)^[\w.*-]+:(?:5432|5433|6432|\*):[^:\s]+:[^:\s]+:(\S+)",
        b":5432:",
        b":5433:",
        b":6432:",
        b"*:*:",
    ),
    (_IN_PATH, b"://"),
    (_SMTP, b"auth "),
    (rb"(\$(?:[156y]|2[aby]|apr1|argon2id?)\$[\w./$=,+-]{20,})", b"$"),  # hash of a password
    (rb"(?i)\bidentified by '([^'\n]+)'", b"identified by"),
    (rb"(?m)^[ \t]*(?:requirepass|masterauth)[ \t]+(\S+)", b"requirepass", b"masterauth"),
    (rb"::add-mask::([^\r\n]+)", b"::add-mask::"),
    (rb"MIT-MAGIC-COOKIE-1\s+([0-9a-f]{16,})", b"mit-magic-cookie"),
    (rb"\"username\":\s*\"[^\"]*\",\s*\"key\":\s*\"([^\"]+)\"", b'"key":'),  # kaggle.json
)
# Few texts have one of the literals, so that re compiles a pattern, and keeps it, when one does.
_TOKEN_PATTERNS = [
    (start, _NOT_INSIDE + b"(" + re.escape(start) + rest + b")") for start, rest in _TOKENS.items()
]
# What of these shapes has to be one more thing
_JUDGES: Mapping[bytes, Callable[[str], bool]] = {
    _BASIC: is_basic_credential,
    _IN_PATH: looks_random,
    _SMTP: looks_random,
}
_SHAPE_PATTERNS = [(literal, pattern) for pattern, *literals in _SHAPES for literal in literals]
_PEM_LABEL = (
    rb"(?: |%20|\+)(?:[A-Z0-9 +]|%20){0,60}PRIVATE(?: |%20|\+)KEY(?:(?: |%20|\+)BLOCK)?-----"
)
_PEM_BEGIN = re.compile(rb"-----BEGIN" + _PEM_LABEL)
PEM_END = re.compile(rb"-----END" + _PEM_LABEL)

_LONGEST_KEY = 1 << 14  # bytes; about an RSA key of 16,384 bits in PEM
_PEM_LINE_REST = re.compile(rb"(?:\\+[nr]|%(?:0[AaDd]|2[BbFf]|3[Dd])|[A-Za-z0-9+/=])*")
# A line of a key: base64, perhaps behind a rank's prefix; a header of an encrypted key; an empty
# line; the end's mark.
PEM_LINE = re.compile(
    rb"(?:[ \t]*[A-Za-z0-9+/=]{8,}|[^\r\n]*[ \t:|][A-Za-z0-9+/=]{40,}"
    rb"|(?:Proc-Type|DEK-Info|Version|Comment):[^\r\n]*"
    rb"|[^\r\n]*-----END" + _PEM_LABEL + rb")?[ \t]*\r?\n?"
)


def shape_spans(data: bytes, lowered: bytes) -> list[Span]:
    """Find the secrets that have a known form; `lowered` is `data` in lower case."""
    patterns = [pattern for start, pattern in _TOKEN_PATTERNS if start in data]
    patterns += [pattern for literal, pattern in _SHAPE_PATTERNS if literal in lowered]
    spans: list[Span] = []
    for pattern in patterns:
        matches: Iterable[re.Match[bytes]] = re.compile(pattern).finditer(data)
        judge = _JUDGES.get(pattern)
        if judge:
            matches = [match for match in matches if judge(match[1].decode("ascii", "replace"))]
        spans.extend(Span(match.start(), *match.span(1)) for match in matches)
    return spans


def pem_spans(data: bytes) -> list[Span]:
    """Find private keys.

    A key whose end is not near stops at the first line that cannot be part of a key.
    """
    spans: list[Span] = []
    if b"-----BEGIN" not in data:
        return spans
    begin = _PEM_BEGIN.search(data)
    while begin:
        end = PEM_END.search(data, begin.end(), begin.end() + _LONGEST_KEY)
        if end:
            stop = end.end()
        else:
            rest = _PEM_LINE_REST.match(data, begin.end())
            stop = end_of_lines(PEM_LINE, data, rest.end() if rest else begin.end())
        is_open = end is None and stop == len(data)
        open_block = PEM_LINE if is_open else None
        spans.append(Span(begin.start(), begin.start(), stop, open_block))
        begin = _PEM_BEGIN.search(data, stop)
    return spans


def end_of_lines(line: re.Pattern[bytes], data: bytes, at: int) -> int:
    """Return where the lines from `at` on that match `line` end.

    `at` may be inside the first line.
    """
    while at < len(data):
        stop = data.find(b"\n", at) + 1 or len(data)
        if not line.fullmatch(data, at, stop):
            break
        at = stop
    return at
