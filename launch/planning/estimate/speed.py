"""Predicts the time of an optimizer step: compute, communication, the host, and waiting ranks.

The GPU computes while the host issues kernels and the ranks communicate: if two of these take about
as long, they overlap only in part. Under ZeRO 2 and 3 the ranks synchronise in every micro batch, so
that each waits for the longest; without ZeRO, and under ZeRO 1, they synchronise once per step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from launch.config.kinds import KINDS, Kind
from launch.config.schema import Mode
from launch.planning.batch_split import Batch
from launch.planning.batches import SimulatedLoad, simulate_load
from launch.planning.data import count_steps, find_step_limit
from launch.planning.estimate.activations import saved_bytes
from launch.planning.estimate.cards import Card, Rates, planned_card, rates_for_card
from launch.planning.estimate.forecast import MemoryForecast
from launch.planning.estimate.generation import generation_seconds
from launch.planning.estimate.setting import AdapterSetting, Attention, MemorySetting
from launch.planning.estimate.shape import token_flops
from launch.planning.lengths import load_lengths
from launch.planning.plan import Plan

_ZERO3 = (Mode.zero3, Mode.zero3_offload, Mode.fsdp)
_SYNC_EACH_MICRO_BATCH = (*_ZERO3, Mode.zero2)
# Bytes of DoRA's kernels for each output of a layer: forward its result and the adapter's are
# multiplied, scaled, summed and converted; backward has the gradients of both and of the length.
_DORA_FORWARD = 48
_DORA_BACKWARD = 60
# Bytes of the length of W + B @ A: for each element of the identity that A and B are multiplied
# with, and for each weight, whose product is written, converted, scaled and added.
_DORA_IDENTITY = 8
_DORA_NORM = 22
_NF4_WEIGHT = 2.5  # bytes of dequantizing a weight: half a byte is read, two are written
# {mode: how many times the size of the trained weights each rank sends per step}
_SENT_PER_STEP = {Mode.ddp: 2, Mode.zero1: 3, Mode.zero2: 1}


@dataclass(frozen=True)
class StepTime:
    """A predicted step."""

    seconds: float
    # The seconds that arithmetic, host, communication and optimizer would each take by themselves.
    parts: Mapping[str, float]
    load: SimulatedLoad

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all ranks, without padding."""
        return self.load.tokens / self.seconds


def predict_step(
    setting: MemorySetting, lengths: Sequence[int], rates: Rates, *, balanced: bool = False
) -> StepTime:
    """Predict the time of one optimizer step at `setting`, whose own `tokens` are ignored.

    `lengths`: tokens of the data's samples (of both halves of a pair for DPO), or of some of them;
    `balanced`: each global batch is assigned to the ranks by length.
    """
    batch = Batch(
        setting.ranks * setting.micro_batch * setting.accumulation,
        setting.micro_batch,
        setting.accumulation,
        setting.ranks,
    )
    load = simulate_load(
        lengths,
        batch,
        packed=setting.packing,
        balanced=balanced,
        halves=KINDS[setting.kind].sequences,
        waits_each_turn=setting.mode in _SYNC_EACH_MICRO_BATCH,
    )
    parts = {"arithmetic": 0.0, "host": 0.0, "communication": 0.0}
    total = 0.0  # seconds of the micro batches of all simulated steps
    sending = _bytes_sent_per_micro_batch(setting) / rates.link
    host = _host_seconds(setting, rates)
    fixed = _fixed_seconds(setting, rates)
    for rows in load.slowest:
        arithmetic = _arithmetic_seconds(setting, rows, rates)
        parts["arithmetic"] += arithmetic
        parts["host"] += host + fixed
        parts["communication"] += sending
        busy = math.hypot(arithmetic, host)
        total += max(busy, sending) + rates.exposed * min(sending, busy) + fixed
    parts = {name: seconds / load.steps for name, seconds in parts.items()}
    once = _bytes_sent_per_step(setting) / rates.link
    optimizer = _optimizer_seconds(setting, rates)
    generation = 0.0
    if setting.generation is not None:
        generation = generation_seconds(setting, setting.generation, rates.memory)
    parts["communication"] += once
    parts["optimizer"] = optimizer
    parts["generation"] = generation
    seconds = total / load.steps + once + optimizer + generation
    return StepTime(seconds, MappingProxyType(parts), load)


