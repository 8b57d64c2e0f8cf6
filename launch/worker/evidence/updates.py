"""Checks what training does to the weights: the first and last update, gradients and saved files.

Nothing here starts a collective. A step costs one sample of at most 64 x 64 weights of each
optimizer group, and of gradients, and never waits for the device; every weight is read three times
in a run: before and after the first update, and when the model is saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..hooks import engine_norm
from ..wording import count_of, describe_error
from . import FEW_STEPS, PROVEN, REFUTED, TOO_SHORT, Evidence
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

_SAMPLES = 64  # tensors of a group, and elements of each, that are sampled
_CHUNK = 1 << 24  # elements that are read at once


@dataclass
class _Group:
    """The tensors that this rank holds of an optimizer group."""

    names: list[str]
    positions: list[int]  # in the optimizer's list of groups
    rates: float = 0.0  # the sum of the learning rates so far
    has_learned: bool = False


class Updates:
    """Follows the trained weights of this rank from before the first optimizer step."""

    def __init__(self, objects: TrainerObjects) -> None:
        self._objects = objects
        self._named = dict(objects.model.named_parameters())
        self._trained = {name: p for name, p in self._named.items() if p.requires_grad}
        self._groups = self._find_groups()
        self._sampled: dict[str, Any] = {}
        for group in self._groups:
            for name in _spread(group.names):
                self._sampled[name] = self._trained[name]
        # what weight decay alone would have left of them
        self._kept = dict.fromkeys(self._sampled, 1.0)
        self._kind = "adapter" if any("lora_" in name for name in self._trained) else "weights"
        self._weights = self._began_with = _sample(self._sampled.values())
        self._scale = float(self._weights.abs().mean())
        self._start = self._checksums()
        self._all_steps = 0
        self._steps = 0  # with a learning rate above 0
        self._last = self._largest = self._weights.new_zeros(())
        self._gradient = self._weights.new_tensor(math.nan)  # not measured
        self._is_reported = False  # whether a finding about the first update is

    def note_gradients(self) -> None:
        """Note the gradients after clipping, by the norm that this rank's sample estimates;
        DeepSpeed has its own.
        """
        gradients = [p.grad for p in _spread(list(self._trained.values())) if p.grad is not None]
        if gradients:
            size = sum(p.numel() for p in self._trained.values())
            mean_square = _sample(gradients).square().mean()
            self._gradient = self._gradient.fmax(mean_square.mul(size).sqrt())

    def after_step(self) -> list[Evidence]:
        """Note what the step changed; return the findings about the first update and the gradients
        once they are due.

        Steps with a learning rate of 0, as at the beginning of a warm-up, change nothing and do not
        count.
        """
        if self._objects.engine is not None:
            norm = engine_norm(self._objects.engine)
            if norm is not None:
                self._gradient = self._gradient.fmax(self._weights.new_tensor(norm))
        weights = _sample(self._sampled.values())
        self._largest = self._largest.fmax(self._last)
        self._last = (weights - self._weights).abs().sum()
        self._weights = weights
        self._note_rates()
        self._all_steps += 1
        rate = max(self._rates)
        self._steps += rate > 0
        found: list[Evidence] = []
        if rate > 0 and self._is_due():
            found = self._judge_first()
            self._is_reported |= bool(found)
        if self._steps == PATIENCE and rate > 0:
            found.append(self._judge_gradients())
        return found

    def at_end(self, check: Callable[[], Evidence]) -> list[Evidence]:
        """Return the findings about the whole run; `check` makes that on what was saved."""
        now = self._checksums()
        changed = sum(now[name] != self._start[name] for name in self._trained)
        resumed = bool(self._objects.step)
        rest = [self._judge_gradients(), self._judge_last()]
        if not self._is_reported:
            rest += self._judge_first(is_last=True)
        saved = try_check(check)
        since = "checkpoint" if resumed else "start"
        notes = [
            f"{changed} of {len(self._trained)} trained tensors differ from the {since}",
            saved.note,
        ]
        if changed or resumed or saved.verdict == REFUTED:
            return [*rest, replace(saved, note="; ".join(filter(None, notes)))]
        unchanged = Evidence(
            "saved_weights", "the weights it began with", "checksums", note="nothing was learned"
        )
        if not self._is_too_short():
            return [*rest, unchanged.judge("trained", False)]
        if saved.verdict != PROVEN:
            return [*rest, saved]
        note = f"{self._describe_steps()}; {saved.note}"
        return [*rest, replace(unchanged, how=TOO_SHORT, note=note).judge("trained", None)]

    def _is_due(self) -> bool:
        """Whether to look for the first update: at each of ten steps until it is seen, and at
        powers of two, until each group is seen in which one can show.
        """
        waiting = [group for group in self._groups if not group.has_learned]
        is_power = not self._steps & (self._steps - 1)
        if self._is_reported:
            return is_power and any(map(self._shows, waiting))
        return is_power or self._steps <= PATIENCE

    def _patience(self) -> int:
        if self._may_lack_gradients():
            return PATIENCE
        return 1 if all(map(_is_fp32, self._sampled.values())) else PATIENCE

    def _may_lack_gradients(self) -> bool:
        """Whether a step may have none: one of GRPO in which the completions of each prompt earn
        equal rewards.
        """
        return hasattr(self._objects.trainer, "num_generations")

    def _is_too_short(self) -> bool:
        """Whether this attempt is too short for an update to show: a step or two at too low rates,
        or without gradients where that is no fault.
        """
        shows = any(map(self._shows, self._groups))
        lacks_gradients = self._may_lack_gradients() and float(self._gradient) == 0
        return self._all_steps <= FEW_STEPS and (not shows or lacks_gradients)

    def _judge_first(self, *, is_last: bool = False) -> list[Evidence]:
        """Return the finding "first_update": which trained and which frozen tensors have changed on
        this rank.

        [] while none is due: an update that rounding hides refutes nothing, and a later step has to
        show one.
        """
        if not self._steps and self._objects.step:
            how = "no learning rate of this attempt was above 0"
            return [Evidence("first_update", "no step", how).judge(self._kind, True)]
        now = self._checksums()
        changed = {name for name, value in now.items() if value != self._start[name]}
        moved = changed & self._trained.keys()
        leaked = sorted(changed - self._trained.keys())
        learned = self._find_learned(moved)
        for group in self._groups:
            group.has_learned |= not learned.isdisjoint(group.names)
        waiting = [group for group in self._groups if not group.has_learned]
        still = next(filter(self._shows, waiting), None)
        note = f"{len(moved)} of {len(self._trained)} trained tensors changed, {len(leaked)} of "
        note += f"{len(now) - len(self._trained)} frozen ones"
        if leaked:
            note += f": {leaked[0]}"
        how = "checksums around the first optimizer step"
        finding = Evidence("first_update", None, how, note=note)
        if learned and not leaked and still is None:
            if self._is_reported:
                return []
            return [replace(finding, value=self._kind).judge(self._kind, True)]
        if not leaked and not learned and is_last and self._is_too_short():
            note = f"{self._describe_steps()}: {note}"
            return [replace(finding, how=TOO_SHORT, note=note).judge(self._kind, None)]
        is_early = still is None or self._steps < self._patience()
        if not leaked and not is_last and is_early and self._can_show():
            return []
        if moved and not leaked:
            group = still or waiting[0]
            first_name = min(group.names)
            note += f"; none of the {len(group.names)} in an optimizer group with {first_name}"
            if not moved.isdisjoint(group.names):
                rate = f"{self._mean_rate(group):.2g}"
                note += f" by more than weight decay and rounding at a learning rate of {rate}"
        if not leaked:
            why = "every gradient is 0, " if float(self._gradient) == 0 else ""
            note = f"{note}: {why}nothing is learned"
        value = self._describe_moved(moved, learned, leaked)
        return [replace(finding, value=value, note=note).judge(self._kind, False)]

    def _describe_steps(self) -> str:
        rate = max(group.rates for group in self._groups) / max(self._all_steps, 1)
        return f"{count_of(self._all_steps, 'step')} at a learning rate of {rate:.2g}"

    def _describe_moved(
        self, moved: Collection[str], learned: Collection[str], leaked: Collection[str]
    ) -> str:
        """Describe an update that is not the one which was requested."""
        if leaked:
            return f"{self._kind} and frozen weights" if moved else "frozen weights"
        if learned:
            return f"only a part of the {self._kind}"
        return "less than rounding and weight decay" if moved else "nothing"

    def _note_rates(self) -> None:
        """Note the learning rates of a step, and its decoupled weight decay.

        DeepSpeed's flat groups may hold any tensor.
        """
        groups = self._objects.optimizer.param_groups
        self._rates = [float(group["lr"]) for group in groups]
        for sampled_group in self._groups:
            sampled_group.rates += max(self._rates[at] for at in sampled_group.positions)
        decays = []
        decay_of: dict[int, float] = {}  # by the id of the tensor
        for rate, group in zip(self._rates, groups, strict=True):
            decay = rate * float(group.get("weight_decay") or 0)
            decays.append(decay)
            decay_of.update({id(parameter): decay for parameter in group["params"]})
        for name, tensor in self._sampled.items():
            self._kept[name] *= 1 - decay_of.get(id(tensor), max(decays))

    def _find_learned(self, moved: Collection[str]) -> set[str]:
        """Return the tensors of `moved` that gradients have changed, and not weight decay alone.

        Where rounding hides the decay, any change of a tensor counts. Elsewhere its sample must
        have changed by more than the decay and the rounding together.
        """
        import torch

        eps = {name: _eps(tensor) for name, tensor in self._trained.items()}
        learned = set(filter(self._hides_decay, moved))
        sizes = [sample.numel() for sample in _samples(self._sampled.values())]
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
        """Whether the stored type has rounded away all weight decay so far, so that any change
        comes from gradients.
        """
        kept = self._kept.get(name, min(self._kept.values(), default=1.0))
        return 1 - kept <= _eps(self._trained[name]) / 4

    def _judge_gradients(self) -> Evidence:
        norm = float(self._gradient)
        is_noise = self._steps > 0 and norm <= NOISE  # a norm that nothing measured is none
        requested = f"above {NOISE:g}"
        how = "the largest norm of a step, after clipping, as samples estimate it"
        finding = Evidence("gradients", f"{norm:.2g}", how)
        if not is_noise:
            return finding.judge(requested, True)
        if self._is_too_short():
            note = "the completions of each prompt earned equal rewards"
            return replace(finding, how=TOO_SHORT, note=note).judge(requested, None)
        note = "the loss does not depend on the weights: rounding or weight decay changes them"
        return replace(finding, note=note).judge(requested, False)

    def _judge_last(self) -> Evidence:
        """Return the finding "last_update": no logged loss was computed after it."""
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
        """Return a checksum of the bits that each parameter stores on this rank, of tiny elements
        as zeros.
        """
        import torch

        sums = {name: checksum(stored(p), TINY * self._scale) for name, p in self._named.items()}
        values = torch.stack([value.cpu() for value in sums.values()])
        return dict(zip(sums, values.tolist(), strict=True))

    def _find_groups(self) -> list[_Group]:
        """Return the optimizer's groups; one group where DeepSpeed holds flat copies of the
        tensors.
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

    def _shows(self, group: _Group, rate: float | None = None) -> bool:
        """Whether updates of `rate`, or else of the mean rate so far, show in the stored type of a
        group's tensors.

        bf16 norm weights of 1.0 never move by 5e-7. Where the decay shows as well, a quarter of the
        sampled elements has to move by twice what `_find_learned` takes for rounding; else the
        smallest of them has to move at all.
        """
        import torch

        rate = self._mean_rate(group) if rate is None else rate
        names = _spread(group.names)
        tensors = [self._trained[name] for name in names]
        parts = []
        for tensor, part in zip(tensors, _samples(tensors), strict=True):
            parts.append(_eps(tensor) * part.abs().cpu())
        steps = torch.cat(parts)
        if not steps.numel() or rate <= TINY * self._scale:  # a rank may hold nothing of a group
            return False
        if not all(map(self._hides_decay, names)):
            return rate > 4 * float(steps.quantile(0.25))
        return not steps.any() or rate > float(steps[steps > 0].min())

    def _can_show(self) -> bool:
        """Whether an update can show at the largest rate of the schedule; DeepSpeed's fp32 copies
        add small ones up.
        """
        groups = self._objects.optimizer.param_groups
        peaks = [max(float(group["lr"]), float(group.get("initial_lr") or 0)) for group in groups]
        if self._objects.engine is not None:
            return max(peaks) > TINY * self._scale
        for group in self._groups:
            peak = max(peaks[position] for position in group.positions)
            if self._shows(group, peak):
                return True
        return False


