"""A plan's peak memory against the card: for the longest micro batch that its limit allows, and for
the data's own.

Where it does not fit: the change that makes it fit, with the same global batch and the same samples
in every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from launch.config.schema import Device, Family, Kind, Mode, Precision, Quantization
from launch.planning.command import has_expandable_segments
from launch.planning.estimate.cards import CardMemory, card_memory
from launch.planning.estimate.memory import GENERATION, MemoryEstimate, estimate_memory
from launch.planning.estimate.setting import AdapterSetting, Attention, Generation, MemorySetting
from launch.planning.estimate.shape import ModelShape, read_shape
from launch.planning.flags import values_of
from launch.planning.inputs import model_shape
from launch.planning.lengths import Lengths, load_lengths
from launch.planning.model_folder import count_parameters, hub_snapshot
from launch.planning.parallel import divisors
from launch.planning.plan import Plan
from launch.planning.rlvr import uses_vllm

UNCERTAINTY = 0.15  # of a prediction; docs/explanation/memory.md has the measured errors
# standard deviations above the mean: the longest of some 100,000 packed micro batches of a run
TAIL = 5.0


class MemoryFit(StrEnum):
    """Whether a predicted peak fits a card."""

    fits = "fits"
    tight = "tight"  # the card's memory is within the prediction's uncertainty
    wont = "won't fit"
    unknown = "unknown"  # there is no prediction, or no card


@dataclass(frozen=True)
class MemoryForecast:
    """A plan's predicted peak memory against a card."""

    setting: MemorySetting | None = None
    # every sample as long as the limit; None when the memory is unknown
    worst: MemoryEstimate | None = None
    # the data's longest micro batch; None without the data's lengths
    longest: MemoryEstimate | None = None
    longest_tokens: int | None = None  # of that micro batch
    first: MemoryEstimate | None = None  # the least that a first micro batch is expected to take
    first_tokens: int | None = None  # of that micro batch
    card: CardMemory | None = None
    lengths: Lengths | None = None  # of the tokenised data
    why: str = ""  # the reason why the memory is unknown
    liger: bool = True  # whether a remedy may be Liger

    @property
    def expected(self) -> MemoryEstimate | None:
        """The estimate to go by: for the data where its lengths are known, else for the limit."""
        return self.longest or self.worst

    @property
    def fit(self) -> MemoryFit:
        return classify_fit(self.expected, self.card)

    @property
    def cannot_start(self) -> bool:
        """Whether even the first micro batch needs more than the card has."""
        return (
            self.first is not None and self.card is not None and self.first.required > self.card.gib
        )

    @property
    def remedy(self) -> Remedy | None:
        """The change that makes an uncertain setting fit; None when it fits already, or no change
        does.
        """
        if (
            self.setting is None
            or self.card is None
            or self.fit not in (MemoryFit.tight, MemoryFit.wont)
        ):
            return None
        return remedy_for(
            self.setting, self.card.gib / (1 + UNCERTAINTY), liger=self.liger, lengths=self.lengths
        )

    def __repr__(self) -> str:
        return f"<{describe(self)[0]}>"

    def as_json(self) -> dict[str, Any]:
        card = {"gib": round(self.card.gib, 2), "source": self.card.source} if self.card else None
        return {
            "fit": self.fit.value,
            "why_unknown": self.why or None,
            "gpu": card,
            "uncertainty": UNCERTAINTY,
            "worst_tokens": self.setting.tokens if self.setting else None,
            "worst": self.worst,
            "longest_tokens": self.longest_tokens,
            "longest": self.longest,
            "first_tokens": self.first_tokens,
            "first": self.first,
            "cannot_start": self.cannot_start,
            "remedy": dict(self.remedy.overrides) if self.remedy else None,
        }


def classify_fit(estimate: MemoryEstimate | None, card: CardMemory | None) -> MemoryFit:
    """Compare a prediction with a card, by the prediction's uncertainty.

    A run fits if what torch reserves does; it won't if what it allocates does not, as cached blocks
    can be given back.
    """
    if estimate is None or card is None:
        return MemoryFit.unknown
    if estimate.total * (1 + UNCERTAINTY) <= card.gib:
        return MemoryFit.fits
    return MemoryFit.tight if estimate.required * (1 - UNCERTAINTY) <= card.gib else MemoryFit.wont


