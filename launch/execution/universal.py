"""Converts a DeepSpeed checkpoint for a run that resumes it at another width.

Each rank's file has that rank's part of the optimizer's state, so the files are read by the same
number of ranks only (deepspeed/runtime/engine.py:4746). DeepSpeed's universal form has a folder for
each weight. It is made beside the checkpoint, which stays as it is, and is removed when the attempt
has written a checkpoint of the new width (`CheckpointRecorder`) or has ended.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from launch.errors import refusal
from launch.execution.record.checkpoints import Checkpoint
from launch.execution.resume import AttemptStart, converted_folder, needs_conversion
from launch.host.interpreter import open_worker
from launch.planning.plan import Plan
from launch.table import format_bytes
from launch.worker.converting import ConversionRequest

# DeepSpeed writes fragments of the state before it joins them, so both are there at once.
_COPIES = 2
_STAGE = re.compile(r"\*\*\* (\d)\. ")
_STAGES = {"1": "reading each rank's part", "2": "joining the parts", "3": "writing the rest"}


@contextmanager
def converted(plan: Plan, start: AttemptStart, say: Callable[[str], None]) -> Iterator[None]:
    """Have the universal form of the checkpoint of `start` while an attempt needs it.

    What an earlier attempt left is removed first. Raises UserError: no_room_to_convert,
    conversion_failed.
    """
    folder = converted_folder(plan)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        if start.checkpoint is not None and needs_conversion(plan, start.checkpoint):
            _convert(plan, start.checkpoint, say)
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _convert(plan: Plan, checkpoint: Checkpoint, say: Callable[[str], None]) -> None:
    """Write the converted checkpoint: DeepSpeed's files in the universal form, and links to the
    others.

    Raises UserError: no_room_to_convert, conversion_failed.
    """
    source = _deepspeed_folder(checkpoint)
    say(
        f"{checkpoint.path.name} was written at another width: converting it for "
        f"{plan.parallel.width}; the checkpoint itself stays"
    )
    size = sum(file.stat().st_size for file in source.iterdir())
    free = shutil.disk_usage(plan.folder).free
    if free < _COPIES * size:
        message = (
            f"converting {checkpoint.path} needs {format_bytes(_COPIES * size)}, and "
            f"{format_bytes(free)} are free there"
        )
        raise refusal("no_room_to_convert", message, None, "free space, or use the earlier width")
    target = converted_folder(plan) / checkpoint.path.name
    try:
        target.mkdir(parents=True)
        for file in checkpoint.path.iterdir():
            if file.is_file():
                # a hard link would change the file's times, by which its record knows it
                (target / file.name).symlink_to(file.absolute())
        request = ConversionRequest(source, target / source.name)
        reason = _run_conversion(plan.command[0], request, say)
    except OSError as error:
        reason = str(error)
    if reason is not None:
        message = f"converting {checkpoint.path} failed, and changed nothing: {reason}"
        raise refusal("conversion_failed", message, None, "use the earlier width")


def _run_conversion(
    python: str, request: ConversionRequest, say: Callable[[str], None]
) -> str | None:
    """Run DeepSpeed's conversion and report its stages; return why it failed, or None."""
    with open_worker(python, "converting", request) as worker:
        for line in worker.answers:
            stage = _STAGE.match(line)
            if stage is not None and stage[1] in _STAGES:
                say(f"converting, {stage[1]} of {len(_STAGES)}: {_STAGES[stage[1]]}")
        return worker.wait()


def _deepspeed_folder(checkpoint: Checkpoint) -> Path:
    """Return the folder of DeepSpeed's files in a complete checkpoint, which its `latest` names."""
    name = (checkpoint.path / "latest").read_text(encoding="utf-8").strip()
    return checkpoint.path / name
