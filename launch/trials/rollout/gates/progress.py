"""Gates over the progress of a width: its steps, its loss and its gradient norm."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from launch.trials.measurement import Measurement
from launch.trials.rollout.gates.gate import GateCase, GateResult, failed, gate, passed, warned


@gate("finished_steps", "the trainer's exit code and the steps that it logged", early=True)
def finished_steps(case: GateCase) -> GateResult:
    """A width that did not finish its steps has measured nothing to compare the next one with."""
    now, outcome, done = case.now, case.now.outcome, case.now.last_step
    if now.finished:
        return passed(f"{done} of {now.expected_steps} steps", steps=done, wanted=now.expected_steps)
    cause = outcome.cause or "the run ended early without an error"
    cure = f"; {outcome.cure}" if outcome.cure else ""
    message = f"it ended after {done} of {now.expected_steps} steps: {cause}{cure}"
    return failed(message, steps=done, wanted=now.expected_steps, exit_code=outcome.exit_code)


@gate("loss_finite", "a weight that has become NaN stays NaN", early=True)
def loss_finite(case: GateCase) -> GateResult | None:
    """A loss that is not finite has already destroyed the weights."""
    series = case.now.series("loss")
    if not series:
        return failed("no loss was logged", steps=len(case.now.steps)) if case.now.steps else None
    bad = [(step, loss) for step, loss in series if not math.isfinite(loss)]
    if bad:
        return failed(f"the loss is {bad[0][1]} at step {bad[0][0]}", step=bad[0][0], steps=len(bad))
    return passed(f"{len(series)} losses, the last one {series[-1][1]:.4g}", steps=len(series), last=series[-1][1])


@gate("loss_falls", "Mann-Kendall's test and Theil-Sen's slope: ranks and medians are robust against single spikes")
def loss_falls(case: GateCase) -> GateResult | None:
    """A loss that does not fall in the first steps shows a wrong learning rate, wrong labels or a wrong template."""
    config = case.config.loss_falls
    losses = [loss for loss in case.now.values("loss") if math.isfinite(loss)]
    if not losses:
        return None
    if len(losses) < config.short:
        return warned(f"{len(losses)} steps are too few to show a trend", steps=len(losses), least=config.short)
    z = mann_kendall(losses)
    part = max(3, len(losses) // 10)
    start, end = statistics.median(losses[:part]), statistics.median(losses[-part:])
    fallen = (start - end) / abs(start) if start else 0.0
    numbers = {
        "start": start,
        "end": end,
        "fallen": fallen,
        "trend": z,
        "slope": theil_sen(losses),
        "steps": len(losses),
    }
    message = f"from {start:.4g} to {end:.4g} ({-fallen:+.1%}) in {len(losses)} steps"
    if z >= config.rise:
        return failed(f"the loss rises: {message}", **numbers)
    long = len(losses) >= config.long
    if z <= -config.trend and (not long or fallen >= config.share):
        return passed(message, **numbers)
    if long and not _warming_up(case.now):
        return failed(f"the loss does not fall by {config.share:.1%}: {message}", share=config.share, **numbers)
    why = "the learning rate is still rising" if _warming_up(case.now) else "no clear trend yet"
    return warned(f"{why}: {message}", **numbers)


def _warming_up(now: Measurement) -> bool:
    """Whether all steps were within the warm-up: the last rate is the highest one, and below the recipe's."""
    rates = now.values("lr")
    return bool(rates) and rates[-1] >= max(rates) and rates[-1] < 0.99 * now.plan.config.recipe.learning_rate


def mann_kendall(values: Sequence[float]) -> float:
    """z of Mann-Kendall's S: below 0 for a falling series; approximately normal from 8 values on."""
    n = len(values)
    s = sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])
    spread = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return 0.0 if s == 0 or spread == 0 else (s - math.copysign(1, s)) / spread


def theil_sen(values: Sequence[float]) -> float:
    """The median of the slopes, per step, between all pairs."""
    slopes = [(b - a) / (j - i) for i, a in enumerate(values) for j, b in enumerate(values[i + 1 :], i + 1)]
    return statistics.median(slopes) if slopes else 0.0


@gate("grad_norm_sane", "clipping hides an exploding norm from the loss, not from the optimizer's moments", early=True)
def grad_norm_sane(case: GateCase) -> GateResult | None:
    """A gradient norm that is huge, or jumps, is the first sign of divergence."""
    config = case.config.grad_norm_sane
    series = case.now.series("grad_norm")
    if not series:
        return warned("this trainer logs no gradient norm") if case.now.steps else None
    bad = [(step, norm) for step, norm in series if not math.isfinite(norm)]
    if bad:
        return failed(f"the gradient norm is {bad[0][1]} at step {bad[0][0]}", step=bad[0][0])
    norms = [norm for _, norm in series]
    median, most = statistics.median(norms), max(norms)
    spikes = [step for step, norm in series if norm > config.spike * median]
    numbers = {"median": median, "most": most, "limit": config.limit, "spikes": len(spikes), "steps": len(norms)}
    if median > config.limit:
        return failed(f"the median gradient norm is {median:.4g}, above {config.limit:.4g}", **numbers)
    if len(spikes) > max(1, config.spikes * len(norms)):
        message = f"{len(spikes)} of {len(norms)} gradient norms are above {config.spike:g} x the median ({median:.4g})"
        return failed(message, **numbers)
    if spikes:
        return warned(f"a gradient norm of {most:.4g} at step {spikes[0]}; the median is {median:.4g}", **numbers)
    return passed(f"median {median:.4g}, at most {most:.4g}", **numbers)
