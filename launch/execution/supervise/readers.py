"""Parses trainers' log lines into events, with the reader that a trainer's file names.

Pure: a line and the time go in, events come out. The grammar is upstream's at the pin; each
reader's docstring cites the source lines. The steps of `dpo_tune_cache` and of TRL come from the
worker, not from lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from launch.execution.record.events import Event

PATIENCE = 1.0  # seconds
NUMBER = r"-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|nan|inf)"
_TOTAL_STEPS = re.compile(r"Total (?:optimization|training) steps(?: =|:) (\d+)")
_CACHE_MISS = "Cache not found"
_CACHE_READY = "Found cached dataset at "
_REFERENCE_LINES = {
    "Loading reference logprobs cache from ": "hit",  # dpo_utils.py:437
    "Saving reference logprobs cache to ": "built",  # :515
}


class LogReader:
    """Turns the lines of one rank into events. Subclasses declare their phase lines and parse what
    else they can.

    A step that spans several lines is held until it is complete, at most PATIENCE seconds.
    """

    phase_lines: ClassVar[
        Mapping[str, str]
    ] = {}  # text -> the phase that starts with a line containing it
    _cache_missed = False
    _step: dict[str, Any] | None = None  # the step that is held
    _held_since = 0.0

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def feed(self, line: str, now: float) -> list[Event]:
        """Return the events of one line that arrived at `now` (unix seconds)."""
        events = [
            self._event("phase", now, phase=phase)
            for text, phase in self.phase_lines.items()
            if text in line
        ]
        if "Total " in line and (total := _TOTAL_STEPS.search(line)):
            events.append(self._event("total_steps", now, steps=int(total[1])))
        if _CACHE_MISS in line:
            self._cache_missed = True
        elif _CACHE_READY in line:
            # dataset_transformation.py:2203 (a hit) and :2288 (just built) print the same line
            value = "built" if self._cache_missed else "hit"
            events.append(self._dataset(now, value, line.partition(_CACHE_READY)[2]))
            self._cache_missed = False
        for text, value in _REFERENCE_LINES.items():
            if text in line:
                events.append(
                    self._event("evidence", now, what="reference_logprobs_cache", value=value)
                )
        return events

    def idle(self, now: float) -> list[Event]:
        """Return the step held for further lines that have not come in time."""
        return self._finish() if now - self._held_since >= PATIENCE else []

    def close(self, now: float) -> list[Event]:
        """Return the step still held at the end of the stream."""
        return self._finish()

    def _event(self, kind: str, now: float, **data: Any) -> Event:
        return Event(kind, now, self.rank, data)

    def _dataset(self, now: float, value: str, path: str) -> Event:
        return self._event("evidence", now, what="dataset_cache", value=value, path=path.strip())

    def _hold(self, now: float, **data: Any) -> list[Event]:
        """Hold a new step and return the previous one, which is complete."""
        events = self._release()
        self._step, self._held_since = data, now
        return events

    def _release(self, **data: Any) -> list[Event]:
        step, self._step = self._step, None
        return [self._event("step", self._held_since, **step, **data)] if step is not None else []

    def _finish(self) -> list[Event]:
        return self._release()


_STEP = re.compile(
    rf"Step: (?P<step>\d+), LR: (?P<lr>{NUMBER}), Loss: (?P<loss>{NUMBER})"
    rf"(?:,? Aux Loss: (?P<aux_loss>{NUMBER}))?(?:, TPS: (?P<tps>{NUMBER}))?"
)
_METRIC = re.compile(rf"'([\w/]+)': ({NUMBER})")
_SAVE_LINES = {
    "Saving current state to ": "checkpoint",  # accelerate/accelerator.py:3644
    # transformers, save_pretrained; a checkpoint saves no configuration
    "Configuration saved in ": "save",
    "pushed to https://huggingface.co/": "push",  # model_utils.py:623
}
_CACHE_LINES = {
    _CACHE_MISS: "tokenize",  # dataset_transformation.py:2109, :2217
    _CACHE_READY: "load",  # :2203, :2288
}


class FinetuneReader(LogReader):
    """finetune.py:731-952: `Step: .., LR: .., Loss: .., TPS: ..` and, with --verbose,
    `metrics_to_log={...}` after it.

    From those metrics it takes the token sums (since the start, over all ranks), this rank's peak
    memory and the gradient norm.
    """

    phase_lines: ClassVar[Mapping[str, str]] = {
        **_CACHE_LINES,
        "***** Running training *****": "training",
        **_SAVE_LINES,
    }

    _tokens_per_second = 0.0  # tokens/s since the start, of the held step
    _elapsed = 0.0  # seconds since the start

    def feed(self, line: str, now: float) -> list[Event]:
        if "Step: " in line and (match := _STEP.search(line)):
            self._tokens_per_second = float(match["tps"] or 0)
            values = {
                name: float(match[name]) for name in ("loss", "lr", "aux_loss") if match[name]
            }
            return [
                self._event("phase", now, phase="training"),
                *self._hold(now, step=int(match["step"]), **values),
            ]
        if "metrics_to_log={" in line:
            return self._release(**self._with_seconds(_parse_metrics(line)))
        return super().feed(line, now)

    def _with_seconds(self, values: dict[str, float]) -> dict[str, float]:
        """Add the seconds of the step by the trainer's own clock: TPS is tokens / elapsed
        seconds.
        """
        if self._tokens_per_second > 0 and values.get("total_tokens", 0) > 0:
            elapsed = values["total_tokens"] / self._tokens_per_second
            if elapsed > self._elapsed:
                values["seconds"] = round(elapsed - self._elapsed, 6)
            self._elapsed = elapsed
        return values


def _parse_metrics(line: str) -> dict[str, float]:
    values = dict(_METRIC.findall(line.partition("metrics_to_log=")[2]))
    sums = ("total_tokens", "total_tokens_including_padding")
    metrics: dict[str, float] = {name: int(float(values[name])) for name in sums if name in values}
    for name, upstream_name in (
        ("memory_gib", "allocated_mem_GiB"),
        ("memory_reserved_gib", "reserved_mem_GiB"),
    ):
        memory = float(values.get(upstream_name, 0))
        if memory > 0:  # 0 on a CPU
            metrics[name] = memory
    # patches finetune_grad_norm, balanced_batches
    for name in ("grad_norm", "imbalance", "imbalance_upstream"):
        if name in values:
            metrics[name] = float(values[name])
    return metrics


class DPOTuneCacheReader(LogReader):
    """dpo_tune_cache.py:347-538: phases only; the worker reports the steps, including the rewards.

    `***** Running training *****` (:482) precedes the reference log-probs, so it does not mark the
    training phase here.
    """

    phase_lines: ClassVar[Mapping[str, str]] = {
        **_CACHE_LINES,
        "=============before cache logprobs": "reference_logprobs",
        "=============after cache logprobs": "training",
        **_SAVE_LINES,
    }


_MARKER = re.compile(r"\[step=(?P<step>\d+)/(?P<total>\d+|\?\?\?),epoch=(?P<epoch>\d+)")
_VALUE = re.compile(
    r"^ {4}(?P<name>[^=]+)=(?P<number>-?(?:[\d.,]+(?:[eE][+-]?\d+)?|nan|inf))(?P<suffix>[KMBTPE]?)$"
)
_SUFFIX = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_OLMO_NAMES = {
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
    # percent of the data sheet's rate, by upstream's operation count (utils.py:2510)
    "perf/mfu_step": "mfu",
    "throughput/device/MFU": "mfu",
    "learning_rate": "lr",
}


# lines of olmo_core_finetune.py, which packs the tokenised dataset into its own numpy files
_NUMPY_START = "Tokenizing dataset into numpy format at "  # :92
_NUMPY_HIT = "Numpy SFT files already present at "  # :158
_NUMPY_BUILT = "Dataset cached successfully"  # :161


class OlmoCoreReader(LogReader):
    """`[step=5/100,epoch=1,eta=2m]` and indented `name=value` lines
    (olmo_core/train/callbacks/console_logger.py).

    For dpo.py the worker's patch olmo_core_console adds loss and rewards, and olmo_core_tokens adds
    tokens.
    """

    phase_lines: ClassVar[Mapping[str, str]] = {
        _NUMPY_START: "tokenize",
        **_CACHE_LINES,
        _NUMPY_HIT: "load",
        "Caching reference logprobs": "reference_logprobs",  # dpo.py:309
        "Starting training...": "first_step",  # dpo.py:336, olmo_core_finetune.py:359
        "Saving checkpoint for step ": "checkpoint",  # olmo_core/train/trainer.py:970
        "Training complete": "save",
        "Exporting model to HuggingFace format at ": "save",  # dpo.py:58
    }

    _total = 0
    _numpy_folder: str | None = None  # the folder being written

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._values: dict[str, float] = {}

    def feed(self, line: str, now: float) -> list[Event]:
        if "[step=" in line and (match := _MARKER.search(line)):
            events = [self._event("phase", now, phase="training"), *self._finish()]
            if match["total"].isdigit() and int(match["total"]) != self._total:
                self._total = int(match["total"])
                events.append(self._event("total_steps", now, steps=self._total))
            return events + self._hold(now, step=int(match["step"]), epoch=int(match["epoch"]))
        if self._step is not None and line.startswith("    ") and (match := _VALUE.match(line)):
            name = match["name"]
            name = "lr" if name.startswith("optim/LR") else _OLMO_NAMES.get(name, name)
            self._values.setdefault(
                name, float(match["number"].replace(",", "")) * _SUFFIX[match["suffix"]]
            )
            return []
        events = self._finish()
        if _NUMPY_START in line:
            self._numpy_folder = line.partition(_NUMPY_START)[2]
        elif _NUMPY_HIT in line:
            events.append(
                self._dataset(
                    now,
                    "hit",
                    line.partition(_NUMPY_HIT)[2].strip().removesuffix("; nothing to do."),
                )
            )
        elif _NUMPY_BUILT in line and self._numpy_folder is not None:
            events.append(self._dataset(now, "built", self._numpy_folder))
        return [*events, *super().feed(line, now)]

    def _finish(self) -> list[Event]:
        values, self._values = self._values, {}
        if values.get("mfu") == 0:  # a CPU, or a GPU that upstream does not know
            del values["mfu"]
        if not values:  # a marker without metrics: not a logged step
            self._step = None
        return self._release(**values)


_PANEL_METRIC = re.compile(rf"([\w/]+): +({NUMBER})(?= |$)")
_PANEL_NAMES = {
    "rm/loss": "loss",
    "rm/lr": "lr",
    "rm/accuracy": "rewards/accuracy",
    "rm/chosen_rewards": "rewards/chosen",
    "rm/rejected_rewards": "rewards/rejected",
    "rm/reward_margin": "rewards/margin",
    "epoch": "epoch",
    "episode": "episode",
}


class RewardModelingReader(LogReader):
    """reward_modeling.py:378-393 prints one panel per optimizer step: values rounded to two digits,
    no step number.

    Steps are counted by panels. A panel wraps at the terminal's width, so its lines are joined.
    Evaluation panels (category `eval`) are ignored.
    """

    phase_lines: ClassVar[Mapping[str, str]] = {
        **_CACHE_LINES,
        "Model weights saved in ": "save",
        "pushed to https://huggingface.co/": "push",
    }

    _panel: list[str] | None = None
    _steps = 0

    def feed(self, line: str, now: float) -> list[Event]:
        if line.startswith("╭") and " Metrics " in line:
            self._panel = []
            return []
        if self._panel is None:
            return super().feed(line, now)
        if line.startswith("│") and len(self._panel) < 100:
            self._panel.append(line.strip("│ "))
            return []
        text, self._panel = " ".join(self._panel), None
        values = dict(_PANEL_METRIC.findall(text))
        if (
            not line.startswith("╰")
            or "rm/loss" not in values
            or not re.search(r"(^| )train ", text)
        ):
            return []
        self._steps += 1
        named = {
            _PANEL_NAMES[name]: float(value)
            for name, value in values.items()
            if name in _PANEL_NAMES
        }
        return [
            self._event("phase", now, phase="training"),
            self._event("step", now, step=self._steps, **named),
        ]


class TRLReader(LogReader):
    """Derives the phase from progress bar descriptions (TRL's SFTTrainer and DPOTrainer,
    transformers' loading).

    The dicts that transformers prints at each logged step are ignored: the worker sees the same
    numbers unrounded.
    """

    phase_lines: ClassVar[Mapping[str, str]] = {
        "Loading weights": "load",
        "Loading checkpoint shards": "load",
        "Tokenizing train dataset": "tokenize",
        "Packing train dataset": "tokenize",
        "reference log probs": "reference_logprobs",
        "Saving model checkpoint to ": "checkpoint",
    }


READERS: dict[str, type[LogReader]] = {
    "finetune": FinetuneReader,
    "dpo_tune_cache": DPOTuneCacheReader,
    "olmo_core": OlmoCoreReader,
    "reward_modeling": RewardModelingReader,
    "trl": TRLReader,
}


def reader_for(name: str, rank: int) -> LogReader:
    """Return a new reader for the lines of one rank; an unknown name gets one that only knows the
    common lines.
    """
    return READERS.get(name, LogReader)(rank)
