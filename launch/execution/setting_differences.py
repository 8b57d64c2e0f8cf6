"""`SettingDifference`: a setting that is not the same in two plans, or in several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SettingDifference:
    """A setting, or another fact of a plan or run, that is not the same everywhere."""

    name: str  # configuration key, or the name of the fact
    values: tuple[Any, ...]  # one for each plan or run, None where it has none


def find_setting_differences(
    sides: Sequence[Mapping[str, Any] | None],
) -> list[SettingDifference]:
    """Return the settings that differ between the sides, in the order in which they are named.

    A side whose settings are None is not compared.
    """
    compared = [side for side in sides if side is not None]
    names: dict[str, None] = {}  # a dictionary keeps the order, without duplicates
    for side in compared:
        names.update(dict.fromkeys(side))
    differences = []
    for name in names:
        first = compared[0].get(name)
        if any(side.get(name) != first for side in compared):
            values = [None if side is None else side.get(name) for side in sides]
            differences.append(SettingDifference(name, tuple(values)))
    return differences