def forecast_memory(
    plan: Plan,
    environ: Mapping[str, str],
    *,
    card: CardMemory | None,
    lengths: Lengths | None,
    flash: bool,
) -> MemoryForecast:
    """Forecast the memory of a plan. Reads the local model's config.json and the headers of its
    weights.

    `lengths`: of the tokenised data; `flash`: flash-attn is installed for the trainer.
    """
    try:
        setting = planned_setting(plan, environ, flash=flash)
    except UnknownMemoryError as unknown:
        return MemoryForecast(card=card, why=str(unknown))
    worst = estimate_memory(setting)
    first_tokens = average_micro_batch(lengths, setting)
    first = estimate_memory(replace(setting, tokens=first_tokens, generation=None))
    if lengths is None:
        return MemoryForecast(setting, worst, card=card, first=first, first_tokens=first_tokens)
    tokens = longest_micro_batch(lengths, setting)
    longest = estimate_memory(replace(setting, tokens=tokens))
    return MemoryForecast(setting, worst, longest, tokens, first, first_tokens, card, lengths)


def forecast_on_machine(plan: Plan) -> MemoryForecast | None:
    """Return the forecast of a plan for GPUs; None for one on a CPU."""
    if plan.parallel.width.device != Device.cuda:
        return None
    lengths, environ, flash = (
        load_lengths(plan.lengths_file),
        plan.machine.environ,
        plan.machine.has_flash_attention,
    )
    return forecast_memory(
        plan, environ, card=card_memory(plan.config.cluster, environ), lengths=lengths, flash=flash
    )


def average_micro_batch(lengths: Lengths | None, setting: MemorySetting) -> int:
    """Return the tokens of a micro batch of average samples without padding, the least to expect of
    the first one. Without the data's lengths it is a token for each sequence: only what does not
    depend on the data is known then.
    """
    if lengths is None:
        return setting.sequences
    return max(setting.sequences, round(setting.micro_batch * lengths.tokens.mean))


def longest_micro_batch(lengths: Lengths, setting: MemorySetting) -> int:
    """Return the tokens of the longest micro batch of a whole run, with padding.

    Padded, its rows are as long as the longest sample of the data, which is in some micro batch.
    Packed, it is a sum, taken some standard deviations above its mean, but at most the longest
    sample times the micro batch size.
    """
    # OLMo-core's packed rows are always as long as the limit
    if setting.compiled and setting.packing:
        return setting.tokens
    if not setting.packing:
        halves = lengths.longer or lengths.tokens
        return setting.sequences * halves.longest
    tokens, size = lengths.tokens, setting.micro_batch
    likely = math.ceil(size * tokens.mean + TAIL * tokens.deviation * math.sqrt(size))
    return max(tokens.longest, min(likely, size * tokens.longest))


def describe(forecast: MemoryForecast) -> list[str]:
    """Describe the forecast in lines: the peak against the card, its parts, and the effect of the
    data's lengths.
    """
    if forecast.worst is None or forecast.setting is None:
        return [f"unknown: {forecast.why}"]
    setting = forecast.setting
    card = f" of {forecast.card.gib:.1f} GiB ({forecast.card.source})" if forecast.card else ""
    packed = "packed" if setting.packing else "padded"
    limit = setting.tokens // setting.sequences
    at_limit = f"at the limit, {setting.sequences} x {limit} tokens {packed}"
    lines = []
    if forecast.longest:
        lines.append(f"{forecast.longest.total:.1f} GiB{card} per GPU: {forecast.fit}; the data's "
                     "longest micro batch, "
                     f"{forecast.longest_tokens} tokens {packed}")  # fmt: skip
        lines.append(_describe_parts(forecast.longest))
        lines.append(
            f"{forecast.worst.total:.1f} GiB: {classify_fit(forecast.worst, forecast.card)}; "
            f"{at_limit}"
        )
    else:
        fit = f": {forecast.fit}" if forecast.card else ""
        lines.append(f"{forecast.worst.total:.1f} GiB{card} per GPU{fit}; {at_limit}")
        lines.append(_describe_parts(forecast.worst))
    if forecast.remedy:
        lines.append(f"would fit: {forecast.remedy} ({forecast.remedy.gib:.1f} GiB)")
    elif forecast.fit == MemoryFit.wont:
        lines.append("no setting with this global batch fits at this width")
    elif forecast.card is None:
        lines.append(
            "the GPU is unknown: set cluster.gpu_memory=GIB, or cluster.gpu_type to its name, such "
            "as h100"
        )
    return lines


