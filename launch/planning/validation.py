"""data.validation: the rows that a stage evaluates on and never trains on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launch.config.origins import Origins
from launch.config.ranges import HELD_OUT_FRACTION, is_number
from launch.config.schema import RootConfig
from launch.errors import UserError, did_you_mean
from launch.worker.finding import Finding

KEY = "data.validation"
_EXAMPLE = f"for example {KEY}=0.02, or '{KEY}=[{{name: NAME, share: 0.02}}]'"


@dataclass(frozen=True)
class ValidationSet:
    """A share of the rows of one data set, whose loss is measured separately."""

    name: str  # of the data set, as data.mix has it
    share: float
    curve: str  # the name of its metrics: `eval_loss/CURVE`


def validation_sets(config: RootConfig) -> tuple[ValidationSet, ...]:
    """Return the validation sets that data.validation lists; none for a share of all rows, or for
    files.
    """
    value = config.data.validation
    if not isinstance(value, list):
        return ()
    sets: list[ValidationSet] = []
    curves: set[str] = set()
    for item in value:
        curve = _name_curve(item["name"], curves)
        curves.add(curve)
        sets.append(ValidationSet(item["name"], item["share"], curve))
    return tuple(sets)


def _name_curve(name: str, taken: set[str]) -> str:
    """Return the name of a data set's metrics: that of its file, folder or repository."""
    path = Path(name)
    if any(letter in path.name for letter in "*?["):
        path = path.parent
    label = re.sub(r"[^\w-]+", "_", path.name.partition(".")[0]).strip("_") or "data"
    number = 1
    unique = label
    while unique in taken:
        number += 1
        unique = f"{label}_{number}"
    return unique


def check_validation(config: RootConfig, origins: Origins) -> None:
    """Check that data.validation is a share of the rows, a path, or a list of shares of data sets.

    Raises UserError: bad_validation.
    """
    value: object = config.data.validation
    problems: list[str] = []
    if isinstance(value, list):
        problems += _problems_of_list(value, [entry.name for entry in config.data.mix])
    elif is_number(value):
        if not HELD_OUT_FRACTION.contains(value):
            problems.append(f"must be {HELD_OUT_FRACTION.describe(value)}, got {value!r}")
    elif value is not None and not (isinstance(value, str) and value):
        problems.append(f"must be a fraction of the rows or a path, got {value!r}")
    if problems:
        where = origins.of(KEY).where
        raise UserError(
            [Finding.error("bad_validation", f"{KEY} {text}", where, _EXAMPLE) for text in problems]
        )


def _problems_of_list(items: list[object], mix: list[str]) -> Iterator[str]:
    """Yield what is wrong with a list of validation sets."""
    if not items:
        yield "is an empty list"
    names = set()
    for item in items:
        if not isinstance(item, Mapping) or set(item) != {"name", "share"}:
            yield f"has the item {item!r}, which must have a name and a share"
            continue
        name = item["name"]
        share = item["share"]
        if name not in mix:
            near = did_you_mean(str(name), mix) or f"it has {', '.join(mix) or 'none'}"
            yield f"names '{name}', which is not a data set of data.mix: {near}"
        if name in names:
            yield f"names '{name}' twice"
        names.add(name)
        if not HELD_OUT_FRACTION.contains(share):
            allowed = HELD_OUT_FRACTION.describe(share)
            yield f"has for '{name}' the share {share!r}, which must be {allowed}"


def describe_schedule(config: RootConfig) -> str | None:
    """Describe what is held out and when the trainer evaluates on it; None without validation
    data.
    """
    value = config.data.validation
    recipe = config.recipe
    if value is None:
        return None
    held_out = _describe_held_out(config)
    if not config.trainer.validation_flags:
        trainer = config.trainer.name
        return f"{held_out}, kept for `launch eval`; {trainer} does not evaluate while it trains"
    schedule = f"{held_out}, evaluated "
    if recipe.eval_steps:
        schedule += f"every {recipe.eval_steps} steps and "
    schedule += "at the end"
    if recipe.early_stop:
        schedule += f"; stops after {recipe.early_stop} without a lower loss"
    return schedule


def _describe_held_out(config: RootConfig) -> str:
    sets = validation_sets(config)
    if sets:
        parts = [f"{one.share:.4g} of {one.name} (eval_loss/{one.curve})" for one in sets]
        return ", ".join(parts)
    value = config.data.validation
    return f"{value:.4g} of the rows" if isinstance(value, float) else str(value)
