"""Find the checkpoints in a run's model folder and check that their files are complete.

open-instruct marks a finished checkpoint with a file COMPLETED, which proves little: every rank
writes it as soon as its own part is saved, before rank 0 has written the model, and into the
highest-numbered folder, which need not be the one that was saved (utils.py:789-804,
finetune.py:971). So the files themselves are checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launch.config.schema import Family
from launch.files import read_file, read_json_object
from launch.planning.model_folder import (
    BrokenFileError,
    check_torch_file,
    find_weight_faults,
    read_safetensors_header,
)

Unit = Literal["step", "epoch"]
MARK = "COMPLETED"
_NAME_PATTERNS = {
    Family.open_instruct: re.compile(r"(?P<unit>step|epoch)_(?P<number>\d+)"),
    Family.trl: re.compile(r"(?P<unit>checkpoint)-(?P<number>\d+)"),
}
# names that upstream takes for a checkpoint (utils.py:791, transformers trainer_utils.py:270)
_PREFIXES = {Family.open_instruct: ("step_", "epoch_"), Family.trl: ("checkpoint-",)}


@dataclass(frozen=True)
class Layout:
    """What determines the files of a run's checkpoints."""

    family: Family
    world_size: int
    zero_stage: int | None  # None: without DeepSpeed


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder that a trainer wrote."""

    path: Path
    unit: Unit
    number: int  # optimizer steps done, or the epoch (from 0); -1 if the name has no number
    faults: tuple[str, ...]  # why it can't be loaded
    marked: bool  # with open-instruct's COMPLETED

    @property
    def complete(self) -> bool:
        return not self.faults


def find_checkpoints(output: Path, layout: Layout) -> list[Checkpoint]:
    """Return all folders below `output` that the trainer would take for a checkpoint, newest
    last.
    """
    if not output.is_dir():
        return []
    folders = [
        path
        for path in output.iterdir()
        if path.is_dir() and path.name.startswith(_PREFIXES[layout.family])
    ]
    checkpoints = [_read_checkpoint(path, layout) for path in folders]
    return sorted(
        checkpoints, key=lambda checkpoint: (checkpoint.unit == "step", checkpoint.number)
    )


def _read_checkpoint(path: Path, layout: Layout) -> Checkpoint:
    match = _NAME_PATTERNS[layout.family].fullmatch(path.name)
    if match is None:
        return Checkpoint(path, "step", -1, ("its name has no number",), marked=False)
    number = int(match["number"])
    faults = (
        _trl_faults(path, number, layout)
        if layout.family == Family.trl
        else _accelerate_faults(path, layout)
    )
    unit: Unit = "epoch" if match["unit"] == "epoch" else "step"
    return Checkpoint(path, unit, number, tuple(faults), (path / MARK).exists())


def _accelerate_faults(path: Path, layout: Layout) -> Iterator[str]:
    """Check what accelerate's save_state writes (accelerate/accelerator.py:3625,
    checkpointing.py:63).
    """
    yield from _count_faults("random_states_*.pkl", path, layout.world_size)
    yield from _file_faults(path, ["scheduler.bin"])
    if layout.zero_stage:
        yield from _deepspeed_faults(path, "pytorch_model", layout)
        return
    yield from _file_faults(path, ["optimizer.bin"])
    weights = [
        name for name in ("model.safetensors", "pytorch_model.bin") if (path / name).exists()
    ]
    yield from _file_faults(path, weights[:1] or ["model.safetensors"])


def _trl_faults(path: Path, step: int, layout: Layout) -> Iterator[str]:
    """Check what transformers' Trainer._save_checkpoint writes (trainer.py:3355),
    trainer_state.json last.
    """
    saved = read_json_object(path / "trainer_state.json").get("global_step")
    if saved is None:
        yield "trainer_state.json is missing or unreadable"
    elif saved != step:
        yield f"trainer_state.json belongs to step {saved}"
    yield from find_weight_faults(path)
    yield from _count_faults("rng_state*.pth", path, layout.world_size)
    if layout.zero_stage:
        yield from _deepspeed_faults(path, f"global_step{step}", layout)
    else:
        yield from _file_faults(path, ["optimizer.pt", "scheduler.pt"])


def _deepspeed_faults(path: Path, tag: str, layout: Layout) -> Iterator[str]:
    """Check DeepSpeedEngine.save_checkpoint's: each rank's part of the optimizer, and of the model
    under ZeRO-3.
    """
    try:
        latest = read_file(path / "latest").decode().strip()
    except (OSError, ValueError):
        latest = ""
    if latest != tag:
        yield "DeepSpeed's `latest` is missing"
    yield from _count_faults("*zero_pp_rank_*_optim_states.pt", path / tag, layout.world_size)
    models = layout.world_size if layout.zero_stage == 3 else 1
    yield from _count_faults("*model_states.pt", path / tag, models)


def _count_faults(pattern: str, folder: Path, count: int) -> Iterator[str]:
    files = sorted(folder.glob(pattern)) if folder.is_dir() else []
    if len(files) != count:
        yield f"found {len(files)} {pattern}, expected {count}"
    yield from _file_faults(folder, (file.name for file in files))


def _file_faults(folder: Path, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if not (folder / name).is_file():
            yield f"{name} is missing"
            continue
        try:
            if name.endswith(".safetensors"):
                read_safetensors_header(folder / name)
            else:
                check_torch_file(folder / name)
        except BrokenFileError as broken:
            yield str(broken)


def checkpoint_step(checkpoint: object) -> int | None:
    """Return the step in a checkpoint's name (`step_40`, `checkpoint-40`); None for an epoch's, and
    without one.
    """
    if not isinstance(checkpoint, str):
        return None
    match = re.fullmatch(r"(?:global_)?(?:step|checkpoint)[_-]?(\d+)", checkpoint)
    return int(match[1]) if match else None
