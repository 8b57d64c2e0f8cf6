"""Decides what to change, and in which order, when a run is or will be out of memory.

The change that costs the least time comes first: fewer samples per device, then gradient
checkpointing, then a parallel mode that shards more, then more GPUs. All of these keep the samples
of every step. Where TRL trains all weights without DeepSpeed, an 8-bit optimizer follows, then a paged
one, and then bf16 weights, which round small updates away. Shorter samples change the training, so
they come last. Liger's kernels cost no time: a plan tries them first, while a run that has failed
gets them only if nothing else fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launch.config.kinds import Kind
from launch.config.schema import Device, Mode
from launch.planning.batch_split import Batch, divisors
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.memory_estimate import largest_fitting
from launch.planning.estimate.optimizers import ADAMW, SMALLER, OptimizerState
from launch.planning.estimate.setting import MemorySetting, longest_micro_batch
from launch.planning.lengths import Lengths, load_lengths
from launch.planning.plan import Plan
from launch.worker.finding import Fix

# The parallel mode that shards the next part of the training state.
_NEXT_MODE = {
    Mode.ddp: Mode.zero2,
    Mode.zero1: Mode.zero2,
    Mode.zero2: Mode.zero3,
    Mode.zero3: Mode.zero3_offload,
}

_SHARD_WEIGHTS = (Mode.zero3, Mode.zero3_offload)


@dataclass(frozen=True)
class Remedy:
    """A change that makes a setting fit."""

    overrides: Mapping[str, str]  # key -> value
    setting: MemorySetting  # the setting with these overrides
    gib: float  # the predicted peak of that setting

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.overrides.items())


def find_remedy(
    setting: MemorySetting, gib: float, *, liger: bool = True, lengths: Lengths | None = None
) -> Remedy | None:
    """Return the first change with which `setting` is predicted to take at most `gib`; None when
    there is none.

    With the data's `lengths`, the longest micro batch that they allow must fit; without them, a
    micro batch of samples at the limit. `liger`: whether the change may be Liger's kernels.
    """
    for candidate in _candidates(setting, liger=liger):
        changed = candidate
        if lengths is not None:
            longest = longest_micro_batch(lengths, candidate)
            changed = replace(candidate, tokens=min(candidate.tokens, longest))
        overrides = _overrides(setting, changed)
        peak = estimate_memory(changed).total
        if peak <= gib and overrides:
            return Remedy(overrides, changed, peak)
    return None


def _candidates(setting: MemorySetting, *, liger: bool) -> Iterator[MemorySetting]:
    """Yield the changed settings in the order that the module's docstring gives.

    Each change other than that of the batch size is tried with as many samples as possible first.
    """
    modes = _modes(setting)
    yield from _candidates_of_modes(setting, modes, liger=liger)
    for autocast in sorted({setting.autocast, False}, reverse=True):
        for optimizer in _smaller_optimizers(setting):
            smaller = replace(setting, optimizer=optimizer, autocast=autocast)
            if smaller == setting:
                continue
            yield from _candidates_of_modes(smaller, modes[:1], liger=liger)


def _modes(setting: MemorySetting) -> list[Mode]:
    """Return the parallel mode of the setting, and those that may need less memory, in order.

    One rank has nobody to share with: DeepSpeed's copies in fp32 cost more there than it saves.
    """
    modes = [setting.mode]
    if setting.ranks == 1 and setting.mode in _NEXT_MODE:
        modes += [Mode.single, Mode.zero3_offload]
    while setting.ranks > 1 and modes[-1] in _NEXT_MODE:
        modes.append(_NEXT_MODE[modes[-1]])
    if setting.can_shard_weights:
        return modes
    whole = [mode for mode in modes if mode == setting.mode or mode not in _SHARD_WEIGHTS]
    return [*whole, Mode.ddp] if setting.ranks > 1 and Mode.ddp not in whole else whole


def _smaller_optimizers(setting: MemorySetting) -> list[OptimizerState]:
    """Return the optimizers that keep less than that of the setting, or its own where none does."""
    smaller = list(SMALLER.values()) if setting.changes_optimizer else []
    if setting.optimizer in smaller:
        return smaller[smaller.index(setting.optimizer) :]
    if smaller and setting.optimizer == ADAMW:
        return smaller
    return [setting.optimizer]


def _candidates_of_modes(
    setting: MemorySetting, modes: Sequence[Mode], *, liger: bool
) -> Iterator[MemorySetting]:
    """Yield the settings with fewer samples, gradient checkpointing and each of the modes."""
    with_liger = setting.liger or (liger and setting.kind != Kind.rlvr)
    with_fused_loss = setting.fused_loss or (with_liger and setting.kind == Kind.sft)
    least = 2 if setting.kind == Kind.kto else 1  # KTO's KL term needs a neighbour for each row
    batch_sizes = _batch_sizes(setting.micro_batch, setting.accumulation, least)
    for mode in modes:
        for checkpointing in sorted({setting.checkpointing, True}):
            changed = replace(
                setting,
                mode=mode,
                checkpointing=checkpointing,
                liger=with_liger,
                fused_loss=with_fused_loss,
            )
            for size in batch_sizes:
                yield _with_samples(changed, size)


def _batch_sizes(per_device: int, accumulation: int, least: int = 1) -> list[int]:
    """Return the per-device batch sizes that keep the samples of a step, from the present one down
    to `least`; the present one alone where it is smaller.
    """
    least = min(least, per_device)
    sizes = [size for size in divisors(per_device * accumulation) if least <= size <= per_device]
    return sizes[::-1]


def _with_samples(setting: MemorySetting, size: int) -> MemorySetting:
    """Return the setting with `size` samples of the same length per forward pass, and the same
    samples per step.
    """
    accumulation = setting.micro_batch * setting.accumulation // size
    length = setting.tokens // setting.sequences
    fewer = replace(setting, micro_batch=size, accumulation=accumulation)
    return replace(fewer, tokens=length * fewer.sequences)


def _overrides(before: MemorySetting, after: MemorySetting) -> dict[str, str]:
    """Return the overrides that change one setting into the other, as key -> value."""
    overrides = {}
    if before.liger != after.liger:
        overrides["recipe.liger"] = "true"
    if before.micro_batch != after.micro_batch:
        overrides["recipe.per_device_batch_size"] = str(after.micro_batch)
    if before.checkpointing != after.checkpointing:
        overrides["recipe.gradient_checkpointing"] = "true"
    if before.mode != after.mode:
        overrides["parallel"] = after.mode.value
    if before.optimizer != after.optimizer:
        (overrides["recipe.optimizer"],) = _names_of(after.optimizer)
    if before.autocast and not after.autocast:
        overrides["flags.dtype"] = "bfloat16"
    return overrides


def _names_of(optimizer: OptimizerState) -> list[str]:
    return [name for name, state in SMALLER.items() if state == optimizer]


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run that can lower its memory. A setting is None if it is unknown, as in a
    run that was not planned here.
    """

    batch: Batch | None = None
    mode: Mode | None = None
    device: Device | None = None
    gradient_checkpointing: bool = False
    max_seq_length: int | None = None
    memory: MemorySetting | None = None  # the setting with all samples at the maximum length
    lengths: Path | None = None  # file with the lengths of the tokenised samples, by the trainer
    # Whether the run's command line still plans with these overrides added. Only then are they
    # advised.
    plans: Callable[[str], bool] = bool


