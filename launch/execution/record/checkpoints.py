"""Find the checkpoints in a run's model folder and check that their files are complete.

open-instruct marks a finished checkpoint with a file COMPLETED, which proves little: every rank
writes it as soon as its own part is saved, before rank 0 has written the model, and into the
highest-numbered folder, which need not be the one that was saved (utils.py:789-804,
finetune.py:971). So the files themselves are checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from launch.config.schema import Family, Launcher
from launch.execution.record.shards import find_shard_faults
from launch.files import read_file, read_json_object
from launch.planning.model_folder import find_foreign_pickle, find_weight_faults
from launch.planning.plan import Plan
from launch.planning.weight_files import BrokenFileError, check_torch_file, read_safetensors_header

Unit = Literal["step", "epoch"]
MARK = "COMPLETED"
# The file that OLMo-core writes last: a folder without it is incomplete
# (olmo_core/train/checkpoint.py:145).
_LAST_FILE = ".metadata.json"


@dataclass(frozen=True)
class _Naming:
    """How a trainer names the folders of its checkpoints."""

    complete: re.Pattern[str]  # has the groups unit and number
    started: re.Pattern[str]  # also matches a folder that is in the trainer's way


_ACCELERATE = _Naming(
    re.compile(r"(?P<unit>step|epoch)_(?P<number>\d+)"), re.compile(r"(step|epoch)_.*")
)
_TRANSFORMERS = _Naming(
    re.compile(r"(?P<unit>checkpoint)-(?P<number>\d+)"), re.compile(r"checkpoint-.*")
)
# OLMo-core writes into `step7-tmp`, and renames that folder (olmo_core/train/checkpoint.py:479).
_OLMO_CORE = _Naming(re.compile(r"(?P<unit>step)(?P<number>\d+)"), re.compile(r"step\d+(-tmp)?"))
_NAMINGS = (_ACCELERATE, _TRANSFORMERS, _OLMO_CORE)


@dataclass(frozen=True)
class Layout:
    """The settings that determine the files of a run's checkpoints."""

    family: Family
    world_size: int
    zero_stage: int | None  # None means without DeepSpeed
    launcher: Launcher = Launcher.accelerate  # torchrun starts the trainers over OLMo-core

    @property
    def is_olmo_core(self) -> bool:
        """Whether the checkpoints are OLMo-core's."""
        return self.launcher == Launcher.torchrun

    @property
    def naming(self) -> _Naming:
        """How the folders are named (utils.py:791; transformers trainer_utils.py:270)."""
        if self.is_olmo_core:
            return _OLMO_CORE
        return _TRANSFORMERS if self.family == Family.trl else _ACCELERATE


@dataclass(frozen=True)
class RunLayouts:
    """The layouts of the checkpoints of a run whose attempts had several widths."""

    latest: Layout  # that of the latest attempt
    by_name: Mapping[str, Layout] = field(default_factory=dict)  # of the checkpoints on record


