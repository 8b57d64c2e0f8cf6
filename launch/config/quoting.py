"""Quotes values for Hydra's grammar of overrides."""

from __future__ import annotations

import re

# Text that Hydra's grammar of overrides does not accept outside quotes: non-ASCII letters, shell
# characters, "(1)".
_NEEDS_QUOTES = re.compile(r"[^\x00-\x7f]|[&!#~;^<>`\n]|(?<!\w)\(")
# Text that the grammar reads as one word, in a list or a map as well.
_WORD = re.compile(r"[\w./-][\w./:@+*-]*", re.ASCII)
# Brackets, commas, quoted texts and colons of a list or a map. The text between them is a value.
_CONTAINER_PART = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[\[\]{},]|:(?=\s))""")


def quote_value(override: str, *, sweeps: bool = False) -> str:
    """Return the override with quotes around values that Hydra's grammar cannot read as they are:
    `name=прогон`.

    With `sweeps` commas separate values, as under `--multirun`.
    """
    key, equals, value = override.partition("=")
    if sweeps and "," in value and value[0] not in "'\"[{":
        quoted = [quote_value(f"={part}").removeprefix("=") for part in value.split(",")]
        return f"{key}={','.join(quoted)}"
    if not equals or not _NEEDS_QUOTES.search(value) or value[0] in "'\"":
        return override
    if value[0] not in "[{":
        has_quotes = "'" in value or '"' in value
        return override if has_quotes else f"{key}={quote_text(value)}"
    parts = _CONTAINER_PART.split(value)  # texts at even positions, separators at odd ones
    for position in range(0, len(parts), 2):
        text = parts[position].strip()
        if text and _NEEDS_QUOTES.search(text):
            parts[position] = parts[position].replace(text, quote_text(text))
    return f"{key}={''.join(parts)}"


def quote_if_needed(text: str) -> str:
    """Return a text as an override has it: in quotes, unless it is one word of the grammar."""
    return text if _WORD.fullmatch(text) else quote_text(text)


def quote_text(text: str) -> str:
    """Quote a text for Hydra's grammar of overrides, where a backslash is special only before a
    quote.
    """
    # the backslashes before a quote, or before the closing quote at the end, are doubled
    doubled = re.sub(r"(\\+)(?='|$)", r"\1\1", text)
    escaped = doubled.replace("'", "\\'")
    return f"'{escaped}'"
