"""Reads how far a run has trained, how fast, and its losses, by which runs are compared."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.execution.record.steps import is_step, logged_number

_WARMUP = 2  # the first steps, whose speed does not count


@dataclass(frozen=True)
class Progress:
    """The logged steps of a run.

    Those that logged a loss are kept as arrays, since there may be millions.
    """

    last_step: int = 0
    tokens: float | None = None  # trained, without padding; None if they are not counted
    losses: Sequence[float] = ()  # the losses in the order of their steps; NaN is possible
    at_steps: Sequence[float] = ()  # the step of each loss
    at_tokens: Sequence[float] = ()  # the tokens trained until each loss, where they are counted
    # Tokens per second, or steps per second where tokens are not counted.
    speed: float | None = None
    memory_gib: float | None = None  # highest peak of rank 0
    unreadable: int = 0  # lines of metrics.jsonl that are not a logged step

    @property
    def speed_unit(self) -> str:
        return "tokens/s" if self.tokens else "steps/s"


def read_progress(
    entries: Iterable[Mapping[str, Any] | None], until_step: int | None = None
) -> Progress:
    """Sum up the lines of a metrics.jsonl; steps after `until_step` are left out."""
    losses = array("d")
    at_steps = array("d")
    at_tokens = array("d")
    last_step = 0
    steps = 0
    tokens = 0.0
    has_tokens = True  # whether each step has logged its tokens
    timed_steps = 0  # those after the warm-up, by which the speed is measured
    timed_tokens = 0.0
    seconds = 0.0
    peak_memory: float | None = None
    unreadable = 0
    for entry in entries:
        if entry is None or not is_step(entry):
            unreadable += 1
            continue
        step = entry["step"]
        if until_step is not None and step > until_step:
            continue
        last_step = step
        steps += 1
        step_tokens = logged_number(entry, "tokens")
        has_tokens = has_tokens and step_tokens is not None
        tokens += step_tokens or 0.0
        if steps > _WARMUP:
            timed_steps += 1
            timed_tokens += step_tokens or 0.0
            seconds += logged_number(entry, "seconds") or 0.0
        loss = logged_number(entry, "loss")
        if loss is not None:
            losses.append(loss)
            at_steps.append(step)
            at_tokens.append(tokens)
        memory = logged_number(entry, "memory_gib")
        if memory is not None and math.isfinite(memory):
            peak_memory = memory if peak_memory is None else max(peak_memory, memory)
    has_tokens = has_tokens and steps > 0
    timed_work = timed_tokens if has_tokens else timed_steps
    return Progress(
        last_step=last_step,
        tokens=tokens if has_tokens else None,
        losses=losses,
        at_steps=at_steps,
        at_tokens=at_tokens,
        speed=timed_work / seconds if seconds > 0 else None,
        memory_gib=peak_memory,
        unreadable=unreadable,
    )