def _describe_parts(estimate: MemoryEstimate) -> str:
    peak = "in generation: " if estimate.moment == GENERATION else ""
    return peak + ", ".join(
        f"{name} {size:.1f}" for name, size in estimate.parts().items() if size >= 0.05
    )


# the values that the estimate supports; others train in another way: adapters, quantised weights or
# moments, sequences split over ranks, DPO's two forward passes in place of one
_SUPPORTED_VALUES: Mapping[str, Any] = {
    **dict.fromkeys(
        ("use_lora", "use_qlora", "use_8bit_optimizer", "dpo_use_paged_optimizer"), False
    ),
    "sequence_parallel_size": 1,
    "concatenated_forward": True,
    "load_balancing_loss": False,
    "additional_model_arguments": {},
    **dict.fromkeys(
        ("use_peft", "use_dora", "load_in_4bit", "load_in_8bit", "activation_offloading"), False
    ),
    "eval_strategy": "no",
}
# supported where recipe.lora sets them
_OF_ADAPTERS = ("use_lora", "use_qlora", "use_peft", "load_in_4bit")
ATTENTION = {
    **dict.fromkeys(("torch", "sdpa"), Attention.sdpa),
    "eager": Attention.eager,
    **dict.fromkeys(("flash_2", "flash_3", "flash_attention_2"), Attention.flash),
}


class UnknownMemoryError(Exception):
    """The memory of a plan cannot be estimated; the text is the reason."""


def planned_shape(plan: Plan, environ: Mapping[str, str]) -> ModelShape | None:
    """Return the shape of a plan's model, from its local config.json or from its YAML; None where
    neither has it.

    An adapter and its merged model have the shape of the adapter's base.
    """
    model = plan.inputs.model
    adapter = model.adapter
    local, reference = (
        (adapter.local_base, adapter.base) if adapter else (model.local, model.reference)
    )
    folder = local or hub_snapshot(reference, environ)
    shape = read_shape(folder) if folder else None
    if folder and shape:
        return replace(shape, parameters=count_parameters(folder) or shape.parameters)
    # another model than the YAML's shape; one that is still to be made has the plan's
    if folder and not model.build:
        return plan.shape
    return model_shape(plan.config, plan.inputs)