def _eps(tensor: Any) -> float:
    import torch

    return float(torch.finfo(tensor.dtype).eps)


def _is_fp32(tensor: Any) -> bool:
    return str(tensor.dtype) == "torch.float32"


def try_check(check: Callable[[], Evidence]) -> Evidence:
    """Return the finding of a check of what was saved; one that fails proves nothing, and ends no
    finished training.
    """
    try:
        return check()
    except Exception as error:
        failed = Evidence("saved_weights", None, describe_error(error))
        return failed.judge("trained", None)


def check_saved(folder: Path, model: Any, state: Mapping[str, Any] | None) -> Evidence:
    """Return the finding "saved_weights": they are finite, and in two rows of each tensor those in
    memory.

    `state`: the weights that were passed to save_pretrained, as gathered from all ranks under
    ZeRO-3.
    """
    from safetensors import safe_open

    live = {
        _file_key(name): stored(p) for name, p in model.named_parameters(remove_duplicate=False)
    }
    kept = {_file_key(name): weight for name, weight in (state or live).items()}
    how = f"two rows of each tensor in {folder.name}/, and every weight in memory"
    compared = 0
    others = []
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as saved:
            for name in sorted(live.keys() & saved.keys()):
                compared += 1
                if not _has_rows(saved.get_slice(name), live[name]):
                    others.append(name)
    return judge_saved(kept, compared, others, how)


