"""Reads the logs of dpo.py and olmo_core_finetune.py, written by OLMo-core's ConsoleLogger."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from launch.execution.record.events import Event
from launch.execution.supervise.readers.base import StepReader

_MARKER = re.compile(r"\[step=(?P<step>\d+)/(?P<total>\d+|\?\?\?),epoch=(?P<epoch>\d+)")
_VALUE = re.compile(r"^ {4}(?P<name>[^=]+)=(?P<number>-?(?:[\d.,]+(?:[eE][+-]?\d+)?|nan|inf))(?P<suffix>[KMBTPE]?)$")
_SUFFIX = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_NAMES = {
    "train/CE loss": "loss",
    "train_loss": "loss",
    "optim/LR": "lr",
    "optim/total grad norm": "grad_norm",
    "gpu_memory/GPU active mem (GiB)": "memory_gib",
    "gpu_memory/GPU reserved mem (GiB)": "memory_reserved_gib",
    "launch/tokens": "tokens",
    "launch/tokens_padded": "tokens_padded",
    "train/global_sequences_per_step": "sequences",
    "perf/seconds_per_step": "seconds",
    "perf/mfu_step": "mfu",  # percent of the data sheet's rate, by upstream's operation count (utils.py:2510)
    "throughput/device/MFU": "mfu",
    "learning_rate": "lr",
}


# lines of olmo_core_finetune.py, which packs the tokenised dataset into its own numpy files
_NUMPY_START = "Tokenizing dataset into numpy format at "  # :92
_NUMPY_HIT = "Numpy SFT files already present at "  # :158
_NUMPY_BUILT = "Dataset cached successfully"  # :161


class OlmoCoreReader(StepReader):
    """`[step=5/100,epoch=1,eta=2m]` and indented `name=value` lines (olmo_core/train/callbacks/console_logger.py).

    For dpo.py the worker's patch olmo_core_console adds loss and rewards, and olmo_core_tokens adds tokens.
    """

    phase_lines: ClassVar[Mapping[str, str]] = {
        _NUMPY_START: "tokenize",
        "Cache not found": "tokenize",
        "Found cached dataset at ": "load",
        _NUMPY_HIT: "load",
        "Caching reference logprobs": "reference_logprobs",  # dpo.py:309
        "Starting training...": "training",  # dpo.py:336, olmo_core_finetune.py:359
        "Saving checkpoint for step ": "checkpoint",  # olmo_core/train/trainer.py:970
        "Training complete": "save",
        "Exporting model to HuggingFace format at ": "save",  # dpo.py:58
    }

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._total = 0
        self._values: dict[str, float] = {}
        self._numpy_folder: str | None = None  # the folder being written

    def feed(self, line: str, now: float) -> list[Event]:
        if "[step=" in line and (match := _MARKER.search(line)):
            events = [self._event("phase", now, phase="training"), *self._finish()]
            if match["total"].isdigit() and int(match["total"]) != self._total:
                self._total = int(match["total"])
                events.append(self._event("total_steps", now, steps=self._total))
            return events + self._hold(now, step=int(match["step"]), epoch=int(match["epoch"]))
        if self._step is not None and line.startswith("    ") and (match := _VALUE.match(line)):
            name = match["name"]
            name = "lr" if name.startswith("optim/LR") else _NAMES.get(name, name)
            self._values.setdefault(name, float(match["number"].replace(",", "")) * _SUFFIX[match["suffix"]])
            return []
        cache_events = [*self._numpy_events(line, now), *self.reference_cache(line, now)]
        return [*self._finish(), *cache_events, *super().feed(line, now)]

    def _numpy_events(self, line: str, now: float) -> list[Event]:
        if _NUMPY_START in line:
            self._numpy_folder = line.partition(_NUMPY_START)[2].strip()
        elif _NUMPY_HIT in line:
            path = line.partition(_NUMPY_HIT)[2].strip().removesuffix("; nothing to do.")
            return [self._event("evidence", now, what="dataset_cache", value="hit", path=path)]
        elif _NUMPY_BUILT in line and self._numpy_folder is not None:
            return [self._event("evidence", now, what="dataset_cache", value="built", path=self._numpy_folder)]
        return []

    def _finish(self) -> list[Event]:
        values, self._values = self._values, {}
        if values.get("mfu") == 0:  # a CPU, or a GPU that upstream does not know
            del values["mfu"]
        if not values:  # a marker without metrics: not a logged step
            self._step = None
        return self._release(**values)