def planned_setting(plan: Plan, environ: Mapping[str, str], *, flash: bool) -> MemorySetting:
    """Return the setting of a plan with the longest micro batch that its limit allows. Raises
    UnknownMemoryError.

    `flash`: flash-attn is installed for the trainer, which then uses it by default (upstream
    model_utils.py:77-89).
    """
    if plan.parallel.width.device != Device.cuda:
        raise UnknownMemoryError("the estimate covers GPUs only")
    if not plan.config.trainer.memory_model:
        raise UnknownMemoryError(f"the estimate does not cover trainer={plan.trainer}")
    for name, supported in _SUPPORTED_VALUES.items():
        if plan.lora is not None and name in _OF_ADAPTERS:
            continue
        if name in plan.flags and plan.flags[name].value != supported:
            raise UnknownMemoryError(
                f"the estimate does not cover --{name} {plan.flags[name].value}"
            )
    shape = planned_shape(plan, environ)
    if shape is None:
        raise UnknownMemoryError(f"the shape of {plan.inputs.model.reference} is unknown")

    def flag(name: str, default: Any = None) -> Any:
        return plan.flags[name].value if name in plan.flags else default

    trainer = plan.config.trainer
    is_trl = trainer.family == Family.trl
    limit = flag("max_length" if is_trl else "max_seq_length")
    is_rlvr = trainer.kind == Kind.rlvr
    if is_rlvr:  # of prompt and response
        limit = plan.config.recipe.max_seq_length
    if not isinstance(limit, int):
        raise UnknownMemoryError("the length of a sample has no limit")
    attention = ATTENTION.get(
        flag("attn_implementation"), Attention.flash if flash else Attention.sdpa
    )
    liger = bool(flag("use_liger_kernel", False))
    compiled = plan.parallel.mode == Mode.fsdp
    if compiled and not flag("compile_model", True):
        raise UnknownMemoryError("the estimate covers OLMo-core's trainers with torch.compile only")
    packed = bool(flag("packing", False) or flag("padding_free", False) or trainer.always_packs)
    # a step is one row of each half; see planning/batches.py
    one_row = compiled and packed and trainer.kind == Kind.dpo
    setting = MemorySetting(
        shape=shape,
        kind=trainer.kind,
        mode=plan.parallel.mode,
        ranks=plan.parallel.width.world_size,
        micro_batch=1 if one_row else plan.batch.per_device,
        tokens=1,
        accumulation=1 if one_row else plan.batch.accumulation,
        packing=packed,
        liger=liger,
        fused_loss=liger and trainer.fuses_loss and not is_trl,  # TRL has a head in chunks
        checkpointing=bool(flag("gradient_checkpointing", False))
        or flag("activation_memory_budget", 1) < 1,
        attention=attention,
        precision=plan.parallel.precision
        if is_trl
        # finetune.py:596 and dpo_tune_cache.py:338, whatever the launcher sets
        else Precision.bf16,
        compiled=compiled,
        fused_optimizer=bool(flag("fused_optimizer", True)),
        autocast=is_trl
        and plan.lora is None
        and not plan.parallel.zero_stage
        and "dtype" not in plan.flags,
        chunked_head=is_trl,
        reference=has_reference(plan)
        and plan.lora is None
        and not flag("precompute_ref_log_probs", False),
        generation=_generation(plan, environ) if is_rlvr and not uses_vllm(plan.config) else None,
        vllm_gib=_vllm_gib(plan, environ),
        reference_factor=_reference_factor(plan),
        adapter=_adapter_setting(plan, shape),
        expandable_segments=has_expandable_segments({**environ, **plan.env}),
    )
    return replace(setting, tokens=limit * setting.sequences)


def has_reference(plan: Plan) -> bool:
    """Whether a second model is in memory: TRL's DPO has one, and its GRPO if the KL divergence
    counts.
    """
    is_free = plan.config.trainer.kind == Kind.rlvr and not values_of(plan.flags).get("beta")
    return plan.config.trainer.live_reference and not is_free


def _generation(plan: Plan, environ: Mapping[str, str]) -> Generation:
    """Return what a rank samples at the limit of every length. Raises UnknownMemoryError."""
    recipe, flags, card = plan.config.recipe, values_of(plan.flags), None
    if flags.get("use_transformers_continuous_batching"):
        card = card_memory(plan.config.cluster, environ)
        if card is None or "transformers_continuous_batching_config" in flags:
            raise UnknownMemoryError(
                "continuous batching takes a share of the card: set cluster.gpu_memory=GIB"
            )
    response = recipe.response_length or 0
    rows = plan.batch.per_device * plan.batch.accumulation
    return Generation(rows, recipe.max_seq_length - response, response, card.gib if card else None)


def _vllm_gib(plan: Plan, environ: Mapping[str, str]) -> float:
    """Return what vLLM takes of a training card, 0.3 by default (trl/trainer/grpo_config.py).
    Raises UnknownMemoryError.
    """
    flags = values_of(plan.flags)
    if not flags.get("use_vllm") or flags.get("vllm_mode", "colocate") != "colocate":
        return 0.0
    card = card_memory(plan.config.cluster, environ)
    if card is None:
        raise UnknownMemoryError("vLLM takes a share of the card: set cluster.gpu_memory=GIB")
    return card.gib * float(flags.get("vllm_gpu_memory_utilization", 0.3))


