"""Which attention a run takes where the recipe leaves it open, and what packing costs without flash
attention.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from launch.config.origins import Origin, Provenance
from launch.config.recipe_keys import Precision
from launch.config.schema import Device, Family, RootConfig
from launch.planning.estimate.shape import ModelShape
from launch.planning.flags import Flag
from launch.planning.machine import Machine
from launch.planning.parallel import Parallel

FLAG = "attn_implementation"
FLASH = "flash_attention_2"
SDPA = "sdpa"
# GPUs before Ampere, for which flash-attn 2 has no kernels (its README, "NVIDIA CUDA Support")
_TOO_OLD = re.compile(
    r"\b([KMPV]\d{2,3}|T4|GTX \d+|RTX 20\d\d|TITAN \w+|Quadro RTX)\b", re.IGNORECASE
)
_UNKNOWN = "the trainer's packages are not on this machine"


@dataclass(frozen=True)
class AttentionChoice:
    """The attention of a TRL run on GPUs."""

    implementation: str  # by transformers' name
    why: str
    is_automatic: bool = False

    def __str__(self) -> str:
        return f"{self.implementation} ({self.why})"


def choose_attention(
    config: RootConfig, parallel: Parallel, flags: Mapping[str, Flag], machine: Machine
) -> AttentionChoice | None:
    """Choose flash attention for a TRL run in bf16 where flash-attn is installed and the GPU is
    Ampere or newer.

    None for open-instruct's scripts, which choose by themselves (model_utils.py:77-89), and for
    runs on a CPU.
    """
    if config.trainer.family != Family.trl or parallel.width.device != Device.cuda:
        return None
    if FLAG in flags:
        return AttentionChoice(str(flags[FLAG].value), "as set")
    obstacle = _find_obstacle(parallel, machine)
    if obstacle:
        return AttentionChoice(SDPA, f"auto: {obstacle}", is_automatic=True)
    why = f"auto: flash-attn {machine.versions['flash-attn']} is installed"
    return AttentionChoice(FLASH, why, is_automatic=True)


def _find_obstacle(parallel: Parallel, machine: Machine) -> str | None:
    """Return why flash attention can't be used; None where it can."""
    if "torch" not in machine.versions:
        return _UNKNOWN
    if "flash-attn" not in machine.versions:
        return "flash-attn is not installed"
    if parallel.precision != Precision.bf16:
        return f"flash-attn does not compute in {parallel.precision}"
    if machine.card and _TOO_OLD.search(machine.card):
        return f"flash-attn has no kernels for {machine.card}"
    return None


def attention_flags(choice: AttentionChoice | None) -> dict[str, Flag]:
    """Return the flag of an automatic choice, if transformers' own default is another one."""
    if choice is None or not choice.is_automatic or choice.implementation != FLASH:
        return {}
    return {FLAG: Flag(FLASH, Provenance(Origin.launcher, choice.why))}


def is_flash_or_unknown(choice: AttentionChoice) -> bool:
    """Return whether a run has flash attention, or may have it."""
    return "flash" in choice.implementation or _UNKNOWN in choice.why


def upstream_choice(
    parallel: Parallel, flags: Mapping[str, Flag], machine: Machine
) -> AttentionChoice:
    """Return what open-instruct's scripts take: flash attention where it is installed
    (model_utils.py:77-89).
    """
    if FLAG in flags:
        name = str(flags[FLAG].value)
        return AttentionChoice(SDPA if name == "torch" else name, "as set")
    obstacle = _find_obstacle(parallel, machine)
    if obstacle:
        return AttentionChoice(SDPA, f"auto: {obstacle}")
    return AttentionChoice(FLASH, "auto")


def packed_cost(shape: ModelShape, row: int, limit: int, *, masked: bool = True) -> float:
    """Return the ratio of the computation of a packed row under SDPA to that under flash attention,
    both at their longest.

    A token costs 2 FLOPs a weight. Its attention costs 4 x width x layers for each token of the row
    that it is computed against: all tokens under a mask, half of them without a mask, and half of
    its own document's under flash attention.
    """
    weights = 2 * (shape.layers * shape.layer + shape.embedding)
    width = shape.query_width * shape.layers
    sdpa_attention = (4 if masked else 2) * row * width
    flash_attention = 2 * limit * width
    return (weights + sdpa_attention) / (weights + flash_attention)
