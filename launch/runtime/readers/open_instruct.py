"""finetune.py and dpo_tune_cache.py of open-instruct."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from launch.runtime.events import Event
from launch.runtime.readers.base import NUMBER, Reader, StepReader

_STEP = re.compile(
    rf"Step: (?P<step>\d+), LR: (?P<lr>{NUMBER}), Loss: (?P<loss>{NUMBER})"
    rf"(?:,? Aux Loss: (?P<aux_loss>{NUMBER}))?(?:, TPS: (?P<tps>{NUMBER}))?"
)
_PAIR = re.compile(rf"'([\w/]+)': ({NUMBER})")
_SAVE_LINES = {
    "Saving current state to ": "checkpoint",  # accelerate/accelerator.py:3644
    "Model weights saved in ": "save",  # transformers, save_pretrained
    "pushed to https://huggingface.co/": "push",  # model_utils.py:623
}
_CACHE_LINES = {
    "Cache not found": "tokenize",  # dataset_transformation.py:2109, :2217
    "Found cached dataset at ": "load",  # :2203, :2288
}


class FinetuneReader(StepReader):
    """finetune.py:731-952: `Step: .., LR: .., Loss: .., TPS: ..` and, with --verbose, `metrics_to_log={...}` after it.

    Of those metrics the sums of tokens (since the start, over all ranks) and this rank's peak memory are taken.
    """

    phase_lines: ClassVar[Mapping[str, str]] = {
        **_CACHE_LINES,
        "***** Running training *****": "training",
        **_SAVE_LINES,
    }

    def feed(self, line: str, now: float) -> list[Event]:
        if "Step: " in line and (match := _STEP.search(line)):
            values = {name: float(match[name]) for name in ("loss", "lr", "aux_loss") if match[name]}
            return [self._event("phase", now, phase="training"), *self._hold(now, step=int(match["step"]), **values)]
        if "metrics_to_log={" in line:
            return self._release(**_metrics(line))
        return super().feed(line, now)


def _metrics(line: str) -> dict[str, Any]:
    values = dict(_PAIR.findall(line.partition("metrics_to_log=")[2]))
    sums = ("total_tokens", "total_tokens_including_padding")
    found: dict[str, Any] = {name: int(float(values[name])) for name in sums if name in values}
    memory = float(values.get("allocated_mem_GiB", 0))
    if memory > 0:  # 0 on a CPU
        found["memory_gib"] = memory
    return found


class DPOTuneCacheReader(Reader):
    """dpo_tune_cache.py:347-538, the phases; its steps come from the worker, which sees the rewards too.

    `***** Running training *****` (:482) comes before the reference log-probs, so it is no phase line here.
    """

    phase_lines: ClassVar[Mapping[str, str]] = {
        **_CACHE_LINES,
        "=============before cache logprobs": "reference_logprobs",
        "=============after cache logprobs": "training",
        **_SAVE_LINES,
    }

    def feed(self, line: str, now: float) -> list[Event]:
        events = super().feed(line, now)
        if "Loading reference logprobs cache from " in line:  # dpo_utils.py:437
            events.append(self._event("evidence", now, what="reference_logprobs_cache", value="hit"))
        elif "Saving reference logprobs cache to " in line:  # :515
            events.append(self._event("evidence", now, what="reference_logprobs_cache", value="built"))
        return events