def advise_failed_run(settings: RunSettings, capacity_gib: float | None) -> str:
    """Return the sentence that advises what to change in a run that ran out of memory.

    `capacity_gib`: memory of the GPU; None if it is unknown. A change that is predicted to fit is
    preferred to a smaller batch whose memory is unknown.
    """
    batch = settings.batch
    if batch is None:
        return "set a smaller per-device batch size, and more gradient accumulation instead"
    predicted = None
    if capacity_gib is not None and settings.memory is not None:
        predicted = _advise_predicted(settings, settings.memory, capacity_gib)
    advice = predicted or _advise_smaller_batch(settings, batch)
    if advice is not None:
        return advice
    choice = ", or ".join(_other_changes(settings, batch))
    return (
        f"the per-device batch size can't be smaller; set {choice}; the global batch stays the same"
    )


def _advise_predicted(
    settings: RunSettings, memory: MemorySetting, capacity_gib: float
) -> str | None:
    """Return the advice to set the first change that is predicted to fit the GPU."""
    limit = largest_fitting(capacity_gib)
    lengths = load_lengths(settings.lengths)
    remedy = find_remedy(memory, limit, liger=False, lengths=lengths)
    if remedy is None:
        remedy = find_remedy(memory, limit, liger=True, lengths=lengths)
    if remedy is None or remedy.gib >= estimate_memory(memory).total:
        return None
    if not settings.plans(str(remedy)):
        return None
    rows = "the data's longest micro batch" if lengths else "all samples at the maximum length"
    return (
        f"set {remedy}: the same global batch, predicted to take {remedy.gib:.0f} of "
        f"{capacity_gib:.0f} GiB with {rows}"
    )


