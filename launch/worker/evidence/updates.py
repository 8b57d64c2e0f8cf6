"""Checks what training does to the weights: the first and the last update, and the gradients.

Nothing here starts a collective. A step costs one sample of at most 64 x 64 weights of each
optimizer group, and of gradients, and never waits for the device. Every weight is read three times
in a run: before and after the first update, and when the model is saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..hooks import engine_norm
from ..wording import count_of
from . import FEW_STEPS, NO_STEP, PROVEN, REFUTED, TOO_SHORT, Evidence
from .saved_model import try_check
from .tensors import checksum, sample_all, sample_each, spread, stored
from .trainer_objects import TrainerObjects

# The limits. A comment names the run that fixed each one; docs/reference/faults.md has the figures.

# Weights below this fraction of the mean weight count as 0. recipe.learning_rate=1e-30 turns an
# adapter's zeros into 1e-30.
TINY = 1e-9
# A gradient norm up to this one is rounding. DPO in fp32 on equal pairs (beta 5, 120 tokens) has
# 4e-6, and the demo's runs have 1.2. In bf16 the same pairs have 0.24, which is not distinguishable
# from a gradient: `equal_pairs` finds them in the data.
NOISE = 1e-5
# The last update is not larger than the largest before it by more than this factor. The demo's SFT
# and DPO have 0.15 and less; a learning rate of 1.0 in the last step exceeds it.
JUMP = 100.0
# An update is not larger than the weights by more than this factor, which
# recipe.learning_rate=1e30 exceeds in a run of one step.
SWAMPED = 10.0
# Steps until bf16 weights must have moved. A warm-up from 5e-9 to DPO's 5e-7 moves some of them in
# the first.
PATIENCE = 10


@dataclass
class _Group:
    """The tensors that this rank holds of an optimizer group."""

    names: list[str]
    positions: list[int]  # indices in the optimizer's list of groups
    rates: float = 0.0  # the sum of the learning rates so far
    has_learned: bool = False  # whether gradients have changed one of the tensors


@dataclass(frozen=True)
class _Changes:
    """What differs from the weights before the first step."""

    moved: set[str]  # trained tensors
    learned: set[str]  # those of `moved` that gradients have changed
    leaked: Sequence[str]  # frozen tensors, which must not change
    frozen: int  # the number of all frozen tensors
    # The optimizer groups without a learned tensor.
    waiting: Sequence[_Group]
    # The first of these groups in which an update should have shown by this step.
    overdue: _Group | None


class Updates:
    """Follows the trained weights of this rank from before the first optimizer step."""

    def __init__(self, objects: TrainerObjects) -> None:
        self._objects = objects
        self._named = dict(objects.model.named_parameters())
        self._trained = {name: p for name, p in self._named.items() if p.requires_grad}
        self._groups = self._find_groups()
        self._sampled: dict[str, Any] = {}
        for group in self._groups:
            for name in spread(group.names):
                self._sampled[name] = self._trained[name]
        # The factors by which weight decay alone would have reduced the samples.
        self._kept = dict.fromkeys(self._sampled, 1.0)
        self._kind = "adapter" if any("lora_" in name for name in self._trained) else "weights"
        self._began_with = sample_all(self._sampled.values())
        self._weights = self._began_with
        self._scale = float(self._weights.abs().mean())
        self._start = self._checksums()
        self._all_steps = 0
        self._steps = 0  # steps with a learning rate above 0
        self._last = self._weights.new_zeros(())  # the sum of the last changes of the samples
        self._largest = self._last  # the largest such sum before the last step
        self._gradient = self._weights.new_tensor(math.nan)  # the largest norm; NaN: not measured
        self._is_reported = False  # whether evidence of the first update has been returned

    def note_gradients(self) -> None:
        """Note the norm of the gradients after clipping, as this rank's sample estimates it.

        With DeepSpeed its engine's norm is noted, after the step.
        """
        sampled = spread(list(self._trained.values()))
        gradients = [parameter.grad for parameter in sampled if parameter.grad is not None]
        if gradients:
            size = sum(p.numel() for p in self._trained.values())
            mean_square = sample_all(gradients).square().mean()
            self._gradient = self._gradient.fmax(mean_square.mul(size).sqrt())

    def after_step(self) -> list[Evidence]:
        """Note what the step changed; return the evidence of the first update and of the gradients
        once it is due.

        Steps with a learning rate of 0, as at the beginning of a warm-up, change nothing and do not
        count.
        """
        if self._objects.engine is not None:
            norm = engine_norm(self._objects.engine)
            if norm is not None:
                self._gradient = self._gradient.fmax(self._weights.new_tensor(norm))
        weights = sample_all(self._sampled.values())
        self._largest = self._largest.fmax(self._last)
        self._last = (weights - self._weights).abs().sum()
        self._weights = weights
        self._note_rates()
        self._all_steps += 1
        rate = max(self._rates)
        self._steps += rate > 0
        evidence: list[Evidence] = []
        if rate > 0 and self._is_due():
            evidence = self._judge_first()
            self._is_reported |= bool(evidence)
        if self._steps == PATIENCE and rate > 0:
            evidence.append(self._judge_gradients())
        return evidence

    def so_far(self) -> list[Evidence]:
        """Return the evidence that the steps until now have proven.

        If no step is left after a checkpoint of these steps, a resumed run has only this evidence.
        """
        if not self._steps:
            return []
        evidence = [self._judge_gradients(), self._judge_last()]
        return [item for item in evidence if item.verdict == PROVEN]

    def at_end(self, check: Callable[[], Evidence]) -> list[Evidence]:
        """Return the evidence of the whole run; `check` makes that of what was saved."""
        evidence = [self._judge_gradients(), self._judge_last()]
        if not self._is_reported:
            evidence += self._judge_first(is_last=True)
        return [*evidence, self._judge_saved(try_check(check))]

    def _judge_saved(self, saved: Evidence) -> Evidence:
        """Complete the evidence of what was saved by whether the run has changed it."""
        now = self._checksums()
        changed = sum(now[name] != self._start[name] for name in self._trained)
        resumed = bool(self._objects.step)
        if changed or resumed or saved.verdict == REFUTED:
            since = "checkpoint" if resumed else "start"
            note = f"{changed} of {len(self._trained)} trained tensors differ from the {since}"
            if saved.note:
                note = f"{note}; {saved.note}"
            return replace(saved, note=note)
        value = "the weights it began with"
        unchanged = Evidence("saved_weights", value, "checksums", note="nothing was learned")
        if not self._is_too_short():
            return unchanged.judge("trained", False)
        if saved.verdict != PROVEN:
            return saved
        note = f"{self._describe_steps()}; {saved.note}"
        return replace(unchanged, how=TOO_SHORT, note=note).judge("trained", None)

    def _is_due(self) -> bool:
        """Whether to look for the first update at this step.

        The update is looked for at each of ten steps and at powers of two until it is seen, and then
        at powers of two until it is seen in each group in which one can show.
        """
        waiting = [group for group in self._groups if not group.has_learned]
        is_power = not self._steps & (self._steps - 1)
        if self._is_reported:
            return is_power and any(map(self._is_update_visible, waiting))
        return is_power or self._steps <= PATIENCE

    def _patience(self) -> int:
        if self._may_lack_gradients():
            return PATIENCE
        return 1 if all(map(_is_fp32, self._sampled.values())) else PATIENCE

    def _may_lack_gradients(self) -> bool:
        """Whether a step may have no gradients.

        In GRPO, a step has none if all completions of each prompt earn equal rewards.
        """
        return hasattr(self._objects.trainer, "num_generations")

    def _is_too_short(self) -> bool:
        """Whether this attempt is too short for an update to show.

        It has one or two steps, at too low rates, or without gradients if that is not a fault.
        """
        shows = any(map(self._is_update_visible, self._groups))
        lacks_gradients = self._may_lack_gradients() and float(self._gradient) == 0
        return self._all_steps <= FEW_STEPS and (not shows or lacks_gradients)

    def _judge_first(self, *, is_last: bool = False) -> list[Evidence]:
        """Return the evidence "first_update": which trained and which frozen tensors have changed
        on this rank.

        None is returned while rounding may still hide an update, which a later step has to show.
        """
        if not self._steps and self._objects.step:
            return [Evidence("first_update", "no step", NO_STEP).judge(self._kind, None)]
        changes = self._find_changes()
        note = self._describe_changes(changes)
        how = "checksums around the first optimizer step"
        evidence = Evidence("first_update", None, how, note=note)
        if changes.leaked:
            value = f"{self._kind} and frozen weights" if changes.moved else "frozen weights"
            return [replace(evidence, value=value).judge(self._kind, False)]
        if changes.learned and changes.overdue is None:
            proven = replace(evidence, value=self._kind).judge(self._kind, True)
            return [] if self._is_reported else [proven]
        if is_last and not changes.learned and self._is_too_short():
            note = f"{self._describe_steps()}: {note}"
            return [replace(evidence, how=TOO_SHORT, note=note).judge(self._kind, None)]
        is_early = changes.overdue is None or self._steps < self._patience()
        if not is_last and is_early and self._can_show():
            return []
        value = self._describe_missing(changes)
        note += self._explain_missing(changes)
        return [replace(evidence, value=value, note=note).judge(self._kind, False)]

    def _find_changes(self) -> _Changes:
        """Compare all tensors with those before the first step."""
        now = self._checksums()
        changed = {name for name, value in now.items() if value != self._start[name]}
        moved = changed & self._trained.keys()
        learned = self._find_learned(moved)
        for group in self._groups:
            if not learned.isdisjoint(group.names):
                group.has_learned = True
        waiting = [group for group in self._groups if not group.has_learned]
        return _Changes(
            moved=moved,
            learned=learned,
            leaked=sorted(changed - self._trained.keys()),
            frozen=len(now) - len(self._trained),
            waiting=waiting,
            overdue=next(filter(self._is_update_visible, waiting), None),
        )

    def _describe_changes(self, changes: _Changes) -> str:
        trained = f"{len(changes.moved)} of {len(self._trained)} trained tensors changed"
        if not changes.frozen:
            return trained
        note = f"{trained}, {len(changes.leaked)} of {changes.frozen} frozen ones"
        return f"{note}: {changes.leaked[0]}" if changes.leaked else note

    def _describe_missing(self, changes: _Changes) -> str:
        """Describe an update that is less than the one which was requested."""
        if changes.learned:
            return f"only a part of the {self._kind}"
        return "less than rounding and weight decay" if changes.moved else "nothing"

    def _explain_missing(self, changes: _Changes) -> str:
        """Return the end of the note on an update that is less than requested."""
        explanation = ""
        if changes.moved:
            group = changes.overdue or changes.waiting[0]
            first_name = min(group.names)
            explanation = f"; none of the {len(group.names)} in an optimizer group with"
            explanation += f" {first_name}"
            if not changes.moved.isdisjoint(group.names):
                rate = f"{self._mean_rate(group):.2g}"
                explanation += (
                    f" by more than weight decay and rounding at a learning rate of {rate}"
                )
        why = "every gradient is 0, " if float(self._gradient) == 0 else ""
        return f"{explanation}: {why}nothing is learned"

    def _describe_steps(self) -> str:
        rate = max(group.rates for group in self._groups) / max(self._all_steps, 1)
        return f"{count_of(self._all_steps, 'step')} at a learning rate of {rate:.2g}"

    def _note_rates(self) -> None:
        """Note the learning rates of a step, and its decoupled weight decay.

        A tensor that is in no group of the optimizer counts with the largest decay: DeepSpeed's
        flat groups may hold any tensor.
        """
        groups = self._objects.optimizer.param_groups
        self._rates = [float(group["lr"]) for group in groups]
        for sampled_group in self._groups:
            sampled_group.rates += max(self._rates[at] for at in sampled_group.positions)
        decays = []
        decay_of: dict[int, float] = {}  # {id of the tensor: weight decay}
        for rate, group in zip(self._rates, groups, strict=True):
            decay = rate * float(group.get("weight_decay") or 0)
            decays.append(decay)
            for parameter in group["params"]:
                decay_of[id(parameter)] = decay
        for name, tensor in self._sampled.items():
            self._kept[name] *= 1 - decay_of.get(id(tensor), max(decays))

    def _find_learned(self, moved: Collection[str]) -> set[str]:
        """Return the tensors of `moved` that gradients have changed, and not weight decay alone.

        If rounding hides the decay, any change of a tensor counts. Otherwise its sample must have
        changed by more than the decay and the rounding together.
        """
        import torch

        eps = {name: _relative_spacing(tensor) for name, tensor in self._trained.items()}
        learned = set(filter(self._hides_decay, moved))
        sizes = [sample.numel() for sample in sample_each(self._sampled.values())]
        parts = zip(
            self._sampled, self._began_with.split(sizes), self._weights.split(sizes), strict=True
        )
        for name, began, now in parts:
            ends = torch.stack([began, began * self._kept[name]])
            rounding = 2 * self._steps * eps[name] * began.abs() + TINY * self._scale
            is_below = now < ends.amin(0) - rounding
            is_above = now > ends.amax(0) + rounding
            if bool((is_below | is_above).any()):
                learned.add(name)
        return learned

    def _hides_decay(self, name: str) -> bool:
        """Whether the stored type has rounded all weight decay away so far.

        Any change then comes from gradients.
        """
        kept = self._kept.get(name, min(self._kept.values(), default=1.0))
        return 1 - kept <= _relative_spacing(self._trained[name]) / 4

    def _judge_gradients(self) -> Evidence:
        norm = float(self._gradient)
        is_noise = self._steps > 0 and norm <= NOISE  # false for NaN, which was not measured
        requested = f"above {NOISE:g}"
        how = (
            "the largest norm of a clipped step, estimated from samples: it may be above the limit"
        )
        evidence = Evidence("gradients", f"{norm:.2g}", how)
        if not is_noise:
            return evidence.judge(requested, True)
        if self._is_too_short():
            note = "the completions of each prompt earned equal rewards"
            return replace(evidence, how=TOO_SHORT, note=note).judge(requested, None)
        note = "the loss does not depend on the weights: rounding or weight decay changes them"
        return replace(evidence, note=note).judge(requested, False)

    def _judge_last(self) -> Evidence:
        """Return the evidence "last_update", whose effect no logged loss shows."""
        last = float(self._last)
        largest = float(self._largest)
        ratio = last / largest if largest > 0 else 0.0
        size = max(last, largest) / max(self._scale * self._weights.numel(), 1e-30)
        is_finite = math.isfinite(last) and math.isfinite(largest)
        how = "sampled weights around the last optimizer step"
        if not is_finite:
            return Evidence("last_update", "not finite", how).judge("finite", False)
        note = f"{ratio:.2g} times the largest before it" if largest > 0 else None
        if size > SWAMPED:
            note = f"an update {size:.2g} times as large as the weights"
        is_usual = ratio <= JUMP and size <= SWAMPED
        value = "finite" if is_usual else "far larger than usual"
        return Evidence("last_update", value, how, note=note).judge("finite", is_usual)

    def _checksums(self) -> dict[str, int]:
        """Return a checksum of the bits that this rank stores of each parameter.

        Tiny elements count as zeros.
        """
        floor = TINY * self._scale
        sums = {name: checksum(stored(p), floor) for name, p in self._named.items()}
        return {name: int(value) for name, value in sums.items()}

    def _find_groups(self) -> list[_Group]:
        """Return the optimizer's groups of trained tensors.

        They are one group if DeepSpeed's optimizer holds flat copies of the tensors.
        """
        names = {id(parameter): name for name, parameter in self._trained.items()}
        param_groups = self._objects.optimizer.param_groups
        groups = []
        for position, group in enumerate(param_groups):
            members = [names[id(p)] for p in group["params"] if id(p) in names]
            if members:
                groups.append(_Group(members, [position]))
        if groups:
            return groups
        return [_Group(list(self._trained), list(range(len(param_groups))))]

    def _mean_rate(self, group: _Group) -> float:
        return group.rates / max(self._steps, 1)

    def _is_update_visible(self, group: _Group, rate: float | None = None) -> bool:
        """Whether updates at a learning rate show in the stored type of a group's tensors.

        `rate` defaults to the mean rate so far. bf16 norm weights of 1.0 never move by 5e-7. If the
        decay shows as well, a quarter of the sampled elements must move by twice what
        `_find_learned` takes for rounding; otherwise the smallest of them must move at all.
        """
        import torch

        if rate is None:
            rate = self._mean_rate(group)
        names = spread(group.names)
        tensors = [self._trained[name] for name in names]
        parts = []
        for tensor, part in zip(tensors, sample_each(tensors), strict=True):
            parts.append(_relative_spacing(tensor) * part.abs().cpu())
        steps = torch.cat(parts)  # the smallest change of each element that is stored
        holds_nothing = not steps.numel()  # a rank may hold no part of a group
        if holds_nothing or rate <= TINY * self._scale:
            return False
        if not all(map(self._hides_decay, names)):
            return rate > 4 * float(steps.quantile(0.25))
        return not steps.any() or rate > float(steps[steps > 0].min())

    def _can_show(self) -> bool:
        """Whether an update can show at the largest rate of the schedule.

        DeepSpeed's fp32 copies add small updates up, so that they show in the end.
        """
        peaks = []  # the largest learning rate of each of the optimizer's groups
        for group in self._objects.optimizer.param_groups:
            initial_rate = float(group.get("initial_lr") or 0)
            peaks.append(max(float(group["lr"]), initial_rate))
        if self._objects.engine is not None:
            return max(peaks) > TINY * self._scale
        for sampled_group in self._groups:
            peak = max(peaks[position] for position in sampled_group.positions)
            if self._is_update_visible(sampled_group, peak):
                return True
        return False


def _relative_spacing(tensor: Any) -> float:
    import torch

    return float(torch.finfo(tensor.dtype).eps)


def _is_fp32(tensor: Any) -> bool:
    return str(tensor.dtype) == "torch.float32"
