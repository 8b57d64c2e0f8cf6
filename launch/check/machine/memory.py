"""Whether a model fits the cards: its training state must, and its predicted peak should."""

from __future__ import annotations

from launch.check.machine.disk import find_model_size
from launch.check.machine.rule import Host, failed, passed, rule, skipped, warned
from launch.config.schema import Device, Family, Mode, Precision
from launch.errors import ways_of
from launch.host.nvidia import Gpus
from launch.planning.estimate.cards import CardMemory, smallest_card
from launch.planning.estimate.forecast import MemoryFit, describe, forecast_memory, has_reference
from launch.planning.estimate.memory import bytes_per_parameter
from launch.planning.lengths import load_lengths
from launch.planning.plan import Plan
from launch.table import format_bytes, format_count
from launch.worker.finding import Finding, Fix

_GIB = 1 << 30
_MIB = 1 << 20


def state_bytes(plan: Plan, parameters: float) -> tuple[float, float]:
    """Return the bytes that `parameters` take in training, at least: without activations, buckets
    and fragmentation.

    They are those on each rank's device, and those in the memory of the whole machine.

    TRL's scripts load fp32 weights by default (trl/trainer/model_config.py:89), which DeepSpeed
    turns into bf16; and TRL loads the reference model besides, where open-instruct's log-probs come
    from the same one.
    """
    mode, ranks, precision = (
        plan.parallel.mode,
        plan.parallel.width.world_size,
        plan.parallel.precision,
    )
    if (
        plan.config.trainer.family == Family.trl
        and not plan.parallel.zero_stage
        and "dtype" not in plan.flags
    ):
        precision = Precision.fp32
    state = bytes_per_parameter(mode, ranks, precision)
    reference = 0.0
    if has_reference(plan):
        reference = (2 if precision == Precision.bf16 else 4) / (
            ranks if plan.parallel.zero_stage == 3 else 1
        )
    return (state.rank + reference) * parameters, state.host * parameters


@rule("model_too_big", "memory")
def model_fits(plan: Plan, host: Host) -> Finding:
    """A model that is too large is loaded onto every GPU for minutes before it fails."""
    if (
        plan.lora is not None
        and plan.parallel.width.device == Device.cuda
        and not plan.only_tokenizes
    ):
        return _predict_peak(
            plan,
            host,
            f"an adapter of rank {plan.lora.rank} is trained",
            _smallest_card(plan, host),
        )
    return _full_model_fits(plan, host)


def _full_model_fits(plan: Plan, host: Host) -> Finding:
    if plan.trains_adapter or plan.only_tokenizes:
        return skipped(
            "an adapter is trained: no estimate"
            if plan.trains_adapter
            else "tokenising loads no model"
        )
    model = find_model_size(plan, host.environ)
    if model is None:
        return skipped(f"the size of {plan.inputs.model.reference} is unknown")
    of_rank, of_host = state_bytes(plan, model.parameters)
    width, card = plan.parallel.width, _smallest_card(plan, host)
    import psutil  # needs a POSIX system's modules; a plan needs none of them

    host_memory = float(psutil.virtual_memory().total)
    size = f"{format_count(model.parameters)} parameters, from {model.source}"
    if width.device == Device.cpu:
        needed, place, available = (
            of_rank * width.local + of_host,
            "of memory for all ranks",
            host_memory,
        )
    else:
        needed, place, available = of_rank, "on each GPU", card.gib * _GIB if card else 0.0
        if available and of_host > host_memory:
            return failed(
                f"the offloaded state takes {format_bytes(of_host)} of the host's memory ({size}), "
                "which has "
                f"{format_bytes(host_memory)}",
                "use more GPUs with parallel=zero3, or a smaller model",
            )
    facts = f"weights, gradients and optimizer take {format_bytes(needed)} {place} ({size})"
    if available and needed > available:
        return failed(f"{facts}, which has {format_bytes(available)}", _cure(plan))
    if width.device == Device.cpu:
        return passed(f"{facts} of {format_bytes(available)}")
    return _predict_peak(plan, host, facts, card)


def _smallest_card(plan: Plan, host: Host) -> CardMemory | None:
    return smallest_card((host.gpus or Gpus()).seen[: plan.parallel.width.local])


def _predict_peak(plan: Plan, host: Host, facts: str, card: CardMemory | None) -> Finding:
    """Judge the first micro batch, and the peak of the data's longest one, or of the longest that
    the limit allows.

    The first stops a run. The longest only warns: it may come late in the run, and without the
    data's lengths the data may be shorter.
    """
    lengths = load_lengths(plan.lengths_file)
    flash = plan.machine.has_flash_attention
    forecast = forecast_memory(plan, host.environ, card=card, lengths=lengths, flash=flash)
    text = (
        f"{facts}; predicted peak {describe(forecast)[0]}"
        if forecast.worst
        else f"{facts}; {forecast.why}"
    )
    if card is None:
        return skipped(f"{text}; no GPU here reports its memory")
    cure = Fix.of("set {0}", str(forecast.remedy)) if forecast.remedy else _cure(plan)
    if forecast.cannot_start and forecast.first is not None:
        least = forecast.first
        return failed(
            f"{facts}; the first step takes at least {least.required:.0f} GiB "
            f"({forecast.first_tokens} tokens, moment: "
            f"{least.moment}), and each GPU has {card.gib:.1f} GiB",
            Fix.of(f"{cure}; {{0}} runs it anyway", "allow=[model_too_big]", *ways_of(cure)),
        )
    if forecast.fit == MemoryFit.wont:
        unless = "it" if forecast.longest else "unless the data is shorter, it"
        return warned(
            text,
            Fix.of(
                f"{unless} will run out of memory: {cure.sentence}",
                *ways_of(cure),
            ),
        )
    return passed(text if forecast.worst else f"{text}, of {card.gib:.3g} GiB")


def _cure(plan: Plan) -> Fix:
    if plan.parallel.width.device == Device.cpu:
        return Fix("use a smaller model")
    if plan.parallel.zero_stage and plan.parallel.width.world_size == 1:
        return Fix.of("use more GPUs, or {0} (bf16 master weights)", "parallel=single")
    larger = dict.fromkeys((Mode.ddp, Mode.zero1, Mode.zero2), Fix.of("{0}", "parallel=zero3"))
    larger |= {
        Mode.single: Fix.of("gpus=N with zero3"),
        Mode.zero3: Fix.of("more GPUs, or {0}", "parallel=zero3_offload"),
    }
    use = larger.get(plan.parallel.mode, Fix.of("more GPUs"))
    return Fix.of(f"use {use.sentence}, or train a smaller model", *use.ways)
