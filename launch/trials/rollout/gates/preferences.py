"""Gates of DPO: the reference model, rewards and margins."""

from __future__ import annotations

import math
import statistics

from launch.config.schema import Kind
from launch.trials.measurement import finite
from launch.trials.rollout.gates.gate import GateCase, GateResult, failed, gate, passed, warned

_DPO = (Kind.dpo,)
_SIGMOID = (None, "dpo", "dpo_norm")  # recipe.loss values that mean -log sigmoid(beta x difference); None: the default
_NO_REFERENCE = ("simpo",)


@gate("reference_cached", "dpo_utils.py:437 and :515 log that the cache is read or written", kinds=_DPO)
def reference_cached(case: GateCase) -> GateResult | None:
    """The reference's log-probs are computed once, which takes minutes without a logged loss, and are then cached."""
    now = case.now
    if now.plan.config.recipe.loss in _NO_REFERENCE:
        return None
    if now.plan.trainer == "trl_dpo":
        return passed("no cache: TRL computes its reference in every step")
    cache = next((item for item in now.evidence if item.get("what") == "reference_logprobs_cache"), None)
    seconds = now.phases.get("reference_logprobs", 0.0)
    if cache is not None:
        return passed(f"cache {cache.get('found')}, {seconds:.0f} s", cache=cache.get("found"), seconds=seconds)
    return failed("the trainer reported no reference cache, neither read nor written", seconds=seconds)


@gate(
    "first_dpo_loss",
    "Rafailov et al. 2023, equation 7: -log sigmoid(0), as the policy starts as the reference",
    kinds=_DPO,
)
def first_dpo_loss(case: GateCase) -> GateResult | None:
    """At the first step the policy is the reference, so the sigmoid loss is ln 2; else the reference is another model,
    a stale cache, or gets other inputs."""
    losses = case.now.series("loss")
    if case.now.plan.config.recipe.loss not in _SIGMOID or not losses or losses[0][0] != 1:
        return None
    loss, tolerance = losses[0][1], case.config.first_dpo_loss.tolerance
    distance = abs(loss - math.log(2))
    numbers = {"loss": loss, "away": distance, "tolerance": tolerance}
    if not distance <= tolerance:
        message = f"the first loss is {loss:.4g}, not ln 2 ({math.log(2):.4g}): the reference is not this policy"
        return failed(message, **numbers)
    return passed(f"{loss:.4f}, {distance:.1g} from ln 2", **numbers)


@gate(
    "reward_accuracy", "rewards/accuracy: the fraction of pairs whose chosen answer has the higher reward", kinds=_DPO
)
def reward_accuracy(case: GateCase) -> GateResult:
    """Accuracy that never changes means that the policy does not change, or that both answers are the same."""
    config = case.config.loss_falls
    values = finite(case.now.values("rewards/accuracy"))
    if not values:
        return failed("no reward accuracy was logged")
    low, high = min(values), max(values)
    numbers = {"low": low, "high": high, "last": values[-1], "steps": len(values)}
    if low == high:
        message = f"the reward accuracy is {low:.3g} at each of {len(values)} steps"
        return failed(message, **numbers) if len(values) >= config.short else warned(message, **numbers)
    return passed(f"{low:.2f} to {high:.2f}, {values[-1]:.2f} at the end", **numbers)


@gate("chosen_above_rejected", "rewards/margin: chosen minus rejected reward", kinds=_DPO)
def chosen_above_rejected(case: GateCase) -> GateResult | None:
    """The chosen answers must score above the rejected ones; else the two are swapped."""
    config = case.config.loss_falls
    margins = finite(case.now.values("rewards/margin"))
    if not margins:
        return None
    end = statistics.median(margins[-max(1, len(margins) // 3) :])
    numbers = {"margin": end, "steps": len(margins)}
    if end > 0:
        return passed(f"margin {end:.4g} at the end", **numbers)
    message = f"the margin is {end:.4g} at the end"
    return (
        failed(f"{message}: rejected is above chosen", **numbers)
        if len(margins) >= config.long
        else warned(message, **numbers)
    )


@gate("margins_finite", "a log-prob of minus infinity: an empty or truncated answer", kinds=_DPO, early=True)
def margins_finite(case: GateCase) -> GateResult | None:
    """A margin that is not finite comes from a sample without an answer."""
    series = case.now.series("rewards/margin")
    if not series:
        return warned("no margins were logged") if case.now.steps else None
    bad = [(step, value) for step, value in series if not math.isfinite(value)]
    if bad:
        return failed(f"the margin is {bad[0][1]} at step {bad[0][0]}", step=bad[0][0])
    return passed(f"{len(series)} margins", steps=len(series))
