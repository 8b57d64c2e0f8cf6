"""Finds secrets in bytes by structure: what follows a name of a secret.

The name and its value may be written as an assignment, in JSON, YAML or XML, as a header, in a URL,
as a flag and its argument (in a command, a list's repr or a list in YAML), or as a pair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from launch.secret_blocks import holds_secrets, lines_span, map_extent, scalar_span, whole_scalar
from launch.secret_names import is_secret, is_vague, looks_random, name_strength
from launch.secret_programs import program_spans
from launch.secret_shapes import Span
from launch.secret_tables import column_spans, item_spans, items_between

# What every name of a secret contains, in lower case.
_KEYWORDS = (
    b"token", b"secret", b"pass", b"cred", b"key", b"auth", b"pwd", b"jwt", b"dsn", b"sig", b"cookie",
    b"session", b"_pat", b"salt", b"webhook", b"bearer", b"_url", b"_uri", b"conn", b"code=", b"code%", b"sid=",
    b"hash=", b"hmac", b"nonce",
)  # fmt: skip
NAME_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_LONGEST_NAME = 64
_LONGEST_DOUBTFUL = 2048  # bytes of what a doubtful name is followed by
_NAME_REST = re.compile(rb"[A-Za-z0-9_]*(?:[.-][A-Za-z0-9_]+)*")
# What an escape leaves at the start of a name, by the byte before it: `\npassword`, `%0Apassword`,
# `\x1b[32mpassword`.
_ESCAPE_RESTS: Mapping[bytes, re.Pattern[bytes]] = {
    b"\\": re.compile(rb"u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[nrtbfv0]"),
    b"%": re.compile(rb"(?:25)*[0-9a-fA-F]{2}"),
    b"[": re.compile(rb"\d{1,2}m"),
    b";": re.compile(rb"\d{1,2}m"),
}
_PERCENT = rb"%(?:25){0,3}"  # of a URL in a URL
_QUERY = re.compile(rb"(?:[?&#;]|&amp;|\\u0026|" + _PERCENT + rb"(?:26|23|3[BbFf]))\Z")

_URL_QUOTE = _PERCENT + rb"2[27]"
_QUOTE = rb"(?:\\*['\"`]|\*\*|\\+u00(?:22|27)|&(?:quot|#3[49]|#x27);|" + _URL_QUOTE + rb")"
_GAP = rb"(?:[ \t]|" + _PERCENT + rb"20|\n[ \t]+|\\+n[ \t]+){0,40}"
_ANY_GAP = rb"(?:\s|\\+[nrt]|" + _PERCENT + rb"20){0,80}"
_TAG = rb"(?:!{1,2}[\w!/.:-]{0,64}[ \t]+|&\w{1,64}[ \t]+){0,2}"  # of a value in YAML
_OPEN = rb"(?:[bBuU$]|(?:Some|Secret\w{0,8})\()?"
_VALUE = (
    rb"(?:&(?:quot|#3[49]|#x27);(?P<html>[^&\n\r]+)"
    rb"|" + _URL_QUOTE + rb"(?P<quoted>(?:(?!" + _URL_QUOTE + rb")[^\s&\"'])+)"
    rb"|'''(?P<triple>[^'\n\r]+)|\"\"\"(?P<triples>[^\"\n\r]+)"
    rb"|\\+u00(?:22|27)(?P<unicode>(?:(?!\\+u00(?:22|27))[^\n\r])+)"
    rb"|`(?P<code>[^`\n\r]+)`"
    rb"|\{(?P<braced>[^{}\s'\":,]{1,200})\}"
    rb"|" + _OPEN + rb"(?:(?P<slashes>\\+)(?P<mark>['\"])(?P<escaped>(?:(?!(?P=slashes)(?P=mark))[^\n\r])+)"
    rb"|\"(?P<double>(?:[^\"\\\n\r]|\\[^\n\r])+)"
    rb"|'(?P<single>(?:[^'\\\n\r]|\\[^\n\r])+))"
    rb"|\[(?P<list>[^\[\]{}]{1,2000})\]"
    # Punctuation belongs to a bare value where another character follows, but `&name=` does not.
    rb"|(?P<bare><set>|(?:[^\s,;'\"}\])&<|]|<(?!/)|(?!&[\w.-]+=)(?!&[a-z]+;)[,;)&\]}|](?=[^\s,;'\"}\])&<\\|]))+(?<!\\)))"
)  # fmt: skip
_NAMED = re.compile(
    rb"(?:"
    # {"name": "HF_TOKEN", "value": "x"}, "hub_token": {"value": "x"}, pydantic's input_value='x'
    rb"(?P<item>" + _QUOTE + rb"?" + _ANY_GAP + rb"[:,;]?" + _ANY_GAP + rb"\{?" + _ANY_GAP
    + _QUOTE + rb"?(?:[vV]al(?:ue)?|[dD]efault|[aA]rgument|Input [^\n]{1,120}input_value)" + _QUOTE
    + rb"?\s{0,4}[:=]\s{0,4})"
    # HF_TOKEN=x, "token": "x", 'token' => 'x', environ['TOKEN'] = 'x', argument --token: invalid choice: 'x'
    rb"|(?P<assign>" + _QUOTE + rb"?\]?" + _GAP
    + rb"(?::=|=>|->|\xe2\x86\x92|={1,2}|:(?: invalid [\w ]{1,40}:)?|" + _PERCENT
    + rb"3[ADad]|\r?\n[ \t]*:(?=[ \t]))" + _GAP + _TAG + rb")"
    # a field of a form
    rb"|(?P<field>\"(?:(?:\r?\n){2}|(?:\\+r)?\\+n(?:\\+r)?\\+n))"
    # [--hub_token, x]
    rb"|(?P<flow>,[ \t]{1,9}(?=[^\s'\"-]))"
    # '--hub_token', 'x'
    rb"|(?P<element>" + _QUOTE + rb"," + _ANY_GAP + rb"(?=" + _OPEN + _QUOTE + rb"))"
    # <password>x</password>, <td>hub_token</td><td>x</td>, | hub_token | x |
    rb"|(?P<markup>>|</\w+>\s{0,9}<\w+[^<>]{0,99}>|[ \t]{1,9}(?:\||\xe2\x94\x82)[ \t]{1,9})"
    # --hub_token x; with a line break after a backslash, folded, or as a list in YAML
    rb"|(?P<argument>\0|[ \t]{1,40}(?:\\\r?\n[ \t]*)?|" + _QUOTE + rb"?\r?\n[ \t]*-[ \t]+"
    rb"|[ \t]*\r?\n[ \t]+(?=[^\s-]\S*[ \t]*(?:\r?\n|\Z)))"
    rb")" + _VALUE
)  # fmt: skip
# The value of these headers goes to the end of the line, or of the string that they are in.
_HEADER = re.compile(
    rb"(?i)(?:authorization|cookie)(?P<q>" + _QUOTE + rb")?(?:\s{0,2}[:=]|,)\s{0,2}" + _OPEN +
    rb"(?:\\*[\"'])?(?P<header>(?:=\"[^\"\r\n]*\"|[^\r\n\\'\"])+)"
)  # fmt: skip
_PARAMETER_END = re.compile(rb"=|" + _PERCENT + rb"3[Dd]")
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
# `value: x` and then the name
_VALUE_BEFORE = re.compile(
    rb"\b[vV]alue" + _QUOTE + rb"?\s{0,4}[:=]\s{0,4}" + _VALUE + _QUOTE + rb"?,?\s{1,80}"
    + _QUOTE + rb"?(?:name|key)" + _QUOTE + rb"?\s{0,4}[:=]\s{0,4}" + _QUOTE + rb"?\Z"
)  # fmt: skip
_ITEM_VALUE = re.compile(_QUOTE + rb"?,?\s{1,80}value(?=:)")
_LEAF = re.compile(rb"(?:[:=]|=>)\s{0,9}" + _VALUE)
# A call or an index: the line of a program in a traceback, not the value.
_CODE = re.compile(rb"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*[(\[]")

# A line that ends in a name, whose value may be in the next line
_OPEN_LINE = re.compile(
    rb"(?:(--[A-Za-z0-9_.-]+)['\"]?(?:[ \t]+\\|,)?"
    rb"|(?:name|key|option)['\"]?:[ \t]*['\"]?([A-Za-z0-9_.-]+)['\"]?,?"
    rb"|([A-Za-z0-9_.-]+)</\w+>"
    rb"|([A-Za-z0-9_.-]+)['\"]?(?:[ \t]*[:=][ \t]*[\[{]?)?)(?:[ \t]*(?:\r\n?|\n)){1,2}\Z"
)
_VALUE_LINE = re.compile(rb"[ \t]*(?:-[ \t]+)?['\"]?value['\"]?:[^\n]{0,200}\n\Z")
_LONGEST_OPEN_LINE = 200


def structure_spans(data: bytes, lowered: bytes) -> list[Span]:
    """Find the values of sensitive names; `lowered` is `data` in lower case."""
    spans: list[Span] = []
    for keyword in [keyword for keyword in _KEYWORDS if keyword in lowered]:
        at = lowered.find(keyword)
        table = range(0)  # the rows of the last table: none of them is a header
        while at >= 0:
            end = _name_end(data, at)
            named = _named_spans(data, at, end)
            spans += named
            if at not in table:
                cells, rows = _column_spans(data, at, end)
                spans += cells
                table = rows or table
            # what is in the value is masked with it
            ends = [span.end for span in named if not span.header]
            end = max(end, at + len(keyword), *ends)
            at = lowered.find(keyword, end)
    return spans + program_spans(data)


def open_line_start(data: bytes) -> int:
    """Return where the last line begins if its value may follow in the next one, else the length.

    Such a line ends in a flag of a list, in the name of an item or in a key: `- --hub_token`. So
    does one with a value, whose name may follow if the line before has none.
    """
    start = _last_line(data)
    before = data[:start]
    start_before = _last_line(before)
    if _opens_value(data, start):
        return start_before if _VALUE_LINE.match(before, start_before) else start
    if _VALUE_LINE.match(data, start) and not _opens_value(before, start_before):
        return start
    return len(data)


def _last_line(data: bytes) -> int:
    """Return where the last line begins that is not empty."""
    return data.rfind(b"\n", 0, len(data.rstrip())) + 1


def _opens_value(data: bytes, start: int) -> bool:
    """Whether the line at `start`, which is the last one, ends in the name of a secret."""
    if len(data) - start > _LONGEST_OPEN_LINE:
        return False
    match = _OPEN_LINE.search(data, start)
    if match is None:
        return False
    name = next(_text(group) for group in match.groups() if group)
    return name_strength(name) > 0 or is_vague(name)


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
    is_parameter = bool(_PARAMETER_END.match(data, end))
    in_query = is_parameter and bool(_QUERY.search(data[max(0, start - 12) : start]))
    if name == "PWD" and data[start - 1 : start] == b";" and data[end + 1 : end + 2] not in b"/~$":
        name = "DB_PWD"  # ODBC
        strength = 2
    if not strength and not in_query:
        first = _TWO_PARTS.search(data, max(0, start - 12), start)
        if first and name.lower() in ("key", "keys"):
            name = f"{_text(first[1])}_key"
            strength = name_strength(name)
        elif not is_vague(name):
            return []
    header = _HEADER.search(data, max(start, end - 13), end + 2000) if strength else None
    if header and header.start() < end and (b"=" in header["header"] or name.endswith("tion")):
        return _header_span(data, start, header)
    below = _spans_below(data, start, end, name, strength)
    if below:
        return below
    match = _NAMED.match(data, end, len(data) if strength == 2 else end + _LONGEST_DOUBTFUL)
    if match and match["list"] and strength < 2:
        return items_between(data, start, *match.span("list"), name)
    if match and _is_value(data, start, name, match, in_query):
        group = match.lastgroup or "bare"
        span = Span(start, *match.span(group))
        return [whole_scalar(data, span, data[end : span.start]) if strength == 2 else span]
    return _spans_before(data, start, name) or _sentence_spans(data, start, end, strength)


def _column_spans(data: bytes, keyword: int, end: int) -> tuple[list[Span], range]:
    """Return the cells below a name with a keyword at `keyword`, and where its table's rows are."""
    start = _name_start(data, keyword)
    name, strength = _known_name(data[start:end])
    if strength or is_vague(name) or _TWO_PARTS.search(data, max(0, start - 12), start):
        return column_spans(data, start, end)
    return [], range(0)


