"""Finds secrets in bytes by structure: what follows a name of a secret.

The name and its value may be written as an assignment, in JSON, YAML or XML, as a header, in a URL,
as a flag and its argument (in a command, a list's repr or a list in YAML), or as a pair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from launch.secret_names import is_secret, looks_random, name_strength
from launch.secret_shapes import Span, end_of_lines

MASK_BYTES = b"<set>"
# What every name of a secret contains, in lower case.
_KEYWORDS = (
    b"token", b"secret", b"pass", b"cred", b"key", b"auth", b"pwd", b"jwt", b"dsn", b"sig", b"cookie",
    b"session", b"_pat", b"salt", b"webhook", b"bearer", b"_url", b"_uri", b"conn", b"code=", b"sid=", b"hash=",
    b"hmac", b"nonce",
)  # fmt: skip
NAME_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_LONGEST_NAME = 64
_LONGEST_DOUBTFUL = 2048  # bytes of what a doubtful name is followed by
_NAME_REST = re.compile(rb"[A-Za-z0-9_]*(?:[.-][A-Za-z0-9_]+)*")
# What an escape leaves at the start of a name, by the byte before it: `\npassword`, `%0Apassword`,
# `\x1b[32mpassword`.
_ESCAPE_RESTS: Mapping[bytes, re.Pattern[bytes]] = {
    b"\\": re.compile(rb"u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[nrtbfv0]"),
    b"%": re.compile(rb"[0-9a-fA-F]{2}"),
    b"[": re.compile(rb"\d{1,2}m"),
    b";": re.compile(rb"\d{1,2}m"),
}
_QUERY = re.compile(rb"(?:[?&]|&amp;|\\u0026|%26|%3[Ff])\Z")

_QUOTE = rb"(?:\\*['\"]|&(?:quot|#3[49]|#x27);|%2[27])"
_GAP = rb"(?:[ \t]|%20|\n[ \t]+|\\+n[ \t]+){0,40}"
_ANY_GAP = rb"(?:\s|\\+[nrt]|%20){0,80}"
_OPEN = rb"(?:[bBuU]|(?:Some|Secret\w{0,8})\()?"
_VALUE = (
    rb"(?:&(?:quot|#3[49]|#x27);(?P<html>[^&\n\r]+)"
    rb"|%2[27](?P<quoted>(?:(?!%2[27])[^\s&\"'])+)"
    rb"|" + _OPEN + rb"(?:(?P<slashes>\\+)(?P<mark>['\"])(?P<escaped>(?:(?!(?P=slashes)(?P=mark))[^\n\r])+)"
    rb"|\"(?P<double>(?:[^\"\\\n\r]|\\[^\n\r])+)"
    rb"|'(?P<single>(?:[^'\\\n\r]|\\[^\n\r])+))"
    rb"|\[(?P<list>[^\[\]{}]{1,2000})\]"
    # Punctuation belongs to a bare value where another character follows, but `&name=` does not.
    rb"|(?P<bare><set>|(?:[^\s,;'\"}\])&<|]|<(?!/)|(?!&[\w.-]+=)(?!&[a-z]+;)[,;)&\]}|](?=[^\s,;'\"}\])&<\\|]))+(?<!\\)))"
)  # fmt: skip
_NAMED = re.compile(
    rb"(?:"
    # {"name": "HF_TOKEN", "value": "x"}, "hub_token": {"value": "x"}
    rb"(?P<item>" + _QUOTE + rb"?" + _ANY_GAP + rb"[:,;]?" + _ANY_GAP + rb"\{?" + _ANY_GAP
    + _QUOTE + rb"?[vV]alue" + _QUOTE + rb"?\s{0,4}[:=]\s{0,4})"
    # HF_TOKEN=x, "token": "x", 'token' => 'x', environ['TOKEN'] = 'x'
    rb"|(?P<assign>" + _QUOTE + rb"?\]?" + _GAP + rb"(?::=|=>|={1,2}|:|%3[ADad])" + _GAP + rb")"
    # '--hub_token', 'x'
    rb"|(?P<element>" + _QUOTE + rb"," + _ANY_GAP + rb"(?=" + _OPEN + _QUOTE + rb"))"
    # --hub_token x; with a line break after a backslash, or as a list in YAML
    rb"|(?P<argument>\0|[ \t]{1,4}(?:\\\r?\n[ \t]*)?|" + _QUOTE + rb"?\r?\n[ \t]*-[ \t]+)"
    # <password>x</password>, <td>hub_token</td><td>x</td>, | hub_token | x |
    rb"|(?P<markup>>|</\w+>\s{0,9}<\w+[^<>]{0,99}>|[ \t]{1,9}\|[ \t]{1,9})"
    rb")" + _VALUE
)  # fmt: skip
# The value of these headers goes to the end of the line, or of the string that they are in.
_HEADER = re.compile(
    rb"(?i)(?:authorization|cookie)(?P<q>" + _QUOTE + rb")?(?:\s{0,2}[:=]|,)\s{0,2}" + _OPEN +
    rb"(?:\\*[\"'])?(?P<header>(?:=\"[^\"\r\n]*\"|[^\r\n\\'\"])+)"
)  # fmt: skip
_TWO_PARTS = re.compile(rb"(?i)\b(api|access|secret|private|signing) \Z")
# The name stands in a sentence: only a value that looks random is taken for one.
_SENTENCE = re.compile(
    rb"(?:\s+(?:is|was|provided|set|to|of|given|used)\b){0,3}:?\s+['\"(]?([A-Za-z0-9_+/=.-]{16,})"
)
_SETTERS = re.compile(rb"(?:\b(?:setenv|setx|ENV|set)|\bset[ \t]+-\w+)[ \t]+\Z")
_SQL = re.compile(rb"(?i)\s{1,4}'([^'\n\r]+)'")

_PLAIN_VALUES = frozenset(b"none null true false str bool int <set> any optional[str]".split())
# Values of a token of text, not of access: a count, a rate, `<pad>`, `</s>`, `<|end|>`
_TEXT_TOKEN = re.compile(
    rb"-?(?:\d{1,7}|\d*\.\d+(?:e[+-]?\d+)?|nan|inf)\.?|</?\|?\w{1,32}\|?>", re.IGNORECASE
)
_TEXT_BEFORE = re.compile(
    rb"(?i)\b(?:pad|eos|bos|unk|mask|special|next|per|first|last|stop|new|unexpected)(?:ding)? \Z"
)
_MOUNTED = re.compile(rb"/\S*|r[ow]\S{0,20}|[zZ]")
_BLOCK_SCALAR = re.compile(rb"[|>][-+0-9]{0,2}[ \t]*(?:#[^\n]*)?\r?\n")
_BLOCK_MARK = re.compile(rb"(?P<assign>:[ \t]{1,4})(?=[|>])")
# A call or an index: the line of a program in a traceback, not the value.
_CODE = re.compile(rb"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*[(\[]")

# Options that hold a secret in the command of one program; its group 1 is the secret.
_BETWEEN = rb"(?:\s+|=|\0|['\"]?,\s*b?['\"])"
_WORD = rb"([^\s'\",\0]+)"
_PROGRAMS: Mapping[bytes, bytes] = {
    b"curl": rb"(?:-u|-U|--user|--proxy-user)" + _BETWEEN + rb"?([^\s'\":,\0$-][^\s'\":,\0]*:[^\s'\"\0]+)",
    b"sshpass": rb"-p" + _BETWEEN + rb"?" + _WORD,
    b"mysql": rb"-p" + _WORD,
    b"mariadb": rb"-p" + _WORD,
    b"redis-cli": rb"-a" + _BETWEEN + _WORD,
    b"openssl": rb"pass:" + _WORD,
    b"unzip": rb"-P" + _BETWEEN + rb"?" + _WORD,
    b"login": rb"-p" + _BETWEEN + _WORD,
    b"machine": rb"password\s+" + _WORD,
}  # fmt: skip
_PROGRAM_PATTERNS = [
    (
        program,
        re.compile(rb"\b" + program + rb"\b(?:[^\n]|,\n|(?<=\w)\n[ \t]){0,300}?[\s'\"\0]" + option),
    )
    for program, option in _PROGRAMS.items()
]
_POSITIONAL = re.compile(
    rb"wandb" + _BETWEEN + rb"login(?:" + _BETWEEN + rb"--[\w-]+)*" + _BETWEEN + rb"([A-Za-z0-9_-]{20,})"
)  # fmt: skip
_NETRC_LINE = re.compile(rb"(?m)^[ \t]+password[ \t]+(\S+)[ \t]*\r?$")
_OPEN_LINE = re.compile(
    rb"(?:(?P<flag>--[A-Za-z0-9_.-]+)(?:[ \t]+\\|['\"],)?"
    rb"|(?:name|key)['\"]?:[ \t]*['\"]?(?P<item>[A-Za-z0-9_.-]+)['\"]?,?)[ \t\r]*\n\Z"
)
_LONGEST_OPEN_LINE = 200


def structure_spans(data: bytes, lowered: bytes) -> list[Span]:
    """Find the values of sensitive names; `lowered` is `data` in lower case."""
    spans: list[Span] = []
    for keyword in [keyword for keyword in _KEYWORDS if keyword in lowered]:
        at = lowered.find(keyword)
        while at >= 0:
            end = _name_end(data, at)
            named = _named_spans(data, at, end)
            spans += named
            # what is in the value is masked with it
            end = max(end, at + len(keyword), *(span.end for span in named))
            at = lowered.find(keyword, end)
    return spans + program_spans(data)


def open_line_start(data: bytes) -> int:
    """Return where the last line begins if its value may follow in the next one, else the length.

    Such a line ends in a flag of a list, or in the name of an item: `- --hub_token`.
    """
    start = data.rfind(b"\n", 0, len(data) - 1) + 1
    if len(data) - start > _LONGEST_OPEN_LINE:
        return len(data)
    match = _OPEN_LINE.search(data, start)
    if match and name_strength(_text(match["flag"] or match["item"])):
        return start
    return len(data)


@lru_cache(maxsize=8192)
def _known_name(name: bytes) -> tuple[str, int]:
    """Return the text of a name, and its strength."""
    text = name.decode("ascii", "replace")
    return text, name_strength(text)


def _text(name: bytes) -> str:
    return name.decode("ascii", "replace")


def _name_end(data: bytes, keyword: int) -> int:
    rest = _NAME_REST.match(data, keyword)
    return rest.end() if rest else keyword


def _name_start(data: bytes, keyword: int) -> int:
    """Return where the name begins that has a keyword at `keyword`."""
    earliest = max(0, keyword - _LONGEST_NAME)
    start = earliest + len(data[earliest:keyword].rstrip(NAME_BYTES))
    escape = _ESCAPE_RESTS.get(data[start - 1 : start]) if start else None
    rest = escape.match(data, start, keyword) if escape else None
    return rest.end() if rest else start


def _named_spans(data: bytes, keyword: int, end: int) -> list[Span]:
    """Return the secret behind the name that has a keyword at `keyword` and ends at `end`."""
    start = _name_start(data, keyword)
    name, strength = _known_name(data[start:end])
    in_query = data[end : end + 1] == b"=" and bool(_QUERY.search(data[max(0, start - 6) : start]))
    if not strength and not in_query:
        if name.lower() not in ("key", "keys"):
            return []
        first = _TWO_PARTS.search(data, max(0, start - 12), start)
        if not first:
            return []
        name = f"{_text(first[1])}_key"
        strength = name_strength(name)
    header = _HEADER.search(data, max(start, end - 13), end + 2000) if strength else None
    if header and header.start() < end and (b"=" in header["header"] or name.endswith("tion")):
        return _header_span(data, start, header)
    block = _BLOCK_MARK.match(data, end)
    scalar = _BLOCK_SCALAR.match(data, block.end()) if block else None
    if scalar:
        return [_block_span(data, start, scalar)]
    match = _NAMED.match(data, end, len(data) if strength == 2 else end + _LONGEST_DOUBTFUL)
    if match and _is_value(data, start, name, match, in_query):
        group = match.lastgroup or "bare"
        return [Span(start, *match.span(group))]
    return _sentence_spans(data, start, end, strength)


def _header_span(data: bytes, start: int, header: re.Match[bytes]) -> list[Span]:
    value = header["header"].strip()
    if value.lower() in _PLAIN_VALUES or value.startswith((b"{", b"[", b"(")):
        return []
    end = header.start("header") + len(header["header"].rstrip())
    return [Span(start, header.start("header"), end)]


def _is_value(data: bytes, start: int, name: str, match: re.Match[bytes], in_query: bool) -> bool:
    """Whether a match of _NAMED is a secret and its name, which begins at `start`."""
    group = match.lastgroup or "bare"
    value = match[group]
    before = data[max(0, start - 40) : start]
    if value.lower() in _PLAIN_VALUES or not value.strip(b"{[("):
        return False
    if not _is_joined(data, before, name, match):
        return False
    if not is_secret(name, value.decode("ascii", "replace"), in_query=in_query):
        return False
    if group == "bare" and _is_something_else(data, before, name, match):
        return False
    is_text_token = "token" in name.lower() and (
        _TEXT_TOKEN.fullmatch(value) or _TEXT_BEFORE.search(data, max(0, start - 20), start)
    )
    return not is_text_token


def _is_joined(data: bytes, before: bytes, name: str, match: re.Match[bytes]) -> bool:
    """Whether what is between name and value joins them, after the bytes `before` the name."""
    group = match.lastgroup or "bare"
    value = match[group]
    is_flag = name.startswith("-")
    if match["markup"] is not None:
        return _is_cell(before, name, match["markup"], value)
    if match["argument"] is not None:
        is_set = name_strength(name) == 2 and bool(_SETTERS.search(before))
        return (is_flag or is_set) and not value.startswith(b"-")
    if match["element"] is not None:
        is_pair = is_flag or _is_pair(data, before, match, group)
        return is_pair and not value.startswith(b"-")
    return True


def _is_pair(data: bytes, before: bytes, match: re.Match[bytes], group: str) -> bool:
    """Whether name and value are all of a pair: `('token', 'x')`, not two names of a list."""
    if not re.search(rb"[(\[]\s*" + _OPEN + _QUOTE + rb"\Z", before):
        return False
    end = match.end(group)
    if not re.compile(_QUOTE + rb"\s*[)\]]").match(data, end):
        return False
    return name_strength(_text(match[group])) < 2


def _is_cell(before: bytes, name: str, markup: bytes, value: bytes) -> bool:
    """Whether name and value are an element, or neighbours in a row of a table."""
    if b"|" not in markup:
        return before.endswith((b"<", b">"))
    is_heading = name.isalpha() and not looks_random(_text(value))
    return before.rstrip(b" ").endswith(b"|") and not is_heading


def _is_something_else(data: bytes, before: bytes, name: str, match: re.Match[bytes]) -> bool:
    """Whether a bare value is code, a name, a path of a mount, or the next key of a YAML file."""
    value = match["bare"]
    separator = match[0][: match.start("bare") - match.start()]
    if before.endswith(b"${"):  # the message of `${NAME:?message}`
        return separator == b":" and value.startswith(b"?")
    if before.endswith(b"/") and separator == b":" and _MOUNTED.fullmatch(value):
        return True
    if b"\n" in separator and match["assign"] is not None:
        stop = data.find(b"\n", match.end())
        rest = data[match.end() : stop if stop >= 0 else len(data)].strip()
        if rest or value.endswith(b":") or value.startswith(b"-"):
            return True
    last = _text(value).rpartition(".")[2].lower()
    if last and name.lower().strip("-").replace("-", "_").endswith(last):
        return True
    return not name.isupper() and bool(_CODE.match(data, match.start("bare")))


def _sentence_spans(data: bytes, start: int, end: int, strength: int) -> list[Span]:
    """Find a value that looks random behind a name in a sentence, or a quoted one in SQL."""
    if strength < 2:
        return []
    if data[end - 8 : end].lower() == b"password":
        quoted = _SQL.match(data, end)
        if quoted:
            return [Span(start, *quoted.span(1))]
    match = _SENTENCE.match(data, end)
    if match and looks_random(_text(match[1])):
        return [Span(start, *match.span(1))]
    return []


def program_spans(data: bytes) -> list[Span]:
    """Find the secrets in the commands of known programs, as text or as a list's repr."""
    spans: list[Span] = []
    for pattern in [pattern for program, pattern in _PROGRAM_PATTERNS if program in data]:
        spans += [
            Span(match.start(), *match.span(1))
            for match in pattern.finditer(data)
            if match[1] not in (MASK_BYTES, b"-")
        ]
    if b"wandb" in data and b"login" in data:
        spans += [Span(m.start(), *m.span(1)) for m in _POSITIONAL.finditer(data)]
    if b"password" in data:
        spans += [Span(m.start(), *m.span(1)) for m in _NETRC_LINE.finditer(data)]
    return spans


def _block_span(data: bytes, start: int, block: re.Match[bytes]) -> Span:
    """Return the YAML block scalar that `block` opens; its name begins at `start`."""
    first = data.rfind(b"\n", 0, start) + 1
    indent = len(data) - len(data[first:].lstrip(b" ")) - first
    line = re.compile(rb"(?: {%d,}[^\n]*|[ \t\r]*)\n?" % (indent + 1))
    end = end_of_lines(line, data, block.end())
    if end == len(data):
        return Span(start, block.start(), end, open_block=line)
    return Span(start, block.start(), len(data[:end].rstrip()))
