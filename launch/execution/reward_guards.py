"""The guards of RLVR, which launch/execution/guards.py lists.

The loss of RLVR is 0 by construction, so that only rewards and answers show what goes wrong. The
guards read the metrics that TRL's GRPOTrainer logs (trl/trainer/grpo_trainer.py) and launch's entry
adds. TRL's SFT logs an entropy too.
"""

from __future__ import annotations

import math
import statistics

from launch.config import guards as limits
from launch.execution.facts import Fault, Guard, GuardFinding, LoggedStep
from launch.worker.wording import count_of


class Verifier(Guard):
    """Detects a verifier that fails, so that right answers earn 0 as wrong ones do."""

    id = "verifier"
    _config: limits.VerifierLimits

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        share = step.finite("verifier_failures")
        if share is None:
            return None
        self._recent.append(share)
        mean = (
            sum(self._recent) / self._config.window
        )  # a step of the window yet to come counts as 0
        if mean < self._config.share:
            return None
        logged = len(self._recent)
        message = (
            f"verifiers failed on {sum(self._recent) / logged:.2%} of the answers of the last "
            f"{logged} logged steps, which earned 0 (at most {self._config.share:.0%} of "
            f"{self._config.window} steps may); the warnings have the reasons"
        )
        return self._fail(message, step=step.number, share=mean)


class RewardVariance(Guard):
    """Detects that all completions of every prompt earn the same, so that nothing is learned."""

    id = "reward_variance"
    metric = "frac_reward_zero_std"
    _config: limits.RewardVarianceLimits

    def find_fault(self, step: LoggedStep, value: float) -> Fault | None:
        reward = step.finite("reward") or 0.0
        if value < 1 or reward >= self._config.reward:
            return None
        message = (
            "no prompt's completions differed in their reward for "
            f"{count_of(self._streak, 'logged step')}: "
            f"the mean reward is {reward:.3g} at step {step.number}"
        )
        return message, {"reward": reward}


class RewardCollapse(Guard):
    """Detects a mean reward that fell far below the run's own best."""

    id = "reward_collapse"
    _config: limits.RewardCollapseLimits
    _best: tuple[float, int, float] = (-math.inf, 0, -math.inf)  # (mean, step, time)

    def judge_step(self, step: LoggedStep) -> GuardFinding | None:
        reward = step.finite("reward")
        if reward is None:
            return None
        self._recent.append(reward)
        if len(self._recent) < self._config.window:
            return None
        mean = statistics.fmean(self._recent)
        self._best = max(self._best, (mean, step.number, step.time))
        best, best_step, best_time = self._best
        if best <= 0 or mean >= best * self._config.share:
            return None
        message = (
            f"the reward collapsed: the mean of the last {len(self._recent)} steps is "
            f"{mean:.3g} at step {step.number}, the best was {best:.3g} at step {best_step}"
        )
        return self._fail(
            message, best_time, step=step.number, mean=mean, best=best, best_step=best_step
        )


class KLDivergence(Guard):
    """Detects a policy that has moved far from its reference, which the KL penalty should prevent."""

    id = metric = "kl"
    _config: limits.KLLimits

    def find_fault(self, step: LoggedStep, value: float) -> Fault | None:
        if value <= self._config.most:
            return None
        message = (
            f"the KL divergence from the starting model is {value:.3g} a token at step "
            f"{step.number}, above {self._config.most:g} for "
            f"{count_of(self._streak, 'logged step')}"
        )
        return message, {"kl": value}


class EntropyCollapse(Guard):
    """Detects a policy that samples the same answer every time, so that it explores nothing."""

    id = "entropy_collapse"
    metric = "entropy"
    _config: limits.EntropyCollapseLimits
    _first: float | None = None  # the entropy of the first step

    def find_fault(self, step: LoggedStep, value: float) -> Fault | None:
        if step.finite("reward") is None:  # SFT may memorise its rows
            return None
        if self._first is None:
            self._first = value
        if value >= self._first * self._config.share:
            return None
        message = (
            f"the entropy collapsed: {value:.3g} nats a token at step {step.number}, below "
            f"{self._config.share:.0%} of the first step's {self._first:.3g} for "
            f"{count_of(self._streak, 'logged step')}"
        )
        return message, {"entropy": value, "first": self._first}


class LengthLimit(Guard):
    """Detects answers that run into the length limit instead of ending."""

    id = "length_limit"
    metric = "completions/clipped_ratio"
    _config: limits.LengthLimits

    def find_fault(self, step: LoggedStep, value: float) -> Fault | None:
        if value < self._config.share:
            return None
        message = (
            f"{value:.0%} of the answers reach recipe.response_length without an end at step "
            f"{step.number}, at least {self._config.share:.0%} for "
            f"{count_of(self._streak, 'logged step')}"
        )
        return message, {"cut_off": value}


class SamplerMismatch(Guard):
    """Detects a sampler that keeps old weights, by its log-probs of what it sampled and the
    trainer's.
    """

    id = "sampler_mismatch"
    metric = "sampling/sampling_logp_difference/mean"
    _config: limits.SamplerMismatchLimits

    def find_fault(self, step: LoggedStep, value: float) -> Fault | None:
        if value <= self._config.most:
            return None
        message = (
            f"sampler and trainer differ by {value:.3g} nats a token at step {step.number}, above "
            f"{self._config.most:g} for {count_of(self._streak, 'logged step')}: "
            "the sampler may keep old weights"
        )
        return message, {"difference": value}