def _arithmetic_seconds(setting: MemorySetting, rows: Sequence[int], rates: Rates) -> float:
    """Return the seconds of the GPU for one micro batch, forward and backward."""
    shape = setting.shape
    tokens = sum(rows)
    recomputed = 1 if setting.checkpointing else 0
    recomputed_flops = recomputed * 2.0 * shape.layers * shape.layer
    matrices = tokens * (_trained_flops(setting) + recomputed_flops)
    is_masked = setting.attention == Attention.eager
    if is_masked or replace(setting, tokens=tokens).masked_layers:
        operations = 4.0 * sum(row * row for row in rows)
        rate = rates.masked
    else:
        # Flash attention computes each document of a packed row by itself.
        is_split = setting.packing and setting.attention == Attention.flash
        documents = setting.micro_batch if is_split else 1
        pairs = sum(documents * shape.attended_square(row / documents) for row in rows)
        operations = 2.0 * pairs  # the other half of the square is masked
        rate = rates.causal
    attention = operations * shape.query_width * shape.layers
    extra = setting.extra_passes  # each a third of a forward and a backward pass
    matrices += extra * tokens * token_flops(shape) / 3
    # Backward takes 2.5 times forward's products of attention, because it recomputes one of them.
    passes_of_attention = 3.5 + recomputed + extra
    plain = replace(setting, tokens=tokens, checkpointing=False)
    passes_of_memory = 3.0 + recomputed + extra
    if not setting.liger:
        passes_of_memory *= rates.unfused
    return (
        matrices / rates.matrix
        + passes_of_attention * attention / rate
        + passes_of_memory * saved_bytes(plain) / rates.memory
        + _cast_seconds(setting, rates)
        + _adapter_seconds(setting, tokens, rates)
    )


def _trained_flops(setting: MemorySetting) -> float:
    """Return the operations of the matrices for one token, forward and backward.

    Frozen matrices have no gradients. TRL's head multiplies once more in backward, because it keeps no
    logits (trl/kernels/chunked_logprob.py, backward).
    """
    adapter = setting.adapter
    operations = token_flops(setting.shape, frozen=adapter is not None)
    if adapter is not None:
        operations += 2.0 * (adapter.whole - adapter.whole_embedding)
    if setting.chunked_head:
        operations += 2.0 * setting.shape.embedding
    return operations


def _cast_seconds(setting: MemorySetting, rates: Rates) -> float:
    """Return the seconds in which autocast converts fp32 weights to bf16, once per forward pass, and
    their gradients to fp32, which are then added to those of the micro batches before.
    """
    if not setting.autocast:
        return 0.0
    forward = 2 if setting.checkpointing else 1
    return (6 * forward + 18) * setting.shape.parameters / rates.streamed


def _adapter_seconds(setting: MemorySetting, tokens: int, rates: Rates) -> float:
    """Return the seconds of the kernels that an adapter adds to one micro batch.

    Their products are small, and take as long as their tensors take to be read and written. The bytes
    are those of PEFT's code (peft/tuners/lora/layer.py, Linear.forward; dora.py, DoraLinearLayer), in
    bf16 unless a tensor is fp32.
    """
    adapter = setting.adapter
    if adapter is None:
        return 0.0
    policy = setting.extra_passes - setting.reference_passes
    forward = (2 if setting.checkpointing else 1) + policy
    sizes = [setting.shape.matrices[name] for name in adapter.names]
    inputs = sum(size for size, _ in sizes)
    outputs = sum(size for _, size in sizes)
    # Forward A reads the input; B's output is written, scaled and added to the layer's. Backward
    # scales its gradient, both matrices read theirs, and that of the input is added to the layer's.
    streamed = float(tokens * (forward * (2 * inputs + 12 * outputs) + 10 * inputs + 8 * outputs))
    if adapter.casts:  # to fp32, and by autocast back to bf16
        streamed += 12 * tokens * inputs * (forward + 1)
    if adapter.quantized:  # backward dequantizes for the gradient of the input
        passes = forward + 1 + setting.reference_passes
        streamed += passes * _NF4_WEIGHT * setting.shape.layer
    seconds = streamed / rates.streamed
    if adapter.dora_outputs:
        seconds += _dora_seconds(adapter, sizes, tokens, forward, rates)
    return setting.shape.layers * seconds


def _dora_seconds(
    adapter: AdapterSetting,
    sizes: Sequence[tuple[int, int]],
    tokens: int,
    forward: int,
    rates: Rates,
) -> float:
    """Return the seconds that DoRA adds to a block, for `forward` forward passes.

    Each computes the length of W + B @ A anew, W dequantized once more, and scales the outputs. With
    dropout the adapter's input is not the layer's, so that W multiplies it as well.
    """
    outputs = sum(size for _, size in sizes)
    weights = sum(rows * columns for rows, columns in sizes)
    squares = sum(size * size for size, _ in sizes)
    scaled = float(tokens * outputs * (_DORA_FORWARD * forward + _DORA_BACKWARD))
    summed = forward * (_DORA_IDENTITY * squares + _DORA_NORM * weights)
    if adapter.quantized:
        scaled += _NF4_WEIGHT * weights * forward
    seconds = scaled / rates.streamed + summed / rates.summed
    if adapter.drops_inputs:
        seconds += 2.0 * weights * tokens * (forward + 1) / rates.matrix
    return seconds