def _reference_factor(plan: Plan) -> float:
    """Return the samples of a forward pass of TRL's precomputation over those of training
    (dpo_trainer.py:1017).
    """
    values = values_of(plan.flags)
    if not plan.config.trainer.live_reference or not values.get("precompute_ref_log_probs"):
        return 0.0
    samples = values.get("precompute_ref_batch_size")
    return samples / plan.batch.per_device if isinstance(samples, int) and samples > 0 else 1.0


def _adapter_setting(plan: Plan, shape: ModelShape) -> AdapterSetting | None:
    if plan.lora is None:
        return None
    quantized = plan.lora.quantize == Quantization.nf4
    is_trl = plan.config.trainer.family == Family.trl
    fp32 = not (is_trl and quantized) and plan.parallel.zero_stage != 3
    return AdapterSetting(
        parameters=plan.lora.count_parameters(shape),
        rank=plan.lora.rank,
        layers=plan.lora.count_layers(shape),
        fp32=fp32,
        casts=fp32
        and bool(
            plan.lora.dropout
            or plan.parallel.zero_stage
            or plan.parallel.precision != Precision.bf16
        ),
        quantized=quantized,
        other_bytes=4 if quantized and not is_trl else 2,
    )


NEXT_MODE = {
    Mode.ddp: Mode.zero2,
    Mode.zero1: Mode.zero2,
    Mode.zero2: Mode.zero3,
    Mode.zero3: Mode.zero3_offload,
}


@dataclass(frozen=True)
class Remedy:
    """A change that makes a setting fit."""

    overrides: Mapping[str, str]  # key -> value
    setting: MemorySetting  # the setting with them
    gib: float  # its predicted peak

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.overrides.items())


def remedy_for(
    setting: MemorySetting, gib: float, *, liger: bool = True, lengths: Lengths | None = None
) -> Remedy | None:
    """Return the first change with which `setting` is predicted to take at most `gib`; None when
    there is none.

    With the data's `lengths` the longest micro batch that they allow is what has to fit, else
    samples at the limit. The change that costs the least time comes first: Liger where it may be
    used, then fewer samples per device, then gradient checkpointing with as many samples as
    possible, then a mode that shards more.
    """
    for candidate in _candidates(setting, liger=liger):
        longest = candidate.tokens if lengths is None else longest_micro_batch(lengths, candidate)
        changed = replace(candidate, tokens=min(candidate.tokens, longest))
        peak = estimate_memory(changed).total
        if peak <= gib and _overrides(setting, changed):
            return Remedy(_overrides(setting, changed), changed, peak)
    return None


def _candidates(setting: MemorySetting, *, liger: bool) -> Iterator[MemorySetting]:
    mode: Mode | None = setting.mode
    while mode is not None:
        for checkpointing in sorted({setting.checkpointing, True}):
            with_liger = setting.liger or (liger and setting.kind != Kind.rlvr)
            fused = setting.fused_loss or (with_liger and setting.kind == Kind.sft)
            changed = replace(
                setting, mode=mode, checkpointing=checkpointing, liger=with_liger, fused_loss=fused
            )
            sizes = divisors(setting.micro_batch * setting.accumulation)
            yield from (
                with_samples(changed, size)
                for size in reversed(sizes)
                if size <= setting.micro_batch
            )
        mode = NEXT_MODE.get(mode) if setting.ranks > 1 else None


def with_samples(setting: MemorySetting, size: int) -> MemorySetting:
    """Return the setting with `size` samples of the same length per forward pass, and the same
    samples per step.
    """
    accumulation = setting.micro_batch * setting.accumulation // size
    length = setting.tokens // setting.sequences
    fewer = replace(setting, micro_batch=size, accumulation=accumulation)
    return replace(fewer, tokens=length * fewer.sequences)


def _overrides(before: MemorySetting, after: MemorySetting) -> dict[str, str]:
    overrides = {
        "recipe.liger": (before.liger, after.liger, "true"),
        "recipe.per_device_batch_size": (
            before.micro_batch,
            after.micro_batch,
            str(after.micro_batch),
        ),
        "recipe.gradient_checkpointing": (before.checkpointing, after.checkpointing, "true"),
        "parallel": (before.mode, after.mode, after.mode.value),
    }
    return {key: value for key, (old, new, value) in overrides.items() if old != new}
