"""Checks that the schedule's largest step can change the weights in the type that holds them, and
that the schedule leaves its warm-up.

Adam moves a weight by about the learning rate, whatever its gradient is. Where that is less than
half of the distance between two neighbouring numbers of the weight's type, the sum is rounded back
to the weight, and this happens in every step. bf16 has 2 to 3 decimal digits: next to 0.02 its
numbers are 0.00012 apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..channel import EventWriter
from ..expectations import report_evidence
from ..finding import Finding
from . import FEW_STEPS, PROVEN, REFUTED, Evidence
from .precision import master_dtype, short_dtype
from .tensors import stored
from .trainer_objects import TrainerObjects

MOVABLE = "movable_weights"
_PEAK = "schedule_peak"

# If less than this share of the weights can move, nothing is learned: DPO at 1e-9 in bf16 moves 2
# of 100,000.
_NONE = 1e-4
# Nothing is learned by so few weights either, whatever their share of a tiny model is.
FEW_WEIGHTS = 8
# Below this share there is a warning. In bf16, a model of transformers' usual size of weights
# (0.02) has 1% at DPO's 5e-7, 8% at 5e-6 and 30% at 2e-5.
FEW = 0.1

# A run ends within its warm-up if its largest rate is below this share of the rate that the warm-up
# leads to: a smoke test of 5 steps with one of 1,000 steps has 0.4%.
WARM = 1e-3

_SAMPLES = 1 << 16  # elements of a tensor that are examined, evenly spread
_POINTS = 20_000  # steps of a schedule at which its rate is computed
# The keys with which an optimizer's groups keep what rounding takes away (Kahan summation).
_COMPENSATED = ("kahan_sum", "use_kahan_summation")
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True)
class TensorShare:
    """How many weights of a tensor a step can change."""

    name: str
    elements: int
    share: float  # 0 to 1


def find_factor(objects: TrainerObjects, per_step: int = 1) -> Callable[[int], float] | None:
    """Return the factor that the live schedule puts on the rates of a step, by the optimizer steps
    before it; None for a schedule that depends on more than the step.

    `per_step`: the steps that the schedule makes in one optimizer step.
    """
    schedule = getattr(objects.trainer, "lr_scheduler", None)
    if schedule is None:
        schedules = getattr(objects.accelerator, "_schedulers", None) or [None]
        schedule = schedules[0]
    schedule = getattr(schedule, "scheduler", schedule)
    factors = getattr(schedule, "lr_lambdas", None)
    if not factors:
        return None
    return lambda step: max(float(of_group(step * per_step)) for of_group in factors)


def largest_rates(
    groups: Sequence[Mapping[str, Any]], factor: Callable[[int], float] | None, total: int
) -> list[float]:
    """Return the largest rate of each of an optimizer's groups in a schedule of `total` steps.

    Without a factor it is the rate that the group was created with.
    """
    if factor is None:
        return [float(group["initial_lr"]) for group in groups]
    stride = max(1, total // _POINTS)
    peak = max(factor(step) for step in (*range(0, total, stride), total - 1))
    return [float(group.get("initial_lr") or group["lr"]) * peak for group in groups]


def check_rounding(
    objects: TrainerObjects, factor: Callable[[int], float] | None, total: int
) -> list[Evidence]:
    """Return the evidence "movable_weights" on a schedule of `total` steps, and "schedule_peak" if
    it never leaves its warm-up.

    `total` counts the steps of the whole schedule, of which a trial makes only the first. There is
    no evidence for a run of one or two steps, whose warm-up may begin at a rate of 0, and none for
    an unknown schedule, such as DeepSpeed's own. "movable_weights" is left out for an optimizer
    whose updates are not about as large as its rate, or that keeps what is rounded away.
    """
    groups = getattr(objects.optimizer, "param_groups", ())
    if total <= FEW_STEPS or not groups:
        return []
    if factor is None and not all("initial_lr" in group for group in groups):
        return []
    rates = largest_rates(groups, factor, total)
    found = _find_endless_warmup(groups, rates, total)
    is_adam = all("betas" in group for group in groups)
    if is_adam and not any(group.get(name) for group in groups for name in _COMPENSATED):
        held_as = master_dtype(objects) if objects.engine is not None else None
        shares = _share_of_tensors(objects.model, groups, rates, held_as)
        held_as = held_as or _name_types(objects.model)
        found += _judge_shares(shares, max(rates), held_as)
    return found


def _find_endless_warmup(
    groups: Sequence[Mapping[str, Any]], rates: Sequence[float], total: int
) -> list[Evidence]:
    """Compare the largest rate of a schedule with the rate that its warm-up leads to."""
    due = max(float(group.get("initial_lr") or group["lr"]) for group in groups)
    if max(rates) >= WARM * due:
        return []
    how = f"the rates of all {total} steps of the live schedule"
    note = f"no step leaves the warm-up: the largest rate of {total} steps is far below {due:.3g}"
    evidence = Evidence(_PEAK, f"{max(rates):.3g}", how, note=note)
    return [evidence.judge(f"above {WARM:.1%} of {due:.3g}", False)]


def report_rounding(
    found: Sequence[Evidence], allowed: Collection[str], events: EventWriter
) -> None:
    """Send evidence and warning; end the rank if no weight can move. Raises UnmetExpectation.

    The ranks hold parts of the same tensors: all but the first send only what is refuted.
    """
    sent = [item for item in found if events.rank == 0 or item.verdict == REFUTED]
    report_evidence(sent, allowed, events)
    for warning in filter(None, map(warn_of_rounding, sent)):
        events.warn(str(warning))


def warn_of_rounding(evidence: Evidence) -> Finding | None:
    """Return the warning bf16_rounds_away on evidence that few weights can move."""
    is_proven = evidence.what == MOVABLE and evidence.verdict == PROVEN
    if not is_proven or _read_share(evidence) >= FEW:
        return None
    message = (
        f"rounding takes most updates away: {evidence.value} of the weights can move "
        f"({evidence.note})"
    )
    cure = "keep fp32 weights, as ZeRO and TRL's own default do, or raise recipe.learning_rate"
    return Finding.warning("bf16_rounds_away", message, "recipe.learning_rate", cure)


def _read_share(evidence: Evidence) -> float:
    return float(str(evidence.value).rstrip("%")) / 100


def _judge_shares(shares: Sequence[TensorShare], rate: float, held_as: str) -> list[Evidence]:
    elements = sum(tensor.elements for tensor in shares)
    if not elements:  # a rank may hold no part of any tensor
        return []
    movable = sum(tensor.share * tensor.elements for tensor in shares) / elements
    still = [tensor.name for tensor in shares if tensor.elements and tensor.share < _NONE]
    note = f"the largest step of the schedule is {rate:.3g}, and the weights are {held_as}"
    if still:
        note += f"; none can move in {len(still)} of {len(shares)} tensors, as in {still[0]}"
    how = "the schedule's largest step against the distance of neighbouring numbers"
    evidence = Evidence(MOVABLE, f"{100 * movable:.3g}%", how, note=note)
    least = max(_NONE, FEW_WEIGHTS / elements)
    return [evidence.judge(f"above {100 * least:.2g}%", movable > least)]


def _share_of_tensors(
    model: Any, groups: Sequence[Mapping[str, Any]], rates: Sequence[float], held_as: str | None
) -> list[TensorShare]:
    """Return the share of each trained tensor that a step can change.

    A tensor that is in no group of the optimizer, as under DeepSpeed, counts with the largest rate.
    """
    import torch

    rate_of = {}
    for group, rate in zip(groups, rates, strict=True):
        for parameter in group["params"]:
            rate_of[id(parameter)] = rate
    names = []
    counts = []
    shares = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        rate = rate_of.get(id(parameter), max(rates))
        values = stored(parameter)
        dtype = values.dtype if held_as is None else _dtype_of(held_as)
        names.append(name)
        counts.append(int(values.numel()))
        shares.append(_share_that_moves(values, rate, dtype).cpu())
    found = torch.stack(shares).tolist() if shares else []
    return [TensorShare(*fields) for fields in zip(names, counts, found, strict=True)]


def _share_that_moves(values: Any, rate: float, dtype: Any) -> Any:
    """Return the share of the elements of a tensor that a step of `rate` changes in `dtype`.

    Zeros among other numbers do not count: the embedding of a token that no text has may be 0.
    """
    import torch

    flat = values.reshape(-1)
    flat = flat[:: max(1, flat.numel() // _SAMPLES)].abs().float()
    limits = torch.finfo(dtype)
    _, exponents = torch.frexp(flat)  # the fraction is 0.5 or more
    distances = torch.ldexp(torch.full_like(flat, limits.eps / 2), exponents)
    distances = distances.masked_fill(flat == 0, 0).clamp(min=limits.smallest_normal * limits.eps)
    counted = (flat > 0) | ~(flat > 0).any()
    moves = (rate > 0) & (distances <= 2 * rate) & counted
    return moves.sum() / counted.sum().clamp(min=1)


def _dtype_of(name: str) -> Any:
    import torch

    first = name.partition(",")[0]
    return getattr(torch, _DTYPES.get(first, "float32"))


def _name_types(model: Any) -> str:
    types = {short_dtype(p.dtype) for p in model.parameters() if p.requires_grad}
    return ",".join(sorted(types))
