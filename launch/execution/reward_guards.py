"""The guards of RLVR, where the loss is 0 by construction: rewards and answers show what goes wrong. And all guards.

All read what TRL's GRPOTrainer logs (trl/trainer/grpo_trainer.py) and launch's entry adds; no other trainer logs it.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

from launch.config.guards import (
    EntropyCollapseGuard,
    GuardsConfig,
    KLGuard,
    LengthLimitGuard,
    RewardCollapseGuard,
    RewardVarianceGuard,
    VerifierGuard,
)
from launch.execution.facts import LoggedStep
from launch.execution.guards import Guard, GuardContext, GuardFinding


def _number(step: LoggedStep, name: str) -> float | None:
    value = step.values.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


class _Streak:
    """Counts consecutive steps on which something holds, and remembers the last good time."""

    def __init__(self, steps: int) -> None:
        self._steps, self.count, self.good_until = steps, 0, -math.inf

    def is_full(self, step: LoggedStep, holds: bool) -> bool:
        self.count = self.count + 1 if holds else 0
        if not holds:
            self.good_until = step.time
        return self.count >= self._steps


class Verifier(Guard):
    """Detects a verifier that fails, so that right answers earn 0 as wrong ones do."""

    id = "verifier"

    def __init__(self, config: VerifierGuard, context: GuardContext | None = None) -> None:
        super().__init__(config, context)
        self._shares: deque[float] = deque(maxlen=config.window)

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        share = _number(step, "verifier_failures")
        if share is None:
            return None
        self._shares.append(share)
        mean = sum(self._shares) / self._config.window  # steps that are still to come count as good
        if mean < self._config.share:
            return None
        message = f"verifiers failed on {sum(self._shares) / len(self._shares):.2%} of the answers of the last "
        message += f"{len(self._shares)} logged steps, which earned 0 (at most {self._config.share:.0%} of "
        message += f"{self._config.window} steps may); the warnings have the reasons"
        return GuardFinding(self.id, "fail", message, numbers={"step": step.number, "share": mean})


class RewardVariance(Guard):
    """Detects that all completions of every prompt earn the same, so that no step teaches anything."""

    id = "reward_variance"

    def __init__(self, config: RewardVarianceGuard, context: GuardContext | None = None) -> None:
        super().__init__(config, context)
        self._streak, self._most = _Streak(config.steps), config.reward

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        without, reward = _number(step, "frac_reward_zero_std"), _number(step, "reward")
        if without is None or not self._streak.is_full(step, without >= 1 and (reward or 0.0) < self._most):
            return None
        message = (
            f"no prompt's completions differed in their reward for {self._streak.count} logged steps: its mean is "
        )
        message += f"{reward:.3g} at step {step.number}"
        numbers = {"step": step.number, "reward": reward or 0.0, "steps": self._streak.count}
        return GuardFinding(self.id, "fail", message, numbers=numbers, good_until=self._streak.good_until)


class RewardCollapse(Guard):
    """Detects a mean reward that fell far below the run's own best."""

    id = "reward_collapse"

    def __init__(self, config: RewardCollapseGuard, context: GuardContext | None = None) -> None:
        super().__init__(config, context)
        self._rewards: deque[float] = deque(maxlen=config.window)
        self._best: tuple[float, int, float] = (-math.inf, 0, -math.inf)  # (mean, step, time)

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        reward = _number(step, "reward")
        if reward is None:
            return None
        self._rewards.append(reward)
        if len(self._rewards) < self._config.window:
            return None
        mean = statistics.fmean(self._rewards)
        self._best = max(self._best, (mean, step.number, step.time))
        best, best_step, best_time = self._best
        if best <= 0 or mean >= best * self._config.share:
            return None
        message = f"the reward collapsed: the mean of the last {len(self._rewards)} steps is {mean:.3g} at step "
        message += f"{step.number}, the best was {best:.3g} at step {best_step}"
        numbers = {"step": step.number, "mean": mean, "best": best, "best_step": best_step}
        return GuardFinding(self.id, "fail", message, numbers=numbers, good_until=best_time)


class KLDivergence(Guard):
    """Detects a policy that has left its reference, which it is paid to stay near."""

    id = "kl"

    def __init__(self, config: KLGuard, context: GuardContext | None = None) -> None:
        super().__init__(config, context)
        self._most, self._streak = config.most, _Streak(config.steps)

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        kl = _number(step, "kl")
        if kl is None or not self._streak.is_full(step, kl > self._most):
            return None
        message = f"the KL divergence from the starting model is {kl:.3g} a token at step {step.number}, above "
        message += f"{self._most:g} for {self._streak.count} logged steps"
        numbers = {"step": step.number, "kl": kl, "steps": self._streak.count}
        return GuardFinding(self.id, "fail", message, numbers=numbers, good_until=self._streak.good_until)


class EntropyCollapse(Guard):
    """Detects a policy that samples the same answer every time, so that it explores nothing."""

    id = "entropy_collapse"

    def __init__(self, config: EntropyCollapseGuard, context: GuardContext | None = None) -> None:
        super().__init__(config, context)
        self._share, self._streak = config.share, _Streak(config.steps)
        self._first: float | None = None

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        entropy = _number(step, "entropy")
        if entropy is None:
            return None
        self._first = entropy if self._first is None else self._first
        if not self._streak.is_full(step, entropy < self._first * self._share):
            return None
        message = (
            f"the entropy collapsed: {entropy:.3g} nats a token at step {step.number}, below {self._share:.0%} of "
        )
        message += f"the first step's {self._first:.3g} for {self._streak.count} logged steps"
        numbers = {"step": step.number, "entropy": entropy, "first": self._first, "steps": self._streak.count}
        return GuardFinding(self.id, "fail", message, numbers=numbers, good_until=self._streak.good_until)


class LengthLimit(Guard):
    """Detects answers that run into the length limit instead of ending."""

    id = "length_limit"

    def __init__(self, config: LengthLimitGuard, context: GuardContext | None = None) -> None:
        super().__init__(config, context)
        self._share, self._streak = config.share, _Streak(config.steps)

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        cut_off = _number(step, "completions/clipped_ratio")
        if cut_off is None or not self._streak.is_full(step, cut_off >= self._share):
            return None
        message = f"{cut_off:.0%} of the answers reach recipe.response_length without an end at step {step.number}, at "
        message += f"least {self._share:.0%} for {self._streak.count} logged steps"
        numbers = {"step": step.number, "cut_off": cut_off, "steps": self._streak.count}
        return GuardFinding(self.id, "fail", message, numbers=numbers, good_until=self._streak.good_until)


GUARDS: tuple[type[Guard], ...] = tuple(Guard.__subclasses__())  # those of launch/execution/guards.py, then those above


def build_guards(config: GuardsConfig | None, context: GuardContext) -> list[Guard]:
    """Build the guards that the configuration enables."""
    by_guard = {guard: getattr(config, guard.id) for guard in GUARDS} if config else {}
    return [guard(limit, context) for guard, limit in by_guard.items() if limit is not None]
