"""Gates over memory, speed and padding."""

from __future__ import annotations

from launch.config.schema import Device
from launch.trials.measurement import compute_speed, padding_share, second_half_ratio
from launch.trials.rollout.gates.gate import GateCase, GateResult, failed, gate, passed, warned

OUT_OF_MEMORY = ("out_of_memory", "host_memory")


@gate("memory_room", "torch.cuda.max_memory_allocated of rank 0; the allocator reserves somewhat more", early=True)
def memory_room(case: GateCase) -> GateResult | None:
    """A run that barely fits fails at the longest sample, hours later."""
    now = case.now
    if now.outcome.cause_id in OUT_OF_MEMORY:
        cure = f"; {now.outcome.cure}" if now.outcome.cure else ""
        return failed(f"out of memory after {now.outcome.steps} steps{cure}", steps=now.outcome.steps)
    if now.width.device == Device.cpu:
        return passed("no GPU: host memory is not judged") if now.finished else None
    if not now.steps:
        return None
    peaks = now.values("memory_reserved_gib") or now.values("memory_gib")
    if not peaks:
        return warned("the trainer logs no memory")
    peak = max(peaks)
    if now.card_gib is None:
        return warned(f"{peak:.1f} GiB at the peak; the card's memory is unknown", peak_gib=peak)
    room = 1 - peak / now.card_gib
    numbers = {"peak_gib": peak, "card_gib": now.card_gib, "room": room}
    message = f"{peak:.1f} of {now.card_gib:.1f} GiB at the peak, {room:.0%} left"
    return passed(message, **numbers) if room >= case.config.memory_room.room else warned(message, **numbers)


@gate("throughput_steady", "tokens without padding over all ranks, by the trainer's own clock")
def throughput_steady(case: GateCase) -> GateResult:
    """Speed that drops within the first steps (a slow data loader, a hot card) makes every projection wrong."""
    config = case.config.throughput_steady
    speed = compute_speed(case.now, config.skip)
    if speed is None:
        return warned("the trainer logs neither tokens nor seconds")
    if speed.per_second <= 0:
        return failed(f"{speed.per_second:g} {speed.unit}/s", per_second=speed.per_second)
    numbers = {"per_second": speed.per_second, "unit": speed.unit, "step_seconds": speed.step_seconds}
    message = f"{speed.per_second:,.0f} {speed.unit}/s, {speed.step_seconds:.3g} s/step"
    ratio = second_half_ratio(case.now, config.skip) if speed.steps >= config.steps else None
    if ratio is None:
        return passed(f"{message}; {speed.steps} steps are too few to judge steadiness", **numbers)
    numbers["second_half"] = ratio
    if ratio < config.collapsed:
        return failed(f"{message}; the second half ran at {ratio:.0%} of the first half's speed", **numbers)
    if ratio < config.slower:
        return warned(f"{message}; the second half ran at {ratio:.0%} of the first half's speed", **numbers)
    return passed(message, **numbers)


@gate("padding", "all tokens of the batches against the tokens without padding")
def padding(case: GateCase) -> GateResult | None:
    """Padding costs as much as any other token and trains nothing."""
    share = padding_share(case.now)
    if share is None:
        return warned("the trainer does not count padding")
    if share > case.config.padding.most:
        return failed(f"{share:.0%} of all tokens are padding: the data may be empty or truncated", share=share)
    if share > case.config.padding.much:
        return warned(f"{share:.0%} of all tokens are padding; recipe.packing=flatten needs none", share=share)
    return passed(f"{share:.0%} of all tokens", share=share)
