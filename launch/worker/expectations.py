"""Compares the requested setup with what the trainer actually set up, read from the trainer's own state.

accelerate falls back silently: `--cpu --num_processes 2` runs one process, DeepSpeed on a machine without a GPU becomes
plain DDP or one isolated process per rank. Such a run is stopped here, before it trains.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NoReturn

from . import accelerator
from .channel import EventWriter
from .finding import Evidence

EXIT_STOPPED = 3  # launch.errors.EXIT_STOPPED, which this interpreter may not have

DISTRIBUTED = ("NO", "MULTI_CPU", "MULTI_GPU", "DEEPSPEED")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class ExpectedState:
    """The requested state of accelerate; None means not requested."""

    distributed: str | None = None  # a name of accelerate's DistributedType
    world_size: int | None = None
    zero_stage: int | None = None  # 0 means no ZeRO
    device: str | None = None  # a torch device type


# What is checked before the first optimizer step (launch/worker/evidence) -> the values that can be requested.
EVIDENCE: Mapping[str, str] = {
    "liger": r"[a-z_]+(,[a-z_]+)*",  # the required kernels, as far as Liger has them for the model
    "packing": "none|flatten|bins",
    "global_batch": r"\d+ (samples|pairs)",  # of one optimizer step over all ranks
    "balanced": "true|false",
    "loss_averaging": "tokens|micro_batch_means",
    "attention": "sdpa|eager|flash_2|flash_3|flash_4",
    "clip": r"none|\d+(\.\d+)?(e[+-]?\d+)?",  # the gradient norm to clip at
    "dtype": "bf16|fp32",
    "gradient_checkpointing": "true|false",
    "chat_template": r"[\w.-]+",
    "lora": r"\d+",  # the adapter's rank
    "base_dtype": "bf16|fp32|nf4",  # of the weights that an adapter leaves frozen
    "first_update": "adapter",  # what the first optimizer step does
    "resumed_step": r"\d+",  # optimizer steps done before the first step of this process
}


@dataclass(frozen=True)
class Expectations:
    """Everything that a plan requested."""

    state: ExpectedState = ExpectedState()
    evidence: Mapping[str, str] = field(default_factory=dict)  # by key of EVIDENCE


class UnmetExpectation(SystemExit):
    """Ends the rank with exit code 3 and its message on stderr; a trainer's `except Exception` does not catch it."""

    def __init__(self, message: str) -> None:
        super().__init__(EXIT_STOPPED)
        print(f"launch: {message}", file=sys.stderr, flush=True)


def end_rank(message: str, ids: Sequence[str], events: EventWriter) -> NoReturn:
    """Send the reason why this rank ends, and end it. `ids`: of the findings. Raises UnmetExpectation."""
    events.error(message, type="Unmet", ids=ids)
    raise UnmetExpectation(message)


def parse_expectations(pairs: Sequence[str]) -> Expectations:
    """Parse KEY=VALUE strings. Raises ValueError for an unknown key or an invalid value."""
    state_keys = {item.name for item in fields(ExpectedState)}
    values: dict[str, Any] = {}
    evidence: dict[str, str] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key in EVIDENCE:
            if not re.fullmatch(EVIDENCE[key], value):
                raise ValueError(f"expectation {key}={value}: must match {EVIDENCE[key]}")
            evidence[key] = value
            continue
        if key not in state_keys:
            raise ValueError(f"unknown expectation '{key}'; known are {', '.join(sorted({*state_keys, *EVIDENCE}))}")
        choices = {"distributed": DISTRIBUTED, "device": DEVICES}.get(key)
        if choices is not None and value not in choices:
            raise ValueError(f"expectation {key}={value}: must be one of {', '.join(choices)}")
        if choices is None and not value.isdecimal():
            raise ValueError(f"expectation {key}={value}: must be a whole number")
        values[key] = value if choices is not None else int(value)
    return Expectations(ExpectedState(**values), evidence)


def read_state(built: Any) -> ExpectedState:
    """Read the actual state from the trainer's `Accelerator`."""
    plugin = getattr(built.state, "deepspeed_plugin", None)
    return ExpectedState(
        distributed=built.distributed_type.name,
        world_size=built.num_processes,
        zero_stage=plugin.zero_stage if plugin is not None else 0,
        device=built.device.type,
    )


def describe_mismatch(requested: ExpectedState, actual: ExpectedState) -> str | None:
    """Return a message if `actual` is not what was `requested`, else None."""
    wanted = {key: value for key, value in asdict(requested).items() if value is not None}
    values = asdict(actual)
    if all(wanted[key] == values[key] for key in wanted):
        return None
    message = f"requested {_describe(wanted)}, but the trainer has {_describe(values)}"
    if requested.distributed == "DEEPSPEED" and actual.device == "cpu":
        return f"{message}: without a GPU accelerate needs the patch deepspeed_on_cpu to connect DeepSpeed's ranks"
    if requested.device == "cuda" and actual.device == "cpu":
        return f"{message}: torch sees no GPU on this machine"
    if requested.world_size is not None and requested.world_size != actual.world_size:
        return f"{message}: the processes did not find each other, so each would train alone"
    return f"{message}: this is not the planned run"


def _describe(values: dict[str, Any]) -> str:
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


def check_when_built(requested: ExpectedState, events: EventWriter) -> None:
    """Compare as soon as the trainer has built its Accelerator: send "evidence" events, or end the rank.

    A trainer that builds no Accelerator, or an interpreter without accelerate, is not checked.
    """
    if requested == ExpectedState() or importlib.util.find_spec("accelerate") is None:
        return

    def compare(built: Any) -> None:
        actual = read_state(built)
        message = describe_mismatch(requested, actual)
        if message is not None:
            end_rank(message, ["refuted_state"], events)
        for what, value in asdict(requested).items():
            if value is not None:
                item = Evidence(what, getattr(actual, what), "accelerate's state").compare(str(value))
                events.emit("evidence", **item.fields())
        backend = process_group_backend()
        if backend is not None:
            events.emit("evidence", what="backend", value=backend, how="torch's process group")

    accelerator.when_built(compare)


def process_group_backend() -> str | None:
    """Return the backend of the process group, `cuda:nccl` or `cpu:gloo,...`; None for a single process."""
    import torch

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return str(torch.distributed.get_backend_config())
