"""Whether an overlay of `tune` is used where it was measured: the width, the model, the card, the packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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

    width: str
    trainer: str
    model: str
    global_batch: int


def tuned_warnings(tuned: TunedConfig, used: Used, here: Here) -> tuple[Problem, ...]:
    """One warning (`tuned_elsewhere`) that names all that is not as it was; none when everything is.

    A card and packages that are not here are not compared: a plan may be made anywhere.
    """
    said = [
        ("width", tuned.width, used.width),
        ("trainer", tuned.trainer, used.trainer),
        ("model", tuned.model, used.model),
        ("global batch", str(tuned.global_batch_size), str(used.global_batch)),
    ]
    if here.card is not None and tuned.card is not None:
        said.append(("card", tuned.card, here.card))
    said += [(name, version, here.versions[name]) for name, version in tuned.versions.items() if name in here.versions]
    other = [f"{name} {there}, here {now}" for name, there, now in said if there != now]
    if not other:
        return ()
    message = f"tuned={tuned.name} was measured with {'; '.join(other)}: it may be slower here, or not fit"
    return (Problem("tuned_elsewhere", message, "tuned", "`python -m launch tune` with the same words measures again"),)