def _host_seconds(setting: MemorySetting, rates: Rates) -> float:
    """Return the seconds of the host for one micro batch.

    Checkpointing issues the forward pass once more; without Liger a layer takes about a quarter
    more kernels. Under ZeRO-3 gathering and releasing weights takes longer than either.
    """
    kernels = 1.0 if setting.liger else 1.25
    if setting.mode in _ZERO3:
        layer = rates.sharded_layer
        if setting.expandable_segments:
            layer *= rates.expandable
    else:
        layer = rates.layer
        if setting.checkpointing:
            layer *= 4 / 3
    seconds = layer * kernels * (1 + setting.extra_passes / 3)
    if setting.adapter is not None:
        passes = 3 + setting.extra_passes - setting.reference_passes
        if setting.checkpointing:
            passes += 1
        seconds += passes / 3 * setting.adapter.layers * rates.adapted
    return setting.shape.layers * seconds


def _fixed_seconds(setting: MemorySetting, rates: Rates) -> float:
    """Return the seconds of one micro batch that overlap with nothing and don't depend on tokens."""
    seconds = 0.0
    if setting.mode in (Mode.zero1, Mode.zero2):
        seconds = setting.shape.layers * rates.reduced_layer
    if setting.padding:
        seconds += rates.varying
        if setting.sequences == 1 and setting.mode in _ZERO3:
            seconds += rates.single_sample
    return seconds


def _bytes_sent_per_micro_batch(setting: MemorySetting) -> float:
    """Return the bytes that each rank sends for every micro batch.

    ZeRO-3 gathers the weights for forward and for backward and scatters the gradients; ZeRO-2 also
    reduces them in every micro batch (deepspeed engine.py checks is_gradient_accumulation_boundary
    at stage 1 only).
    """
    ring = (setting.ranks - 1) / setting.ranks
    trained = _trained_bytes(setting)
    if setting.mode in _ZERO3:
        return ring * (2 * setting.element * setting.shape.parameters + trained)
    if setting.mode == Mode.zero2:
        return 2 * ring * trained
    return 0.0


def _trained_bytes(setting: MemorySetting) -> float:
    """Return the bytes of the trained weights, and of their gradients; an adapter's are fp32, unless
    its base is in 4 bit or divided by ZeRO-3.
    """
    adapter = setting.adapter
    if adapter is None:
        element = 4 if setting.autocast else setting.element
        return float(element * setting.shape.parameters)
    return (4 if adapter.fp32 else setting.element) * adapter.trained


def _bytes_sent_per_step(setting: MemorySetting) -> float:
    """Return the bytes that each rank sends once a step.

    DDP reduces the gradients; ZeRO 1 reduces them and gathers the updated weights; ZeRO 2 gathers
    the updated weights.
    """
    ring = (setting.ranks - 1) / setting.ranks
    size = _trained_bytes(setting)
    times = _SENT_PER_STEP.get(setting.mode, 0)
    return times * ring * size


def _optimizer_seconds(setting: MemorySetting, rates: Rates) -> float:
    """Return the seconds of clipping and of the optimizer's step over the rank's own shard."""
    if setting.mode in (Mode.single, Mode.ddp):
        return rates.step + 10 * _trained_bytes(setting) / rates.memory
    trained = setting.adapter.trained if setting.adapter else setting.shape.parameters
    shard = trained / setting.ranks
    seconds = 36 * shard / rates.memory
    if setting.mode == Mode.zero3_offload:
        seconds = 16 * shard / rates.offload
    return rates.sharded_step + seconds


def planned_steps(plan: Plan) -> int | None:
    """Return the optimizer steps of a run; None where neither max_steps nor the number of rows is
    known.
    """
    limit, _ = find_step_limit(plan)
    if limit is not None:
        return limit
    lengths = load_lengths(plan.lengths_file)
    samples = None if lengths is None else lengths.samples
    return count_steps(plan.config, plan.batch, plan.inputs.mixture, plan.data, samples)