def _advise_smaller_batch(settings: RunSettings, batch: Batch) -> str | None:
    """Return the advice to set the next smaller batch of a device; None if that does not plan."""
    smaller_sizes = _batch_sizes(batch.per_device, batch.accumulation)[1:]
    if not smaller_sizes:
        return None
    size = smaller_sizes[0]
    override = f"recipe.per_device_batch_size={size}"
    if not settings.plans(override):
        return None
    accumulation = batch.global_ // (batch.data_ranks * size)
    return (
        f"set {override}: the same global batch of {batch.global_}, with {accumulation} "
        f"accumulation steps instead of {batch.accumulation}"
    )


def _other_changes(settings: RunSettings, batch: Batch) -> list[str]:
    """Return the changes that take less memory with the same batch on each device."""
    overrides = []
    if not settings.gradient_checkpointing:
        overrides.append("recipe.gradient_checkpointing=true")
    if settings.mode and batch.width > 1:
        next_mode = _NEXT_MODE.get(settings.mode)
        if next_mode:
            overrides.append(f"parallel={next_mode}")
    can_double = batch.global_ % (batch.width * 2) == 0
    if settings.device == Device.cuda and can_double:
        overrides.append(f"gpus={batch.width * 2}")
    changes = [override for override in overrides if settings.plans(override)]
    if settings.device == Device.cuda and not can_double:
        changes.append("more GPUs")
    if settings.max_seq_length:
        shorter = f"recipe.max_seq_length={settings.max_seq_length // 2}"
        changes.append(f"{shorter} (shorter samples change the training)")
    return changes


def advise_without_remedy(plan: Plan) -> Fix:
    """Return the advice for a plan whose model does not fit and for which no remedy was found.

    Its weights, gradients and optimizer states alone may need more memory than there is, and a
    smaller batch does not change that.
    """
    if plan.parallel.width.device == Device.cpu:
        return Fix("use a smaller model")
    if plan.parallel.zero_stage and plan.parallel.width.world_size == 1:
        return Fix.of("use more GPUs, or {0} (bf16 master weights)", "parallel=single")
    mode = plan.parallel.mode
    if mode in (Mode.ddp, Mode.zero1, Mode.zero2):
        return Fix.of("use {0}, or train a smaller model", "parallel=zero3")
    if mode == Mode.single:
        return Fix.of("use gpus=N with zero3, or train a smaller model")
    if mode == Mode.zero3:
        sentence = "use more GPUs, or {0}, or train a smaller model"
        return Fix.of(sentence, "parallel=zero3_offload")
    return Fix.of("use more GPUs, or train a smaller model")
