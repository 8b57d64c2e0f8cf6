"""Whether a model's state can fit the cards at all: a first estimate, from below.

Counted: weights, gradients, AdamW's two moments, and fp32 master weights, which exist under ZeRO and FSDP only.
Not counted: activations, buckets, fragments. So what is too big here is too big, and what fits here may still not.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from launch.config.schema import Device, Mode, Precision
from launch.planning.plan import Plan
from launch.preflight.finding import Finding, Machine, failed, passed, rule, skipped
from launch.preflight.nvidia import Gpus
from launch.preflight.weights import weights_of

_GIB = 1 << 30
_ADAPTERS = ("use_lora", "use_qlora", "use_peft")


@dataclass(frozen=True)
class State:
    """Bytes of a training state: `rank` on each rank's device, `host` in the memory of the whole machine."""

    rank: float
    host: float = 0.0


def training_state(plan: Plan, parameters: float) -> State:
    """The bytes that `parameters` take in training, by the mode that the ranks share them in.

    DeepSpeed keeps bf16 weights and gradients and fp32 master weights and moments: 2 + 2 + 12 bytes, of which stage 1
    shards the 12, stage 2 the gradients too, stage 3 all; offloading puts the 12 into the host's memory. FSDP as
    OLMo-core has it: fp32 weights, gradients and moments, sharded. Without either everything has the weights' type.
    """
    mode, ranks = plan.parallel.mode, plan.parallel.width.world_size
    width = 2 if plan.parallel.precision == Precision.bf16 else 4
    by_mode = {
        Mode.zero1: State(2 * width + 12 / ranks),
        Mode.zero2: State(width + (width + 12) / ranks),
        Mode.zero3: State((2 * width + 12) / ranks),
        Mode.zero3_offload: State(width / ranks, 12 + width),
        Mode.fsdp: State(16 / ranks),
    }
    state = by_mode.get(mode, State(4 * width))
    # TRL loads the reference model besides; open-instruct's reference log-probs come from the same one
    reference = width / (ranks if plan.parallel.zero_stage == 3 else 1) if plan.trainer == "trl_dpo" else 0
    return State((state.rank + reference) * parameters, state.host * parameters)


@rule("model_too_big")
def model_fits(plan: Plan, machine: Machine) -> Finding:
    """A model that can't fit is loaded for minutes on every card before it says so."""
    if any(plan.flags[name].value for name in _ADAPTERS if name in plan.flags):
        return skipped("an adapter is trained: no estimate")
    weights = weights_of(plan, machine.environ)
    if weights is None:
        return skipped(f"the size of {plan.inputs.model.reference} is not known here")
    state = training_state(plan, weights.parameters)
    width = plan.parallel.width
    gpus = (machine.gpus or Gpus()).seen[: width.world_size]
    host = psutil.virtual_memory().total
    size = f"{weights.parameters / 1e9:.3g}e9 parameters by {weights.source}"
    if width.device == Device.cpu:
        needed, place = state.rank * width.local + state.host, "of memory for all ranks"
        available = float(host)
    else:
        needed, place = state.rank, "on each GPU"
        available = min((gpu.total or 0.0 for gpu in gpus), default=0.0) * (1 << 20)
        if available and state.host > host:
            return failed(
                f"first estimate: {_gib(state.host)} of the host's memory for the offloaded state ({size}), and there "
                f"is {_gib(host)}",
                "use more GPUs with parallel=zero3, or a smaller model",
            )
    facts = f"first estimate, without activations: {_gib(needed)} {place} ({size})"
    if not available:
        return skipped(f"{facts}; no GPU here tells its memory")
    if needed > available:
        return failed(f"{facts}, and there is {_gib(available)}", _cure(plan))
    return passed(f"{facts} of {_gib(available)}")


def _cure(plan: Plan) -> str:
    if plan.parallel.width.device == Device.cpu:
        return "use a smaller model"
    larger = {Mode.single: "gpus=N with zero3", Mode.ddp: "parallel=zero3", Mode.zero1: "parallel=zero3"}
    larger |= {Mode.zero2: "parallel=zero3", Mode.zero3: "more GPUs, or parallel=zero3_offload"}
    return f"say {larger.get(plan.parallel.mode, 'more GPUs')}, or train a smaller model"


def _gib(size: float) -> str:
    return f"{size / _GIB:.3g} GiB"