@dataclass(frozen=True)
class TimeForecast:
    """The predicted time of a training; unknown parts are None."""

    seconds: float | None = None  # of all steps
    step: float | None = None  # seconds of a step
    steps: int | None = None
    at_limit: bool = False  # whether every sample is taken to be as long as its limit
    card: Card | None = None  # None: unknown
    # The standard deviation of log(measured / predicted seconds); None where no time is known.
    deviation: float | None = None
    doubts: tuple[str, ...] = ()  # why it is larger than for the settings that were measured
    why: str = ""  # why no time is known, and what to set

    @property
    def factors(self) -> tuple[float, float] | None:
        """How many times as long as predicted a step may well take, at least and at most."""
        if self.deviation is None:
            return None
        return math.exp(-self.deviation), math.exp(self.deviation)


def forecast_time(plan: Plan, memory: MemoryForecast) -> TimeForecast:
    """Forecast the time of a run on GPUs.

    Without the data's lengths every sample is taken to be as long as its limit, as the forecast of
    the memory does. Without a number of steps the time of one is known.
    """
    steps = planned_steps(plan)
    card = planned_card(plan.config.cluster, plan.machine.card)
    unknown = TimeForecast(steps=steps, card=card)
    setting = memory.setting
    if setting is None:
        return replace(unknown, why=f"its memory is unknown, too: {memory.why}")
    if setting.compiled:  # the prediction of time was never compared with OLMo-core
        return replace(unknown, why="no time is predicted for OLMo-core's trainers")
    if card is None:
        return replace(unknown, why=_why_no_speed(plan))
    lengths: Sequence[int]
    if memory.lengths and plan.config.stage.kind != Kind.rlvr:
        lengths = memory.lengths.tokens
    else:  # of RLVR every prompt and response is at its limit
        lengths = (setting.tokens // setting.micro_batch,)
        memory = replace(memory, lengths=None)
    card_rates = rates_for_card(card.name)
    rates = card_rates.rates
    deviations = [rates.bias, rates.spread]
    doubts = []
    if not card_rates.measured:
        doubts.append(
            f"steps were measured on an H200, and are scaled to this {card.name} by the data sheets"
        )
    doubt = doubt_setting(setting)
    if doubt is not None:
        deviations.append(doubt.deviation)
        doubts.append(doubt.reason)
    balanced = plan.config.recipe.balanced
    step = predict_step(setting, lengths, rates, balanced=balanced).seconds
    seconds = None if steps is None else steps * step
    return replace(
        unknown,
        seconds=seconds,
        step=step,
        at_limit=memory.lengths is None,
        deviation=math.hypot(*deviations),
        doubts=tuple(doubts),
    )


@dataclass(frozen=True)
class TimeDoubt:
    """Why the time of a setting is less certain than that of measured ones."""

    deviation: float  # of the logarithm, independent of the others
    reason: str


_ONE_RUN = 0.2  # the deviation of kernels that one run shows
_NO_RUN = 0.5  # that of kernels that no run shows


def doubt_setting(setting: MemorySetting) -> TimeDoubt | None:
    """Return what makes the time of a step less certain than that of measured ones, the largest doubt
    first; None if nothing does. benchmarks/fit_speed.py has all measured settings.
    """
    adapter = setting.adapter
    if adapter is None:
        return None
    dora = adapter.dora_outputs > 0
    several = setting.ranks > 1
    sdpa = setting.attention == Attention.sdpa
    never = {
        "with recipe.lora.target_parameters": bool(adapter.weights),
        "with DoRA over 4-bit weights": dora and adapter.quantized,
        "with DoRA and dropout": dora and adapter.drops_inputs,
        "with DoRA on several GPUs": dora and several,
        "with 4-bit weights on several GPUs": adapter.quantized and several,
    }
    once = {
        "with DoRA": dora,
        "with 4-bit weights": adapter.quantized,
        "of an adapter on several GPUs": several,
        "of an adapter's DPO with SDPA": sdpa and setting.kind == Kind.dpo,
    }
    for kind, is_such in never.items():
        if is_such:
            return TimeDoubt(_NO_RUN, f"no step {kind} was measured")
    for kind, is_such in once.items():
        if is_such:
            return TimeDoubt(_ONE_RUN, f"one run alone has measured steps {kind}")
    return None


def _why_no_speed(plan: Plan) -> str:
    """Return why the speed of the GPU is unknown, and what to set."""
    given = plan.machine.card or plan.config.cluster.gpu_type
    cure = "`launch help gpus` lists those whose speed is known"
    if given is None:
        return f"set cluster.gpu_type, such as cluster.gpu_type=h100; {cure}"
    return f"the speed of {given} is unknown; {cure}"
