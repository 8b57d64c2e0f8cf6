"""Compares what was asked for with what the trainer really set up, in the trainer's own state.

accelerate falls back in silence: `--cpu --num_processes 2` runs one process, DeepSpeed on a machine without a GPU
becomes plain DDP or one lonely rank each. Here such a run stops before it trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from . import accelerator
from .channel import Events

DISTRIBUTED = ("NO", "MULTI_CPU", "MULTI_GPU", "DEEPSPEED")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Expected:
    """What the plan asked for; None means that nothing was asked."""

    distributed: str | None = None  # a name of accelerate's DistributedType
    world_size: int | None = None
    zero_stage: int | None = None  # 0: no ZeRO
    device: str | None = None  # a torch device type


class Unmet(SystemExit):
    """Ends the rank with one sentence on stderr and exit code 1; no `except Exception` of a trainer swallows it."""


def read(pairs: Sequence[str]) -> Expected:
    """Reads KEY=VALUE texts. Raises ValueError for an unknown key or a value that can't be."""
    known = {field.name for field in fields(Expected)}
    values: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in known:
            raise ValueError(f"unknown expectation '{key}'; there are {', '.join(sorted(known))}")
        choices = {"distributed": DISTRIBUTED, "device": DEVICES}.get(key)
        if choices is not None and value not in choices:
            raise ValueError(f"expectation {key}={value}: must be one of {', '.join(choices)}")
        if choices is None and not value.isdecimal():
            raise ValueError(f"expectation {key}={value}: must be a whole number")
        values[key] = value if choices is not None else int(value)
    return Expected(**values)


def found(built: Any) -> Expected:
    """What the trainer's `Accelerator` really is."""
    plugin = getattr(built.state, "deepspeed_plugin", None)
    return Expected(
        distributed=built.distributed_type.name,
        world_size=built.num_processes,
        zero_stage=plugin.zero_stage if plugin is not None else 0,
        device=built.device.type,
    )


def mismatch(asked: Expected, got: Expected) -> str | None:
    """One sentence for a person when `got` is not what was `asked`, else None."""
    wanted = {key: value for key, value in asdict(asked).items() if value is not None}
    has = asdict(got)
    wrong = [key for key in wanted if wanted[key] != has[key]]
    if not wrong:
        return None
    sentence = f"asked for {_words(wanted)}; the trainer has {_words(has)}"
    if asked.distributed == "DEEPSPEED" and got.device == "cpu":
        return f"{sentence}: without a GPU accelerate needs patch deepspeed_on_cpu to hold DeepSpeed's ranks together"
    if asked.device == "cuda" and got.device == "cpu":
        return f"{sentence}: torch sees no GPU here"
    if asked.world_size is not None and asked.world_size != got.world_size:
        return f"{sentence}: the processes did not find each other, each would train alone"
    return f"{sentence}: this is not the run that was planned"


def _words(values: dict[str, Any]) -> str:
    kind = str(values.get("distributed", ""))
    if values.get("zero_stage"):
        kind = f"ZeRO-{values['zero_stage']}"
    ranks = values.get("world_size")
    parts = [kind or None]
    if ranks is not None:
        parts.append(f"on {ranks} {'rank' if ranks == 1 else 'ranks'}")
    if values.get("device") is not None:
        parts.append(f"on {values['device']}")
    return " ".join(part for part in parts if part)


def watch(asked: Expected, events: Events) -> None:
    """Compares once the trainer has built its Accelerator: equal gives "evidence" events, else the rank ends.

    A trainer that builds no Accelerator, or an interpreter without accelerate, is not checked.
    """
    if asked == Expected() or not accelerator.installed():
        return

    def compare(built: Any) -> None:
        got = found(built)
        sentence = mismatch(asked, got)
        if sentence is not None:
            events.error(sentence, type="Unmet")
            raise Unmet(f"launch: {sentence}")
        for what, value in asdict(asked).items():
            if value is not None:
                events.emit("evidence", what=what, value=getattr(got, what))

    accelerator.when_built(compare)
