"""Write TensorBoard files from metrics.jsonl while the run is live: the same for every trainer, without packages.

open-instruct can't do it itself: finetune fails at any `report_to` without wandb (finetune.py:469), and the other
trainers offer no choice of tracker.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launch.execution.record.history import RunHistory
from launch.execution.tracking.event_file import EventFile

_INTERVAL = 2.0  # seconds
_NOT_SCALARS = ("step", "time")


@contextlib.contextmanager
def tensorboard_writer(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Write the steps of the run in `folder` into its `tensorboard` folder while this context lasts.

    An earlier attempt's files are rewritten from the record, so that no step is there twice. A full disk stops the
    writing, not the run.
    """
    finished = threading.Event()
    thread = threading.Thread(target=_follow, args=(folder, finished, say), name="tensorboard", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _follow(folder: Path, finished: threading.Event, say: Callable[[str], None]) -> None:
    try:
        target = folder / "tensorboard"
        target.mkdir(parents=True, exist_ok=True)
        for old_file in target.glob("events.out.tfevents.*.launch"):
            old_file.unlink()
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.launch"
        file, history = EventFile(target / name, time.time()), RunHistory(folder)
        with contextlib.closing(file):
            running = True
            while running:
                running = not finished.wait(_INTERVAL)
                for event in history.read():
                    if event.kind == "step" and (values := extract_scalars(event.data)):
                        file.add_scalars(values, event.data["step"], event.time)
                file.flush()
    except OSError as error:
        say(f"warning: TensorBoard's file can't be written: {error.strerror or error}")


def extract_scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a step by tag; a NaN, which is null in the record, becomes NaN again."""
    tags = {}
    for name, value in values.items():
        if name.endswith("_text") and values.get(name.removesuffix("_text"), 0) is None:
            with contextlib.suppress(ValueError):
                tags[_tag(name.removesuffix("_text"))] = float(value)
        elif name not in _NOT_SCALARS and isinstance(value, (int, float)) and not isinstance(value, bool):
            tags[_tag(name)] = float(value)
    return tags


def _tag(name: str) -> str:
    """Return the tag of a metric, as transformers names it: `train/loss`, `eval/loss`."""
    return f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"