def layout_of(plan: Plan) -> Layout:
    """Return the layout of the checkpoints that a plan's run writes."""
    trainer = plan.config.trainer
    return Layout(
        trainer.family, plan.parallel.width.world_size, plan.parallel.zero_stage, trainer.launcher
    )


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder that a trainer wrote."""

    path: Path
    unit: Unit
    number: int  # optimizer steps done, or the epoch (from 0); -1 if the name has no number
    faults: tuple[str, ...]  # reasons why it can't be loaded
    marked: bool  # open-instruct's file COMPLETED is there
    layout: Layout | None = None  # that of the attempt that wrote it

    @property
    def complete(self) -> bool:
        return not self.faults


def find_checkpoints(output: Path, layouts: Layout | RunLayouts) -> list[Checkpoint]:
    """Return all folders below `output` that the trainer would take for a checkpoint, newest
    last.
    """
    if not output.is_dir():
        return []
    if isinstance(layouts, Layout):
        layouts = RunLayouts(layouts)
    started = layouts.latest.naming.started
    folders = [path for path in output.iterdir() if path.is_dir()]
    checkpoints = []
    for folder in folders:
        if started.fullmatch(folder.name):
            layout = layouts.by_name.get(folder.name, layouts.latest)
            checkpoints.append(_read_checkpoint(folder, layout))
    return sorted(
        checkpoints, key=lambda checkpoint: (checkpoint.unit == "step", checkpoint.number)
    )


def names_checkpoint(path: Path) -> bool:
    """Return whether a trainer of any family would take a path for a checkpoint."""
    is_named = any(naming.started.fullmatch(path.name) for naming in _NAMINGS)
    return is_named and path.is_dir()


def is_being_written(path: Path) -> bool:
    """Return whether a checkpoint of OLMo-core lacks the file that is written last.

    It may be written while later steps are trained (`save_async`). Trainers of other libraries
    train no step before every rank has written its files.
    """
    is_olmo_core = _OLMO_CORE.started.fullmatch(path.name) is not None
    return is_olmo_core and not (path / _LAST_FILE).is_file()


def _read_checkpoint(path: Path, layout: Layout) -> Checkpoint:
    match = layout.naming.complete.fullmatch(path.name)
    if match is None:
        return Checkpoint(path, "step", -1, ("its name has no number",), marked=False)
    number = int(match["number"])
    unit: Unit = "epoch" if match["unit"] == "epoch" else "step"
    if layout.is_olmo_core:
        faults = tuple(_olmo_core_faults(path, layout))
    elif layout.family == Family.trl:
        faults = tuple(_trl_faults(path, number, layout))
    else:
        faults = tuple(_accelerate_faults(path, layout))
    if not faults:
        foreign = find_foreign_pickle(path)
        faults = (foreign,) if foreign is not None else ()
    return Checkpoint(path, unit, number, faults, (path / MARK).exists(), layout)


def _accelerate_faults(path: Path, layout: Layout) -> Iterator[str]:
    """Check the files of accelerate's save_state (accelerate/accelerator.py:3625,
    checkpointing.py:63).
    """
    yield from _count_faults("random_states_*.pkl", path, layout.world_size)
    yield from _file_faults(path, ["scheduler.bin"])
    if layout.zero_stage:
        yield from _deepspeed_faults(path, "pytorch_model", layout)
        return
    yield from _file_faults(path, ["optimizer.bin"])
    weights = "model.safetensors"
    if not (path / weights).exists() and (path / "pytorch_model.bin").exists():
        weights = "pytorch_model.bin"
    yield from _file_faults(path, [weights])


def _trl_faults(path: Path, step: int, layout: Layout) -> Iterator[str]:
    """Check the files of transformers' Trainer._save_checkpoint (trainer.py:3355).

    It writes trainer_state.json last.
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


def _olmo_core_faults(path: Path, layout: Layout) -> Iterator[str]:
    """Check the files of OLMo-core's Checkpointer (olmo_core/train/checkpoint.py:102).

    A rank's own state has its random numbers, which another number of ranks does not read
    (olmo_core/train/trainer.py:1037).
    """
    if is_being_written(path):
        yield f"{_LAST_FILE} is missing: it was not written to its end"
    yield from _count_faults("rank*.pt", path / "train", layout.world_size)
    yield from find_shard_faults(path / "model_and_optim")


def _deepspeed_faults(path: Path, tag: str, layout: Layout) -> Iterator[str]:
    """Check the files of DeepSpeedEngine.save_checkpoint.

    Each rank writes its part of the optimizer and, under ZeRO-3, its part of the model.
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
    """Check that `count` files match the pattern, and that they can be read."""
    files = sorted(folder.glob(pattern)) if folder.is_dir() else []
    if len(files) != count:
        yield f"found {len(files)} {pattern}, expected {count}"
    yield from _file_faults(folder, (file.name for file in files))


def _file_faults(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """Check that these files are there and complete."""
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
    """Return the step in a checkpoint's name (`step_40`, `checkpoint-40`); None for a name with an
    epoch, or without a number.
    """
    if not isinstance(checkpoint, str):
        return None
    match = re.fullmatch(r"(?:global_)?(?:step|checkpoint)[_-]?(\d+)", checkpoint)
    return int(match[1]) if match else None
