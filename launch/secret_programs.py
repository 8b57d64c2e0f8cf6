"""Finds secrets in the commands and files of known programs: `curl -u`, `wandb login`, `.netrc`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from launch.secret_shapes import MASK_BYTES, Span

# Options that hold a secret in the command of one program; its group 1 is the secret.
_BETWEEN = rb"(?:\s+|=|\0|['\"]?,\s*b?['\"])"
_WORD = rb"([^\s'\",\0]+)"
_PROGRAMS: Mapping[bytes, bytes] = {
    b"curl": rb"(?:-u|-U|--user|--proxy-user)" + _BETWEEN + rb"?([^\s'\":,\0$-][^\s'\":,\0]*:[^\s'\"\0]+"
    rb"|[A-Za-z0-9_-]{16,}:(?![^\s'\"\0]))",
    b"sshpass": rb"-p" + _BETWEEN + rb"?" + _WORD,
    b"mysql": rb"-p" + _WORD,
    b"mysqldump": rb"-p" + _WORD,
    b"mariadb": rb"-p" + _WORD,
    b"mongosh": rb"-p" + _BETWEEN + _WORD,
    b"twine": rb"-p" + _BETWEEN + _WORD,
    b"http": rb"(?:-a|--auth)" + _BETWEEN + rb"([^\s'\":,\0$-][^\s'\":,\0]*:[^\s'\"\0]+)",
    b"smbclient": rb"-U" + _BETWEEN + rb"?([^\s'\"%\0]+%[^\s'\"\0]+)",
    b"ldapsearch": rb"-w" + _BETWEEN + rb"?" + _WORD,
    b"7z": rb"-p" + _WORD,
    b"zip": rb"-P" + _BETWEEN + rb"?" + _WORD,
    b"redis-cli": rb"-a" + _BETWEEN + _WORD,
    b"openssl": rb"(?:pass:|-[kK]" + _BETWEEN + rb")" + _WORD,
    b"lftp": rb"-u" + _BETWEEN + rb"?[^\s'\",\0]+," + _WORD,
    b"ssh-keygen": rb"-[NP]" + _BETWEEN + _WORD,
    b"htpasswd": rb"-\w*b\w*(?:" + _BETWEEN + rb"[^\s'\",\0]+){2}" + _BETWEEN + _WORD,
    b"kubectl": rb"--from-literal" + _BETWEEN + rb"[\w.-]+=" + _WORD,
    b"vault": rb"login" + _BETWEEN + rb"(?![-\w]*=|-)" + _WORD,
    b"poetry": rb"(?:pypi-token\.[\w-]+|http-basic\.[\w-]+" + _BETWEEN + rb"[^\s'\",\0]+)"
    + _BETWEEN + _WORD,
    b"mc": rb"(?:alias|config)" + _BETWEEN + rb"(?:set|host" + _BETWEEN + rb"add)(?:" + _BETWEEN
    + rb"[^\s'\",\0]+){3}" + _BETWEEN + _WORD,
    b"beaker": rb"secret" + _BETWEEN + rb"write(?:" + _BETWEEN + rb"[^\s'\",\0]+)+?" + _BETWEEN + _WORD
    + rb"(?=['\"]?\]?\s*(?:\n|\Z))",
    b"aws": rb"put-parameter\b(?:[^\n]|,\n){0,300}?--value" + _BETWEEN + _WORD,
    b"unzip": rb"-P" + _BETWEEN + rb"?" + _WORD,
    b"login": rb"-p" + _BETWEEN + _WORD,
    b"machine": rb"password\s+" + _WORD,
    b"default": rb"login\s+\S+\s+password\s+" + _WORD,
}  # fmt: skip
_POSITIONAL = re.compile(
    rb"wandb" + _BETWEEN + rb"login(?:" + _BETWEEN + rb"--[\w-]+)*" + _BETWEEN + rb"([A-Za-z0-9_-]{20,})"
)  # fmt: skip
_WANDB_CALL = re.compile(rb"wandb\.login\([^)\n]{0,200}?\bkey\s?=\s?['\"]([^'\"\n]+)")
_NETRC_LINE = re.compile(rb"(?m)^[ \t]+password[ \t]+(\S+)[ \t]*\r?$")


@cache
def _pattern_of(program: bytes) -> re.Pattern[bytes]:
    """Return the pattern of a program's command. Few texts name one, so none is compiled before."""
    between = rb"\b(?:[^\n]|,\n|(?<=\w)\n[ \t]){0,300}?[\s'\"\0]"
    return re.compile(rb"\b" + program + between + _PROGRAMS[program])


def program_spans(data: bytes) -> list[Span]:
    """Find the secrets in the commands of known programs, as text or as a list's repr."""
    spans: list[Span] = []
    for pattern in [_pattern_of(program) for program in _PROGRAMS if program in data]:
        spans += [
            Span(match.start(), *match.span(1))
            for match in pattern.finditer(data)
            if match[1] not in (MASK_BYTES, b"-")
        ]
    if b"wandb" in data and b"login" in data:
        spans += [Span(m.start(), *m.span(1)) for m in _POSITIONAL.finditer(data)]
        spans += [Span(m.start(), *m.span(1)) for m in _WANDB_CALL.finditer(data)]
    if b"password" in data:
        spans += [Span(m.start(), *m.span(1)) for m in _NETRC_LINE.finditer(data)]
    return spans
