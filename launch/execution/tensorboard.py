"""Write TensorBoard files from metrics.jsonl while the run is live, whatever its trainer.

open-instruct cannot: finetune fails with any `report_to` that lacks wandb (finetune.py:469), and
its other trainers offer no choice of tracker. A plan with tracking=tensorboard needs the extra
package tensorboard.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launch.config.ranges import is_number
from launch.execution.record.events import Event
from launch.execution.record.follow import EventFollower
from launch.redact import process_redactor

_INTERVAL = 2.0  # seconds
_NOT_SCALARS = ("step", "time")


@contextlib.contextmanager
def tensorboard_writer(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Write the steps of the run in `folder` into its `tensorboard` folder while this context
    lasts.

    The files of an earlier attempt are written again from the record, so that no step appears
    twice. A full disk stops the writing, not the run.
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
    target = folder / "tensorboard"
    try:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        target.mkdir(parents=True, exist_ok=True)
        for old_file in target.glob("events.out.tfevents.*.launch"):
            old_file.unlink()
        events = EventFollower(folder)
        with contextlib.closing(EventFileWriter(str(target), filename_suffix=".launch")) as file:
            is_running = True
            while is_running:
                is_running = not finished.wait(_INTERVAL)
                for event in events.read():
                    if event.kind == "step":
                        _write_step(file, event)
                file.flush()
    # The package is missing if the plan was made in another interpreter, and the disk may be full.
    except (ImportError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        say(f"warning: TensorBoard's file can't be written: {reason}")


def _write_step(file: Any, event: Event) -> None:
    """Write the numbers of a step with tensorboard's EventFileWriter."""
    from tensorboard.compat.proto import event_pb2
    from tensorboard.compat.proto.summary_pb2 import Summary

    redactor = process_redactor()
    values = []
    for tag, value in extract_scalars(event.data).items():
        values.append(Summary.Value(tag=redactor.redact_text(tag), simple_value=value))
    if values:
        summary = Summary(value=values)
        step = event.data["step"]
        file.add_event(event_pb2.Event(wall_time=event.time, step=step, summary=summary))


def extract_scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a step by tag.

    A value that is NaN or infinite is null in the record, and its text is under `NAME_text`.
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
