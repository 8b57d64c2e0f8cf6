"""The gates of a rollout that judge one width of DPO or KTO alone: its reference and rewards."""

from __future__ import annotations

import math
import statistics

from launch.config.kinds import Kind
from launch.execution.completion import compare_first_loss
from launch.trials.measurement import finite
from launch.trials.rollout.gate import GateCase, failed, gate, passed, warned
from launch.trials.rollout.gates import judge_finite
from launch.worker.finding import Finding

_DPO = (Kind.dpo,)
_PREFERENCES = (Kind.dpo, Kind.kto)  # with rewards of good and of bad answers
_NO_REFERENCE = ("simpo",)  # the losses of DPO that need no reference model


@gate(
    "first_dpo_loss",
    "Rafailov et al. 2023, equation 7: -log sigmoid(0), as the policy starts as the reference; "
    "Ethayarajh et al. 2024, equation 7: 1 - sigmoid(0)",
    kinds=_PREFERENCES,
)
def first_dpo_loss(case: GateCase) -> Finding | None:
    """At the first step the policy is the reference, so DPO's sigmoid loss is ln 2, and KTO's 1/2;
    else the reference is another model, a stale cache, or gets other inputs.
    """
    step, loss = next(iter(case.now.series("loss")), (0, math.nan))
    compared = compare_first_loss(case.now.plan, step, loss, case.config.first_dpo_loss.tolerance)
    if compared is None:
        return None
    numbers = {"loss": loss, "away": compared.distance, "tolerance": compared.tolerance}
    if not compared.distance <= compared.tolerance:
        message = (
            f"the first loss is {loss:.4g}, not {compared.name} ({compared.due:.4g}): the "
            "reference is not this policy"
        )
        return failed(message, **numbers)
    return passed(f"{loss:.4f}, {compared.distance:.1g} from {compared.name}", **numbers)


@gate(
    "reference_cached",
    "dpo_utils.py:437 and :515 log that the cache is read or written",
    kinds=_DPO,
)
def reference_cached(case: GateCase) -> Finding | None:
    """The reference's log-probs are computed once, which takes minutes without a logged loss, and
    are then cached.
    """
    now = case.now
    if now.plan.config.recipe.loss in _NO_REFERENCE:
        return None
    if now.plan.trainer == "trl_dpo":
        return passed("no cache: TRL computes its reference in every step")
    seconds = now.phases.get("reference_logprobs", 0.0)
    item = now.find_evidence("reference_logprobs_cache")
    if item is None:
        message = "the trainer reported no reference cache, neither read nor written"
        return failed(message, seconds=seconds)
    cache = item.value
    return passed(f"cache {cache}, {seconds:.0f} s", cache=cache, seconds=seconds)


@gate(
    "reward_accuracy",
    "rewards/accuracy: the fraction of pairs whose chosen answer has the higher reward",
    kinds=_DPO,
)
def reward_accuracy(case: GateCase) -> Finding:
    """Accuracy that never changes means that the policy does not change, or that both answers are
    the same.
    """
    config = case.config.loss_falls
    values = finite(case.now.values("rewards/accuracy"))
    if not values:
        return failed("no reward accuracy was logged")
    low = min(values)
    high = max(values)
    last = values[-1]
    numbers = {"low": low, "high": high, "last": last, "steps": len(values)}
    if low != high:
        return passed(f"{low:.2f} to {high:.2f}, {last:.2f} at the end", **numbers)
    message = f"the reward accuracy is {low:.3g} at each of {len(values)} steps"
    if len(values) < config.short:
        return warned(message, **numbers)
    return failed(message, **numbers)


@gate("chosen_above_rejected", "rewards/margin: chosen minus rejected reward", kinds=_PREFERENCES)
def chosen_above_rejected(case: GateCase) -> Finding | None:
    """The chosen answers must score above the rejected ones; else the two are swapped."""
    config = case.config.loss_falls
    margins = finite(case.now.values("rewards/margin"))
    if not margins:
        return None
    last_third = max(1, len(margins) // 3)
    end = statistics.median(margins[-last_third:])
    numbers = {"margin": end, "steps": len(margins)}
    if end > 0:
        return passed(f"margin {end:.4g} at the end", **numbers)
    message = f"the margin is {end:.4g} at the end"
    if len(margins) < config.long:
        return warned(message, **numbers)
    return failed(f"{message}: rejected is above chosen", **numbers)


@gate(
    "margins_finite",
    "a log-prob of minus infinity: an empty or truncated answer",
    kinds=_PREFERENCES,
    early=True,
)
def margins_finite(case: GateCase) -> Finding | None:
    """A margin that is not finite comes from a sample without an answer."""
    if not case.now.steps:
        return None
    series = case.now.series("rewards/margin")
    if not series:
        return warned("no margins were logged")
    failure = judge_finite(case.now, "rewards/margin", "margin")
    if failure is not None:
        return failure
    return passed(f"{len(series)} margins", steps=len(series))
