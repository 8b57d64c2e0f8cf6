"""Checks the optimizer against the recipe: its learning rate at every step, the number of steps, and its weight decay.

The rate that a step is expected to have is computed from the recipe's own numbers and from what the
library calls `linear` or `cosine`; the trainer's own schedule is not read. Rates are numbers on the
host, so a step costs a few comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..trainer import TrainerProgram
from ..wording import count_of
from . import Evidence
from .trainer_objects import TrainerObjects

PEAK = "learning_rate"
SHAPE = "lr_scheduler"
WARMUP = "warmup_ratio"
DECAY = "weight_decay"
BETAS = "adam_betas"
EPSILON = "adam_epsilon"
EPOCHS = "epochs"
MAX_STEPS = "max_steps"

# A rate differs from the expected one if it is further from it than this share of the peak:
# OLMo-core keeps rates in fp32, and a schedule of a million steps changes by 1e-6 in one.
_TOLERANCE = 1e-7

# Betas and epsilon of Adam: torch's, transformers' and OLMo-core's defaults, and what the scripts
# have in their place (olmo_core_finetune.py:267, reward_modeling.py:98).
_BETAS = (0.9, 0.999)
_EPSILON = 1e-8
_BETAS_OF_SCRIPT = {"olmo_core_finetune.py": (0.9, 0.95)}
_EPSILON_OF_SCRIPT = {"reward_modeling.py": 1e-5}
# With these flags the optimizer has settings of its own.
_OTHER_SETTINGS = ("optim_args", "optimizer_kwargs", "optimizer_type")
_GROUPS = "lr in the optimizer's param_groups"

# A function from the number of optimizer steps done so far to the learning rate of the next step.
RateSchedule = Callable[[int], float]


@dataclass(frozen=True)
class StepCount:
    """The optimizer steps that a run consists of, and how its trainer counts them in a schedule."""

    total: int
    per_step: int = 1  # steps that the schedule makes in one optimizer step
    scheduled: int | None = None  # steps of the schedule in all; None: total * per_step
    rounds_up: bool = False  # whether a fractional number of warm-up steps is rounded up
    source: str = "the trainer's own count"  # the attribute that has the steps

    @property
    def schedule_total(self) -> int:
        return self.total * self.per_step if self.scheduled is None else self.scheduled

    def warmup(self, ratio: float) -> int:
        """Return the steps of the schedule that warm up."""
        steps = self.schedule_total * ratio
        return math.ceil(steps) if self.rounds_up else int(steps)


def transformers_rates(name: str, peak: float, ratio: float, count: StepCount) -> RateSchedule:
    """Return the rates that transformers' schedule `name` gives optimizer steps
    (transformers/optimization.py, get_scheduler). `ratio`: the share of the steps that warm up.

    Raises ValueError for a schedule that depends on more than the step.
    """
    import torch
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=peak)
    schedule = get_scheduler(
        name,
        optimizer,
        num_warmup_steps=count.warmup(ratio),
        num_training_steps=count.schedule_total,
    )
    factors: Sequence[RateSchedule] = getattr(schedule, "lr_lambdas", ())
    if not factors:
        raise ValueError(f"{name} depends on more than the step")
    return lambda step: peak * factors[0](step * count.per_step)


def olmo_core_rates(name: str, peak: float, ratio: float, count: StepCount) -> RateSchedule:
    """Return the rates that OLMo-core's schedule `name` gives optimizer steps
    (open_instruct/olmo_core_utils.py:279-288, olmo_core/optim/scheduler.py).

    OLMo-core counts the step that it makes, so the first one is step 1.
    """
    from open_instruct.olmo_core_utils import build_scheduler

    schedule = build_scheduler(name, ratio, count.schedule_total)
    return lambda step: float(schedule.get_lr(peak, step + 1, count.schedule_total))


def read_step_count(
    objects: TrainerObjects, script: str | None, epochs: int | None
) -> StepCount | None:
    """Return the steps of a run by the variables of its training loop; None if these are missing.

    `epochs`: None if the number of steps is requested instead. finetune.py and dpo_tune_cache.py
    step their schedule once for each rank; for epochs, its length is what one rank would make of
    all rows (finetune.py:676-703, dpo_tune_cache.py:433-459).
    """
    if objects.trainer is not None:
        of_run = int(objects.trainer.state.max_steps)
        return StepCount(of_run, rounds_up=True, source="TrainerState.max_steps")
    arguments = objects.arguments
    if script == "reward_modeling.py":
        scheduled = getattr(arguments, "num_training_steps", None)
        if scheduled is None or objects.dataloader is None:
            return None
        # accelerate makes a step of the last batches of an epoch, which the script does not count
        # (reward_modeling.py:288, accelerate/accelerator.py, `_do_sync`).
        passes = len(objects.dataloader)
        of_epoch = math.ceil(passes / int(arguments.gradient_accumulation_steps))
        of_run = of_epoch * int(arguments.num_train_epochs)
        source = "args.num_train_epochs and the length of the data loader"
        return StepCount(of_run, scheduled=int(scheduled), source=source)
    total = getattr(arguments, "max_train_steps", None)
    if total is None:
        return None
    ranks = int(objects.accelerator.num_processes)
    dataset = getattr(objects.dataloader, "dataset", None)
    scheduled = None
    if epochs is not None and dataset is not None:
        passes = math.ceil(len(dataset) / int(arguments.per_device_train_batch_size))
        scheduled = epochs * math.ceil(passes / int(arguments.gradient_accumulation_steps))
    return StepCount(int(total), ranks, scheduled, source="args.max_train_steps")


def count_rows(objects: TrainerObjects) -> tuple[int, int] | None:
    """Return the rows of an epoch and those of an optimizer step; None if they are not known."""
    ranks = int(objects.accelerator.num_processes)
    if objects.trainer is not None:
        arguments = objects.trainer.args
        if not hasattr(objects.trainer.train_dataset, "__len__"):  # it is streamed
            return None
        rows = len(objects.trainer.train_dataset)
        # GRPO's rows are prompts, and its batches count completions.
        rows *= getattr(objects.trainer, "num_generations", 1)
        rows *= getattr(objects.trainer, "num_iterations", 1)
    else:
        arguments = objects.arguments
        dataset = getattr(objects.dataloader, "dataset", None)
        if arguments is None or dataset is None:
            return None
        rows = len(dataset)
    size = int(arguments.per_device_train_batch_size)
    return rows, size * ranks * int(arguments.gradient_accumulation_steps)


class RateCheck:
    """Compares the rate of every optimizer step with the one that the recipe requests."""

    def __init__(
        self,
        requested: Mapping[str, str],
        schedule: Callable[[str, float, float, StepCount], RateSchedule],
        count: StepCount,
    ) -> None:
        ratio = float(requested[WARMUP])
        self._requested = {name: requested[name] for name in (PEAK, SHAPE, WARMUP)}
        self._peak = float(requested[PEAK])
        self._expected = schedule(requested[SHAPE], self._peak, ratio, count)
        self._total = count.total
        self._warmup = count.warmup(ratio) / count.per_step  # optimizer steps
        self._last = 0  # the last step that was compared, from 1
        self._compared = 0
        self._has_risen = False  # whether an expected rate was above 0; a warm-up begins at 0
        self._is_refuted = False

    @staticmethod
    def is_requested(requested: Mapping[str, str]) -> bool:
        return all(name in requested for name in (PEAK, SHAPE, WARMUP))

    def step(self, done: int, rates: Sequence[float]) -> list[Evidence]:
        """Compare the rates of the optimizer's groups in the step that follows `done` ones.

        Returns the evidence on the first step of this process, and on the first one whose rate
        differs; [] for every other.
        """
        if self._is_refuted:  # `allow` lets such a run continue
            return []
        expected = self._expected(done)
        furthest = max(rates, key=lambda rate: abs(rate - expected))
        self._last = done + 1
        if not abs(furthest - expected) <= _TOLERANCE * self._peak:  # this is also true for NaN
            self._is_refuted = True
            return [self._refute(furthest, expected)]
        self._compared += 1
        self._has_risen |= expected > 0
        return self.summary() if self._compared == 1 else []

    def summary(self) -> list[Evidence]:
        """Return what the steps so far have shown."""
        if self._is_refuted or not self._compared:
            return []
        steps = count_of(self._compared, "step")
        note = f"{steps} had the recipe's rate, the last of them step {self._last} of {self._total}"
        return [
            Evidence(name, value, _GROUPS, note=note).compare(value)
            for name, value in self._requested.items()
        ]

    def _refute(self, rate: float, expected: float) -> Evidence:
        """Return the evidence that a step has another rate than expected.

        It refutes the peak if no earlier step had an expected rate above 0, else the warm-up or the
        schedule, depending on where the step is.
        """
        name = PEAK
        if self._has_risen:
            name = WARMUP if self._last <= self._warmup else SHAPE
        note = (
            f"step {self._last} has a rate of {rate:.4g} where {expected:.4g} is due: "
            f"{self._requested[SHAPE]} over {self._total} steps, peak {self._peak:g}, "
            f"warm-up {self._requested[WARMUP]}"
        )
        found = Evidence(name, f"{rate:.4g} at step {self._last}", _GROUPS, note=note)
        return found.judge(self._requested[name], False)


def check_steps(
    count: StepCount | None, rows: tuple[int, int] | None, requested: Mapping[str, str]
) -> list[Evidence]:
    """Return the evidence on how many optimizer steps the trainer will make.

    `count` is None if the steps are not known. `rows`: those of an epoch and of an optimizer step;
    None if they are not known.
    """
    total = None
    how = "the steps were not found"
    if count is not None:
        total = count.total
        how = f"{count.source}, before the first step"
    if MAX_STEPS in requested:
        return [Evidence(MAX_STEPS, total, how).compare(requested[MAX_STEPS])]
    if EPOCHS not in requested:
        return []
    epochs = requested[EPOCHS]
    if total is None or rows is None:
        missing = "the trainer's steps" if total is None else "the rows of an epoch"
        return [Evidence(EPOCHS, None, f"{missing} were not found").judge(epochs, None)]
    due = bound_steps(*rows, int(epochs))
    holds = total in due
    due_steps = count_of(due[0], "step") if len(due) == 1 else f"{due[0]} to {due[-1]} steps"
    passes = f"{count_of(int(epochs), 'pass')} over {count_of(rows[0], 'row')}"
    of_rows = f"{passes} in steps of {rows[1]} make {due_steps}"
    note = f"the trainer plans {count_of(total, 'step')}, and {of_rows}"
    value = epochs if holds else count_of(total, "step")
    return [Evidence(EPOCHS, value, how, note=note).judge(epochs, holds)]


def bound_steps(rows: int, batch: int, epochs: int) -> range:
    """Return the numbers of optimizer steps that `epochs` of `rows` may take: the last rows of an
    epoch may be dropped, or make a smaller step.

    >>> bound_steps(10, 4, 3)
    range(6, 10)
    """
    return range(rows // batch * epochs, math.ceil(rows / batch) * epochs + 1)


def check_decay(objects: TrainerObjects, requested: str | None) -> list[Evidence]:
    """Return the evidence "weight_decay": that of every trained matrix, in the optimizer's groups.

    Vectors and embeddings may have another one: open-instruct does not decay biases and norms
    (utils.py:1507-1529), nor do transformers and OLMo-core. DeepSpeed's groups hold flat copies, so
    there the largest group counts.
    """
    if requested is None or objects.optimizer is None:
        return []
    groups = objects.optimizer.param_groups
    decays = _decays_of_matrices(objects, groups)
    how = "weight_decay in the optimizer's param_groups of trained matrices"
    if not decays:
        largest = max(groups, key=lambda group: sum(p.numel() for p in group["params"]))
        decays = {float(largest["weight_decay"])}
        how = "weight_decay in the largest of the optimizer's param_groups"
    value = ",".join(f"{decay:g}" for decay in sorted(decays))
    return [Evidence(DECAY, value, how).judge(requested, decays == {float(requested)})]


def check_adam(groups: Sequence[Mapping[str, Any]], program: TrainerProgram) -> list[Evidence]:
    """Return the evidence on Adam's betas and epsilon in the optimizer's groups, against the flags
    of the command line, or the trainer's defaults.

    No evidence is returned for an optimizer without betas, or with settings of its own (Lion,
    AdEMAMix).
    """
    if any(program.flag(name) is not None for name in _OTHER_SETTINGS):
        return []
    if "adamw" not in str(program.flag("optim") or "adamw"):
        return []
    if not groups or not all("betas" in group and "eps" in group for group in groups):
        return []
    script = program.script_name
    default = _BETAS_OF_SCRIPT.get(script, _BETAS)
    betas = tuple(
        float(program.flag(name) or value)
        for name, value in zip(("adam_beta1", "adam_beta2"), default, strict=True)
    )
    epsilon = program.flag("adam_epsilon")
    if script == "reward_modeling.py":
        epsilon = program.flag("eps")
    epsilon_due = float(epsilon or _EPSILON_OF_SCRIPT.get(script, _EPSILON))
    due: dict[str, tuple[float, ...]] = {BETAS: betas, EPSILON: (epsilon_due,)}
    found: dict[str, set[tuple[float, ...]]] = {
        BETAS: {tuple(map(float, group["betas"])) for group in groups},
        EPSILON: {(float(group["eps"]),) for group in groups},
    }
    how = "the optimizer's param_groups, against the trainer's flags and defaults"
    return [
        Evidence(name, "; ".join(map(_format_numbers, sorted(found[name]))), how).judge(
            _format_numbers(value), found[name] == {value}
        )
        for name, value in due.items()
    ]


def _format_numbers(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


def _decays_of_matrices(objects: TrainerObjects, groups: Sequence[Mapping[str, Any]]) -> set[float]:
    matrices = _find_matrices(objects.model)
    decays = set()
    for group in groups:
        if any(id(parameter) in matrices for parameter in group["params"]):
            decays.add(float(group.get("weight_decay") or 0))
    return decays


def _find_matrices(model: Any) -> set[int]:
    """Return the ids of the trained parameters that are matrices, without those of embeddings."""
    matrices = set()
    embeddings = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if "Embedding" in type(module).__name__:
                embeddings.add(id(parameter))
            elif parameter.requires_grad and len(_whole_shape(parameter)) > 1:
                matrices.add(id(parameter))
    return matrices - embeddings


def _whole_shape(parameter: Any) -> Sequence[int]:
    """Return the shape of a parameter before ZeRO-3 partitioned it and emptied its tensor."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))