def _has_rows(saved: Any, weight: Any) -> bool:
    """Return whether the first and the middle row of a tensor in a file are those that this rank
    stores of it.
    """
    import torch

    shape = saved.get_shape()
    width = math.prod(shape[1:])
    for number in {0, shape[0] // 2} if shape else ():
        row = saved[number : number + 1].reshape(-1)
        part = weight.reshape(-1)[number * width : (number + 1) * width]
        is_here = part.numel() == row.numel()  # a partition of ZeRO-3 ends before the tensor does
        if is_here and not torch.equal(part.to(device="cpu", dtype=row.dtype), row):
            return False
    return True


def judge_saved(
    kept: Mapping[str, Any], compared: int, others: Sequence[str], how: str
) -> Evidence:
    """Return the finding "saved_weights" on `kept`, what was saved, of whose `compared` tensors
    `others` differ.
    """
    finite = {name: _is_finite(stored(weight)).cpu() for name, weight in kept.items()}
    not_finite = [name for name, good in finite.items() if not bool(good)]
    if not_finite:
        value = "not finite"
        note = f"{len(not_finite)} of {len(kept)} tensors, as {not_finite[0]}"
    elif others:
        value = "others than in memory"
        note = f"{len(others)} of {compared} tensors, as {others[0]}"
    else:
        value = "trained"
        note = f"{compared} saved tensors were compared with memory"
    return Evidence("saved_weights", value, how, note=note).judge("trained", value == "trained")


def _file_key(name: str) -> str:
    """Return the name of a parameter in a file: PEFT leaves the adapter's name out
    (peft/utils/save_and_load.py).
    """
    return name.replace(".default.", ".") if "lora_" in name else name


def stored(parameter: Any) -> Any:
    """Return what this rank stores of a parameter: under ZeRO-3 and FSDP its part."""
    parameter = getattr(parameter, "ds_tensor", parameter).detach()
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def _spread(items: list[Any]) -> list[Any]:
    """Return at most 64 of the items, evenly spread."""
    return items[:: -(-len(items) // _SAMPLES) or 1]


def _samples(tensors: Iterable[Any]) -> list[Any]:
    """Return at most 64 elements of each tensor, evenly spread, as vectors of fp32."""
    flat = [stored(tensor).reshape(-1) for tensor in tensors]
    return [part[:: max(1, part.numel() // _SAMPLES)][:_SAMPLES].float() for part in flat]


def _sample(tensors: Iterable[Any]) -> Any:
    import torch

    parts = _samples(tensors)
    return torch.cat([part.to(parts[0].device) for part in parts])


def _chunks(tensor: Any) -> Iterator[Any]:
    flat = tensor.detach().reshape(-1)
    yield from (flat[start : start + _CHUNK] for start in range(0, flat.numel(), _CHUNK))


def _is_finite(tensor: Any) -> Any:
    import torch

    if not tensor.is_floating_point() or not tensor.numel():
        return torch.tensor(True)
    sums = [chunk.sum(dtype=torch.float64) for chunk in _chunks(tensor)]
    return torch.stack(sums).isfinite().all()


def checksum(tensor: Any, floor: float) -> Any:
    """Return the sum of the bits of a tensor, of elements below `floor` as zeros."""
    import torch

    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    for chunk in _chunks(tensor):
        kept = chunk.masked_fill(chunk.abs() < floor, 0) if chunk.is_floating_point() else chunk
        total += kept.contiguous().view(bits).sum(dtype=torch.int64)
    return total
