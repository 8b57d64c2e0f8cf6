"""Whether an overlay of `tune` is used where it was measured: the stage, the width, the card, the packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from launch.config.line import override_key
from launch.config.origins import Origin, Origins
from launch.config.tune import TunedConfig
from launch.errors import Problem

PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "liger-kernel", "flash-attn", "trl")


@dataclass(frozen=True)
class Here:
    """What an overlay is compared with. `card`: None where there is none, as on the machine that only plans;
    `versions`: of those PACKAGES that the trainer's interpreter has."""

    card: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Used:
    """What a plan uses an overlay for. `width`: as in a run's name, `gpu8`."""

    stage: str
    width: str
    trainer: str
    model: str
    global_batch: int
    max_seq_length: int


def tuned_warnings(tuned: TunedConfig, used: Used, here: Here) -> tuple[Problem, ...]:
    """One warning (`tuned_elsewhere`) that names all that is not as it was; none when everything is.

    A card and packages that are not here are not compared: a plan may be made anywhere.
    """
    said = [
        ("stage", tuned.stage, used.stage),
        ("width", tuned.width, used.width),
        ("trainer", tuned.trainer, used.trainer),
        ("model", tuned.model, used.model),
        ("global batch", str(tuned.global_batch_size), str(used.global_batch)),
    ]
    if tuned.max_seq_length is not None:
        said.append(("max_seq_length", str(tuned.max_seq_length), str(used.max_seq_length)))
    if here.card is not None and tuned.card is not None:
        said.append(("card", tuned.card, here.card))
    said += [(name, version, here.versions[name]) for name, version in tuned.versions.items() if name in here.versions]
    other = [f"{name} {there}, here {now}" for name, there, now in said if there != now]
    if not other:
        return ()
    message = f"tuned={tuned.name} was measured with {'; '.join(other)}: it may be slower here, or not fit"
    return (Problem("tuned_elsewhere", message, "tuned", "`python -m launch tune` with the same words measures again"),)


# what a problem is about, where it names no key; the mode is a choice of the overlay's defaults
_KEYS = {
    "batch_not_divisible": "recipe.per_device_batch_size",
    "parallel_width": "defaults",
    "parallel_trainer": "defaults",
}
_MODE = ("parallel", "parallel.mode")


def in_overlay(problem: Problem, origins: Origins) -> Problem:
    """The problem, with the overlay's line as its place where the overlay says what it is about, and nobody else."""
    key = _KEYS.get(problem.id, problem.where)
    if key is None or (key == "defaults" and any(override_key(word) in _MODE for word in origins.words)):
        return problem
    said = origins.of(key)
    return replace(problem, where=said.where) if said.origin == Origin.tuned else problem
