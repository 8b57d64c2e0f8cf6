"""Masks secrets as `<set>` in text, bytes and objects that leave the process.

`launch.files`, `launch.terminal` and `launch.execution.supervise.streams` use it for all that they
write. `launch.redact_stream` does it for a stream that arrives in pieces.

A secret is recognised by what it follows (`hub_token=`, `'--hub_token', '...'`), by its shape
(`hf_...`, a JWT, a PEM block), or because it is the exact value of a variable with such a name in
this process's environment. A git sha is not a secret, although an old wandb key looks the same:
that one is only recognised by its name or from the environment.
"""

from __future__ import annotations

import base64
import bisect
import html
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from launch.secret_blocks import holds_secrets
from launch.secret_names import is_secret, looks_random, name_strength
from launch.secret_programs import program_spans
from launch.secret_shapes import MASK_BYTES, Span, pem_spans, shape_spans
from launch.secret_structure import structure_spans

MASK = MASK_BYTES.decode()

# What may come between the halves of a secret: a colour code, a progress bar, a return to the
# line's start.
_INTERRUPTION = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\r[^\r\n]{0,80}?\d{1,3}%\|[^\r\n]{0,200}?\]|\r(?!\n)"
)
_BASE64 = re.compile(rb"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{24,}={0,2}")
_VALUE_KEYS = ("value", "val", "default", "argument")
_HARMLESS_VALUES = frozenset(["enabled", "disabled", "default", "required", "optional"])


def mask_spans(data: bytes, spans: Iterable[Span]) -> bytes:
    parts: list[bytes] = []
    at = 0
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if span.end <= at or span.end == span.start:
            continue
        if span.start >= at:
            parts += [data[at : span.start], MASK_BYTES]
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

    def spans(self, data: bytes) -> list[Span]:
        """Find the secrets in `data`, also those that escape codes interrupt; they may overlap."""
        spans = self._plain_spans(data)
        if b"\x1b" in data or b"\r" in data:
            spans += self._interrupted_spans(data)
        return spans

    def _interrupted_spans(self, data: bytes) -> list[Span]:
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
            if span.end > span.start or span.header:
                context = in_data(span.context)
                start = in_data(span.start, side=-1 if span.header else 0)
                end = in_data(span.end, side=-1)
                spans.append(Span(context, start, end, span.open_block, span.header))
        return spans

    def _plain_spans(self, data: bytes) -> list[Span]:
        lowered = data.lower()
        spans = shape_spans(data, lowered) + pem_spans(data) + structure_spans(data, lowered)
        spans += self._encoded_spans(data)
        for needle in self._needles:
            at = data.find(needle)
            while at >= 0:
                spans.append(Span(at, at, at + len(needle)))
                at = data.find(needle, at + len(needle))
        return spans

    def _encoded_spans(self, data: bytes) -> list[Span]:
        """Find base64 of a text with a secret, such as Docker's file in a variable."""
        runs = _BASE64.finditer(data)
        return [
            Span(run.start(), *run.span()) for run in runs if self._plain_spans(_decoded(run[0]))
        ]

    def redact_bytes(self, data: bytes) -> bytes:
        """Mask the secrets in `data`, preferably whole lines; keep every other byte."""
        spans = self.spans(data)
        return mask_spans(data, spans) if spans else data

    def redact_text(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        return self.redact_bytes(data).decode("utf-8", "surrogatepass")

    def redact_value(self, name: str, value: str) -> str:
        """Mask the value of a variable, flag or key, all of it if the name is that of a secret."""
        if is_secret(name, value):
            return MASK
        return self.redact_text(value)

    def redact_object(self, value: Any, name: str = "") -> Any:
        """Mask the secrets in a JSON-like object, those of a dict by its keys.

        Lists and tuples become lists. In `{"hub_token": {"value": ..., "origin": ...}}`, the form
        of a plan's flags, the outer key names the value.
        """
        if isinstance(value, Mapping):
            masked = {}
            outer = name if holds_secrets(name) and name_strength(name) == 2 else ""
            # {"name": "HF_TOKEN", "value": ...} is how Kubernetes writes a variable
            called = str(value.get("name") or value.get("key") or name)
            for key, item in value.items():
                item_name = called if key in _VALUE_KEYS else str(key)
                item_name = item_name if name_strength(item_name) == 2 else outer or item_name
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
        joined = "\0".join(argv).encode("utf-8", "surrogatepass")
        programs = mask_spans(joined, program_spans(joined)).decode("utf-8", "surrogatepass")
        for argument in programs.split("\0") if programs.count("\0") == len(argv) - 1 else argv:
            name, equals, value = argument.partition("=")
            is_flag = argument.startswith("-")
            if not is_flag and _is_argument(flag, argument):
                masked.append(MASK)
            elif equals and (is_flag or re.fullmatch(r"[\w.+~]+", name)):
                masked.append(f"{name}={self.redact_value(name, value)}")
            elif is_flag:
                masked.append(self.redact_text(argument))
            else:
                masked.append(self.redact_text(argument))
            flag = "" if equals else argument
        return masked


def _is_argument(before: str, argument: str) -> bool:
    """Whether an argument is the secret that the one before it names, by a flag or a plain name."""
    if before.startswith("-"):
        return is_secret(before, argument)
    return name_strength(before) == 2 and looks_random(argument)


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


def _decoded(run: bytes) -> bytes:
    """Return the printable text whose base64, of either alphabet, the run is, else nothing."""
    standard = run.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    if not _is_text(base64.b64decode(standard[:24])):
        return b""
    try:
        data = base64.b64decode(standard + b"=" * (-len(standard) % 4))
    except ValueError:
        return b""
    return data if _is_text(data) else b""


def _is_text(data: bytes) -> bool:
    return re.fullmatch(rb"[\x20-\x7e\t\r\n]*", data) is not None


def _is_secret_value(name: str, value: str) -> bool:
    """Whether the value of a variable is a secret wherever it occurs."""
    return value.lower() not in _HARMLESS_VALUES and is_secret(name, value)


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
