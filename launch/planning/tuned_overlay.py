"""A plan whose settings come from an overlay of `tune`: was it measured here, and what it sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from launch.config.line import override_key
from launch.config.origins import Origin, Origins
from launch.config.trials import TunedConfig
from launch.worker.finding import Finding


def find_differences(tuned: TunedConfig, here: Mapping[str, object]) -> list[str]:
    """Return how the plan differs from what an overlay was measured with, one text each.

    `here` has the plan's stage, width (`gpu8`), trainer, model, global batch and max_seq_length, and
    this machine's GPU and versions of packages. A plan may be made anywhere, so that what this
    machine lacks is not compared.
    """
    measured = {
        "stage": tuned.stage,
        "width": tuned.width,
        "trainer": tuned.trainer,
        "model": tuned.model,
        "global batch": tuned.global_batch_size,
        "max_seq_length": tuned.max_seq_length,
        "card": tuned.card,
        **tuned.versions,
    }
    differences = []
    for name, value in measured.items():
        value_here = here.get(name)
        is_compared = value is not None and value_here is not None
        if is_compared and value != value_here:
            differences.append(f"{name} {value}, here {value_here}")
    return differences


# The keys of problems that name none, by the problem's id. The mode is set in the overlay's defaults.
_KEYS = {
    "batch_not_divisible": "recipe.per_device_batch_size",
    "parallel_width": "defaults",
    "parallel_trainer": "defaults",
}
_MODE = ("parallel", "parallel.mode")


def locate_in_overlay(problem: Finding, origins: Origins) -> Finding:
    """Return the problem with the overlay's line as its place, if the overlay sets the value that
    the problem is about; else the problem as it is.
    """
    key = _KEYS.get(problem.id, problem.where)
    if key is None:
        return problem
    if key == "defaults" and any(override_key(text) in _MODE for text in origins.overrides):
        return problem
    source = origins.of(key)
    if source.origin != Origin.tuned:
        return problem
    return replace(problem, where=source.where)
