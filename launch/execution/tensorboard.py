"""Write TensorBoard files from metrics.jsonl while the run is live: the same for every trainer.

open-instruct can't do it itself: finetune fails at any `report_to` without wandb (finetune.py:469),
and the other trainers offer no choice of tracker. The package tensorboard is an extra, which a plan
with tracking=tensorboard needs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launch.execution.record.events import is_number
from launch.execution.record.follow import EventFollower
from launch.redact import process_redactor

_INTERVAL = 2.0  # seconds
_NOT_SCALARS = ("step", "time")


@contextlib.contextmanager
def tensorboard_writer(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Write the steps of the run in `folder` into its `tensorboard` folder while this context
    lasts.

    An earlier attempt's files are rewritten from the record, so that no step is there twice. A full
    disk stops the writing, not the run.
    """
    finished = threading.Event()
    thread = threading.Thread(
        target=_follow, args=(folder, finished, say), name="tensorboard", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _follow(folder: Path, finished: threading.Event, say: Callable[[str], None]) -> None:
    redact, target = process_redactor().redact_text, folder / "tensorboard"
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        target.mkdir(parents=True, exist_ok=True)
        for old_file in target.glob("events.out.tfevents.*.launch"):
            old_file.unlink()
        history = EventFollower(folder)
        with contextlib.closing(EventFileWriter(str(target), filename_suffix=".launch")) as file:
            running = True
            while running:
                running = not finished.wait(_INTERVAL)
                for event in history.read():
                    if event.kind == "step" and (scalars := extract_scalars(event.data)):
                        values = [
                            Summary.Value(tag=redact(tag), simple_value=value)
                            for tag, value in scalars.items()
                        ]
                        step = event.data["step"]
                        file.add_event(
                            Event(wall_time=event.time, step=step, summary=Summary(value=values))
                        )
                file.flush()
    except (
        ImportError,
        OSError,
    ) as error:  # the plan was made in another interpreter, or the disk is full
        say(
            "warning: TensorBoard's file can't be written: "
            f"{getattr(error, 'strerror', None) or error}"
        )


def extract_scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a step by tag; a NaN, which is null in the record, becomes NaN
    again.
    """
    tags = {}
    for name, value in values.items():
        if name.endswith("_text") and values.get(name.removesuffix("_text"), 0) is None:
            with contextlib.suppress(ValueError):
                tags[_tag(name.removesuffix("_text"))] = float(value)
        elif name not in _NOT_SCALARS and is_number(value):
            tags[_tag(name)] = float(value)
    return tags


def _tag(name: str) -> str:
    """Return the tag of a metric, as transformers names it: `train/loss`, `eval/loss`."""
    return f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"
