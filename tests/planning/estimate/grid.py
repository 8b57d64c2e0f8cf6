"""The settings that were measured on GPUs, as the estimate sees them: the JSON files of
benchmarks/.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from launch import resources
from launch.config.kinds import Kind
from launch.config.schema import Mode
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.setting import Attention, MemorySetting
from launch.planning.estimate.shape import ModelShape, with_parameters

FOLDER = resources.ROOT / "benchmarks"
SHAPES = {
    "1b": with_parameters(ModelShape(0, 16, 2048, 8192, 32, 8, 128256, tied=True)),
    "8b": with_parameters(ModelShape(0, 32, 4096, 14336, 32, 8, 128256)),
}
ACCUMULATION = 2  # of every setting of benchmarks/memory_grid.py
# the fast setting of the 8b shape, with which the runs over make_inputs.py's chats were made
FAST = MemorySetting(
    SHAPES["8b"],
    Kind.sft,
    Mode.zero2,
    4,
    16,
    1,
    accumulation=2,
    packing=True,
    liger=True,
    fused_loss=True,
    attention=Attention.flash,
)
STEPS = {  # runs of h200_steps_8b.json in which all weights are trained on packed rows
    "sft single 16x2 gpu1 global 32": replace(FAST, mode=Mode.single, ranks=1),
    "sft zero1 16x2 gpu4 global 128": replace(FAST, mode=Mode.zero1),
    "sft zero2 16x2 gpu4 global 128": FAST,
    "sft zero2 16x2 gpu4 global 128, expandable_segments:True": replace(
        FAST, expandable_segments=True
    ),
}


@dataclass(frozen=True)
class Measured:
    """One setting with the peaks of rank 0, GiB: `allocated` and `reserved` by torch."""

    name: str
    setting: MemorySetting
    allocated: float
    reserved: float


def read_settings(name: str) -> list[dict[str, Any]]:
    settings: list[dict[str, Any]] = json.loads((FOLDER / name).read_text(encoding="utf-8"))[
        "settings"
    ]
    return settings


def read_grid() -> list[Measured]:
    """The settings that trained on rows of known length; those that failed are in the file with
    their cause.
    """
    return [
        parse_row(row) for row in read_settings("h200_memory_grid.json") if row.get("memory_gib")
    ]


def parse_row(row: Mapping[str, Any]) -> Measured:
    """Every sample is longer than the limit, so that all rows are full and none has padding."""
    dpo = row["trainer"] == "dpo_tune_cache"
    setting = MemorySetting(
        SHAPES[row["model"]],
        Kind.dpo if dpo else Kind.sft,
        Mode(row["parallel"]),
        row["gpus"],
        row["per_device"],
        row["per_device"] * (2 if dpo else 1) * row["length"],
        accumulation=ACCUMULATION,
        packing=row["packing"] == "flatten",
        padding=False,
        liger=row["liger"],
        fused_loss=row["liger"] and not dpo,
        checkpointing=row["checkpointing"],
        expandable_segments=row.get("expandable_segments", False),
    )
    marks = [mark for mark in ("liger", "checkpointing") if row[mark]]
    marks += ["packed"] if setting.packing else []
    kind = "DPO " if dpo else ""
    name = (
        f"{kind}{row['model']}, {row['parallel']} x {row['gpus']}, {row['per_device']} x "
        f"{row['length']}"
    )
    return Measured(
        ", ".join([name, *marks]), setting, row["memory_gib"], row["memory_reserved_gib"]
    )


def read_steps() -> list[Measured]:
    """The runs over packed rows that vary in length. Their longest micro batch follows from the
    allocated peak.
    """
    runs = json.loads((FOLDER / "h200_steps_8b.json").read_text(encoding="utf-8"))["runs"]
    measured = []
    for name, setting in STEPS.items():
        last = runs[name]["steps"][-1]
        measured.append(
            _with_tokens(name, setting, last["memory_gib"], last["memory_reserved_gib"])
        )
    return measured


def read_region() -> list[Measured]:
    """The same of the fast region, with expandable segments."""
    measured = []
    for row in read_settings("h200x4_sft_8b_region.json"):
        setting = replace(
            FAST,
            mode=Mode(row["parallel"]),
            micro_batch=row["per_device"],
            accumulation=row["accumulation"],
            expandable_segments=True,
        )
        name = f"{row['parallel']} {row['per_device']}x{row['accumulation']}"
        measured.append(_with_tokens(name, setting, row["memory_gib"], row["memory_reserved_gib"]))
    return measured


def _with_tokens(name: str, setting: MemorySetting, allocated: float, reserved: float) -> Measured:
    return Measured(
        name, replace(setting, tokens=tokens_at(setting, allocated)), allocated, reserved
    )


def tokens_at(setting: MemorySetting, allocated: float) -> int:
    """The tokens of the micro batch at which the predicted peak is `allocated` GiB."""
    low, high = setting.sequences, 1_000_000
    while high - low > 1:
        middle = (low + high) // 2
        below = estimate_memory(replace(setting, tokens=middle)).allocated < allocated
        low, high = (middle, high) if below else (low, middle)
    return high
