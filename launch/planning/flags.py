"""The flags of a run, each with its value and where that value is set."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.config.origins import Origin, Provenance
from launch.config.recipe_keys import recipe_mapping
from launch.config.schema import RootConfig
from launch.planning.chat_template import ChatTemplate
from launch.table import Column
from launch.worker.finding import Finding


def format_flag_value(value: object) -> str:
    """Return a flag's value as a command line has it. Items of a list are quoted where the shell
    needs it.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return shlex.join(str(item) for item in value)
    return str(value)


# The columns of a table of flags. A row is a flag's name and its entry in plan.json.
FLAG_COLUMNS: Sequence[Column[tuple[str, Mapping[str, Any]]]] = (
    Column("flag", lambda flag: flag[0]),
    Column("value", lambda flag: format_flag_value(flag[1].get("value"))),
    Column("from", lambda flag: str(flag[1].get("origin") or "")),
    Column("where", lambda flag: str(flag[1].get("where") or "")),
)


@dataclass(frozen=True)
class Flag:
    """A flag's value and where it comes from."""

    value: Any
    provenance: Provenance


BY_LAUNCH = Provenance(Origin.launcher, None)


def values_of(flags: Mapping[str, Flag]) -> dict[str, Any]:
    """Return the values of flags, by name."""
    return {name: flag.value for name, flag in flags.items()}


def replace_computed_values(flags: Mapping[str, Flag], texts: Mapping[str, str]) -> dict[str, Flag]:
    """Return the flags with each text that launch computed replaced by another; `texts` maps the
    old to the new ones. A flag of the user's stays as it is.
    """
    replaced = dict(flags)
    for name, flag in flags.items():
        is_computed = flag.provenance.origin == Origin.launcher
        if is_computed and isinstance(flag.value, str) and flag.value in texts:
            replaced[name] = replace(flag, value=texts[flag.value])
    return replaced


@dataclass(frozen=True)
class Flags:
    """The flags of a run."""

    flags: Mapping[str, Flag]  # in the order of the command line
    warnings: tuple[Finding, ...]
    subset: str | None  # share of the data set, an option of the entry over TRL
    mixture: str | None = None  # several data sets, likewise
    template: ChatTemplate | None = None  # of recipe.chat_template


def sequence_limit(config: RootConfig, flags: Mapping[str, Flag]) -> int:
    """Return the number of tokens of the longest sample that the trainer takes."""
    name = recipe_mapping(config.trainer, "max_seq_length")
    flag = flags.get(name) if isinstance(name, str) else None
    if flag is not None and isinstance(flag.value, int):
        return flag.value
    return config.recipe.max_seq_length
