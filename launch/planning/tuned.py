"""Warn of an overlay of `tune` that is used elsewhere than it was measured: stage, width, card, packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from launch.config.line import override_key
from launch.config.origins import Origin, Origins
from launch.config.trials import TunedConfig
from launch.errors import Problem

PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "liger-kernel", "flash-attn", "trl")


def tuned_warnings(tuned: TunedConfig, here: Mapping[str, object]) -> tuple[Problem, ...]:
    """Return one warning (tuned_elsewhere) that names every difference; none without a difference.

    `here`: the plan's stage, width (`gpu8`), trainer, model, global batch and max_seq_length, this machine's card and
    versions of packages. What this machine lacks is not compared: a plan may be made anywhere.
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
    compared = [name for name, value in measured.items() if value is not None and here.get(name) is not None]
    differences = [f"{name} {measured[name]}, here {here[name]}" for name in compared if measured[name] != here[name]]
    if not differences:
        return ()
    message = f"tuned={tuned.name} was measured with {'; '.join(differences)}: it may be slower here, or not fit"
    cure = "`python -m launch tune` with the same overrides measures again"
    return (Problem("tuned_elsewhere", message, "tuned", cure),)


# the key of a problem that names none; the mode is set in the overlay's defaults
_KEYS = {
    "batch_not_divisible": "recipe.per_device_batch_size",
    "parallel_width": "defaults",
    "parallel_trainer": "defaults",
}
_MODE = ("parallel", "parallel.mode")


def locate_in_overlay(problem: Problem, origins: Origins) -> Problem:
    """Return the problem; its place is the overlay's line where the overlay sets the value that it is about."""
    key = _KEYS.get(problem.id, problem.where)
    if key is None or (key == "defaults" and any(override_key(word) in _MODE for word in origins.overrides)):
        return problem
    source = origins.of(key)
    return replace(problem, where=source.where) if source.origin == Origin.tuned else problem
