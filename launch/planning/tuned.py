"""Warn of an overlay of `tune` that is used elsewhere than it was measured: stage, width, card, packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from launch.config.line import override_key
from launch.config.origins import Origin, Origins
from launch.config.tune import TunedConfig
from launch.errors import Problem

PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "liger-kernel", "flash-attn", "trl")


@dataclass(frozen=True)
class MachineInfo:
    """The facts of this machine that an overlay is compared with."""

    card: str | None = None  # None without a GPU, as on a machine that only plans
    versions: Mapping[str, str] = field(default_factory=dict)  # of those PACKAGES that the trainer's interpreter has


@dataclass(frozen=True)
class PlanConditions:
    """The facts of a plan that an overlay is compared with."""

    stage: str
    width: str  # as in a run's name: gpu8
    trainer: str
    model: str
    global_batch: int
    max_seq_length: int


def tuned_warnings(tuned: TunedConfig, plan: PlanConditions, machine: MachineInfo) -> tuple[Problem, ...]:
    """Return one warning (tuned_elsewhere) that names every difference; none without a difference.

    A card or a package that this machine lacks is not compared: a plan may be made anywhere.
    """
    pairs = [
        ("stage", tuned.stage, plan.stage),
        ("width", tuned.width, plan.width),
        ("trainer", tuned.trainer, plan.trainer),
        ("model", tuned.model, plan.model),
        ("global batch", str(tuned.global_batch_size), str(plan.global_batch)),
    ]
    if tuned.max_seq_length is not None:
        pairs.append(("max_seq_length", str(tuned.max_seq_length), str(plan.max_seq_length)))
    if machine.card is not None and tuned.card is not None:
        pairs.append(("card", tuned.card, machine.card))
    pairs += [
        (name, version, machine.versions[name]) for name, version in tuned.versions.items() if name in machine.versions
    ]
    differences = [f"{name} {measured}, here {current}" for name, measured, current in pairs if measured != current]
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
