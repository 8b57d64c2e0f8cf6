"""Whether a model fits the GPUs: its training state must, and its predicted peak should."""

from __future__ import annotations

from launch.check.machine.disk import find_model_size
from launch.check.machine.rule import Host, rule
from launch.config.recipe_keys import Precision
from launch.config.schema import Device, Mode
from launch.errors import actions_of
from launch.host.nvidia import Gpus
from launch.planning.estimate.cards import CardMemory, smallest_card
from launch.planning.estimate.forecast import MemoryFit, describe_forecast, forecast_memory
from launch.planning.estimate.model_state import bytes_per_parameter
from launch.planning.estimate.out_of_memory import advise_without_remedy
from launch.planning.estimate.planned_setting import (
    UnknownMemoryError,
    has_reference,
    keeps_fp32_weights,
    planned_optimizer,
)
from launch.planning.lengths import load_lengths
from launch.planning.plan import Plan
from launch.rules.code import failed, passed, skipped, warned
from launch.table import format_bytes, format_count
from launch.worker.finding import Finding, Fix

_GIB = 1 << 30
_MIB = 1 << 20


def state_bytes(plan: Plan, parameters: float) -> tuple[float, float]:
    """Return the bytes that `parameters` take in training, on each rank's device and on the host.

    The host's are those of all ranks. Activations, buckets and fragmentation are not included.
    Raises UnknownMemoryError for an optimizer whose states are unknown.

    TRL's scripts load fp32 weights by default (trl/trainer/model_config.py:89), which DeepSpeed
    turns into bf16. TRL also loads a reference model, while open-instruct computes the reference
    log-probs with the model itself.
    """
    ranks = plan.parallel.width.world_size
    precision = plan.parallel.precision
    if keeps_fp32_weights(plan):
        precision = Precision.fp32
    state = bytes_per_parameter(plan.parallel.mode, ranks, precision)
    optimizer = planned_optimizer(plan)
    host = state.host * parameters
    kept = state.optimizer * parameters
    if plan.parallel.mode in (Mode.single, Mode.ddp):
        embedding = plan.shape.embedding if plan.shape is not None else 0.0
        element = 2 if precision == Precision.bf16 else 4
        kept = optimizer.device_bytes(parameters, embedding, element)
        host += ranks * optimizer.host_bytes(parameters, embedding, element)
    reference = 0.0
    if has_reference(plan):
        reference = 2.0 if precision == Precision.bf16 else 4.0
        if plan.parallel.zero_stage == 3:
            reference /= ranks
    return (state.weights + state.gradients + reference) * parameters + kept, host


@rule("model_too_big", "memory")
def model_fits(plan: Plan, host: Host) -> Finding:
    """A model that is too large is loaded onto every GPU for minutes before it fails."""
    on_gpus = plan.parallel.width.device == Device.cuda
    if plan.lora is not None and on_gpus and not plan.only_tokenizes:
        facts = f"an adapter of rank {plan.lora.rank} is trained"
        return _predict_peak(plan, host, facts, _smallest_card(plan, host))
    if plan.trains_adapter:
        return skipped("an adapter is trained: no estimate")
    if plan.only_tokenizes:
        return skipped("tokenising loads no model")
    return _full_model_fits(plan, host)


def _full_model_fits(plan: Plan, host: Host) -> Finding:
    model = find_model_size(plan, host.environ)
    if model is None:
        return skipped(f"the size of {plan.inputs.model.reference} is unknown")
    import psutil  # needs a POSIX system's modules; a plan needs none of them

    try:
        device_bytes, host_bytes = state_bytes(plan, model.parameters)
    except UnknownMemoryError as unknown:
        return skipped(str(unknown))
    host_memory = float(psutil.virtual_memory().total)
    size = f"{format_count(model.parameters)} parameters, from {model.source}"
    state = "weights, gradients and optimizer take"
    if plan.parallel.width.device == Device.cpu:
        needed = device_bytes * plan.parallel.width.local + host_bytes
        facts = f"{state} {format_bytes(needed)} of memory for all ranks ({size})"
        fits = needed <= host_memory
        available = format_bytes(host_memory)
        message = f"{facts}, which has {available}"
        if fits:
            return passed(f"{facts} of {available}")
        return failed(message, advise_without_remedy(plan))
    card = _smallest_card(plan, host)
    if card is not None and host_bytes > host_memory:
        offloaded = f"the state that is offloaded or paged takes {format_bytes(host_bytes)}"
        return failed(
            f"{offloaded} of the host's memory ({size}), which has {format_bytes(host_memory)}",
            "use more GPUs with parallel=zero3, or a smaller model",
        )
    facts = f"{state} {format_bytes(device_bytes)} on each GPU ({size})"
    problem = _gpu_state_problem(plan, facts, device_bytes, card)
    return problem or _predict_peak(plan, host, facts, card)


def _gpu_state_problem(
    plan: Plan, facts: str, needed: float, card: CardMemory | None
) -> Finding | None:
    """Check that the training state of a rank fits the GPU."""
    if card is None or needed <= card.gib * _GIB:
        return None
    message = f"{facts}, which has {format_bytes(card.gib * _GIB)}"
    return failed(message, advise_without_remedy(plan))


def _smallest_card(plan: Plan, host: Host) -> CardMemory | None:
    return smallest_card((host.gpus or Gpus()).seen[: plan.parallel.width.local])


def _predict_peak(plan: Plan, host: Host, facts: str, card: CardMemory | None) -> Finding:
    """Compare the predicted memory of the first and of the longest micro batch with the GPUs.

    The longest is that of the data, or, if its lengths are unknown, that which the limit allows.
    The first stops a run. The longest only warns: it may come late in the run, and data of unknown
    lengths may be shorter.
    """
    lengths = load_lengths(plan.lengths_file)
    flash = plan.machine.has_flash_attention
    forecast = forecast_memory(plan, host.environ, card=card, lengths=lengths, flash=flash)
    text = f"{facts}; {forecast.why}"
    if forecast.worst:
        text = f"{facts}; predicted: {describe_forecast(forecast)[0]}"
    if card is None:
        return skipped(f"{text}; no GPU here reports its memory")
    cure = advise_without_remedy(plan)
    if forecast.remedy:
        cure = Fix.of("set {0}", str(forecast.remedy))
    if forecast.cannot_start and forecast.first is not None:
        first = forecast.first
        message = (
            f"{facts}; the first step takes at least {first.required:.0f} GiB "
            f"({forecast.first_tokens} tokens, moment: {first.moment}), "
            f"and each GPU has {card.gib:.1f} GiB"
        )
        sentence = f"{cure}; {{0}} runs it anyway"
        return failed(message, Fix.of(sentence, "allow=[model_too_big]", *actions_of(cure)))
    if forecast.fit == MemoryFit.wont:
        subject = "it" if forecast.longest else "unless the data is shorter, it"
        sentence = f"{subject} will run out of memory: {cure.sentence}"
        return warned(text, Fix.of(sentence, *actions_of(cure)))
    return passed(text if forecast.worst else f"{text}, of {card.gib:.3g} GiB")
