"""The defaults of other tools, and their settings that launch does not have."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from launch.config.other_tool_files import LINE, TRL_TOOL
from launch.config.other_tools import read_sections
from launch.planning.other_tool_values import Translation
from launch.upstream.pin.lock import locked_schema


@cache
def names_without_counterpart() -> list[tuple[re.Pattern[str], str]]:
    """Return patterns of settings that launch does not have, each with the effect of leaving it
    out; "" where it affects no number.
    """
    return [(re.compile(pattern), change) for pattern, change in read_sections()["without"]]


def default_of(t: Translation, key: str, *flags: str, trainer: str | None = None) -> Any:
    """Return the default of a tool's setting; TRL's is that of the locked parser. A line has no
    defaults: its stage sets the rest.
    """
    if t.tool == LINE:
        return None
    defaults = read_sections()["defaults"]
    if key in defaults[t.tool] or t.tool != TRL_TOOL:
        return defaults[t.tool].get(key)
    fields = locked_schema(trainer or t.overrides.get("trainer") or "trl_sft").fields
    return next((fields[flag].default for flag in flags if flag in fields), None)