def _spans_before(data: bytes, start: int, name: str) -> list[Span]:
    """Return the value that stands before its name: `- value: x` and `name: HF_TOKEN`."""
    match = _VALUE_BEFORE.search(data, max(0, start - 300), start)
    group = match.lastgroup or "bare" if match else "bare"
    if match is None or not is_secret(name, _text(match[group])):
        return []
    return [Span(match.start(), *match.span(group))]


def _spans_below(data: bytes, start: int, end: int, name: str, strength: int) -> list[Span]:
    """Return the lines below a name, and the values of a map of secrets."""
    if strength < 2:
        return item_spans(data, start, end, name)
    item = _ITEM_VALUE.match(data, end)
    scalar = scalar_span(data, start, item.end() if item else end)
    lines = scalar or lines_span(data, start, end, name)
    if lines:
        return [lines]
    extent = map_extent(data, end) if holds_secrets(name) else None
    if extent is None:
        return []
    leaves = [leaf for leaf in _LEAF.finditer(data, *extent) if _is_leaf(leaf)]
    return [Span(start, *leaf.span(leaf.lastgroup or "bare")) for leaf in leaves]


def _is_leaf(match: re.Match[bytes]) -> bool:
    value = match[match.lastgroup or "bare"]
    return value.lower() not in _PLAIN_VALUES and bool(value.strip(b"{[("))


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
        return not value.startswith(b"-") and (is_flag or _is_set(before, name, match))
    if match["flow"] is not None:
        return is_flag and before.rfind(b"[") > before.rfind(b"]")
    if match["element"] is not None:
        is_pair = is_flag or _is_pair(data, before, match, group)
        is_pair = is_pair or (name_strength(name) == 2 and looks_random(_text(value)))
        return is_pair and not value.startswith(b"-")
    return match["field"] is None or before.endswith((b'name="', b'name=\\"'))


def _is_set(before: bytes, name: str, match: re.Match[bytes]) -> bool:
    """Whether a command sets the name to the value, or both are columns of a table."""
    if name_strength(name) == 2 and _SETTERS.search(before):
        return True
    gap = match["argument"]
    is_column = (b"\t" in gap or len(gap) > 1) and b"\n" not in gap
    return is_column and looks_random(_text(match[match.lastgroup or "bare"]))


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
    if not markup.endswith(b" "):
        return before.endswith((b"<", b">"))
    is_heading = name.isalpha() and not looks_random(_text(value))
    return before.rstrip(b" ").endswith((b"|", b"\xe2\x94\x82")) and not is_heading


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
