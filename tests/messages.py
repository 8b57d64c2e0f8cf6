"""A message without its wording, which docs/reference/rules.md alone records: its id, its place and
its values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_WARNING = re.compile(r"^(?:launch: |\S+?:\d+: )warning: ")
_ID = re.compile(r" \[(\w+)\](?:, allowed)?$")
# where it is set: an override or a key, the command line, a line of a file; of lint a line and a
# flag
_PLACE = re.compile(r"((?:\S+?:\d+: )?(?:override \S+?|command line|[a-z][\w.-]*)|\S+?:\d+): ")
_VALUES = (
    r"(?<!\w)'[^']+'(?!\w)",  # 'a name'
    r"`[^`]+`",  # `a command`
    r"[~+\w./-]+=(?:\[[^]]*\]|[^\s,;)]*[^\s,;:.)?'\]])?",  # key=value
    r"--[a-z][\w.-]*\w",  # --option
    r"[\w./]+:\d+(?:-\d+)?",  # file:line
    r"[a-z_]\w*(?:\.\w+)+",  # a.key, a file.py
    r"\b[a-z]+(?:_\w+)+",  # a_name
    r"\d{4}-\d\d-\d\d",
    r"\b0x[0-9a-f]+",
    r"(?<![\w./-])-?\d(?:[\d,.]*\d)?(?:e-?\d+)?",  # a number
)
_VALUE = re.compile("|".join(_VALUES))


def values_of(text: str) -> list[str]:
    """Return the names in quotes, commands, overrides, options, places and numbers of a text,
    sorted.
    """
    return sorted({value.strip("'`") for value in _VALUE.findall(text)})


def names(text: str, name: str) -> bool:
    """Whether a text has a name as a whole: not as a part of a longer word, path or number."""
    return re.search(rf"(?<![\w/.-]){re.escape(name)}(?![\w/-])", text) is not None


def outline(message: str) -> str:
    """Return `id at PLACE, VALUE, VALUE` of a printed message, which has to end with an id."""
    is_warning = _WARNING.match(message) is not None
    text = message.replace("warning: ", "", 1) if is_warning else message
    text = text.removeprefix("launch: ")
    ending = _ID.search(text)
    assert ending, f"no id at the end of: {message}"
    place = _PLACE.match(text)
    at = f" at {place[1].replace(': ', ' ')}" if place else ""
    values = values_of(text[place.end() if place else 0 : ending.start()])
    id = f"warning {ending[1]}" if is_warning else ending[1]
    return ", ".join([f"{id}{at}", *(value for value in values if not at.endswith(f" {value}"))])


def outlines(printed: Iterable[str]) -> list[str]:
    """Return the outline of each line that ends with an id."""
    return [outline(line) for line in printed if _ID.search(line)]
