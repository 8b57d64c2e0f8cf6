"""Resumes finetune.py and dpo_tune_cache.py at the very step and batch of a checkpoint.

`launch` adds this patch only to the command of a resumed run; its value is the checkpoint's folder
name, or the path of its converted form. What upstream does, and what this patch changes:

- Upstream picks the checkpoint by a marker that proves little. Here any other choice than
  `launch`'s ends the run.
- It counts `len(loader)` batches per epoch, but the last step of an epoch may take fewer batches
  than the others, so from the second epoch on it resumes at a wrong batch, even in a wrong epoch.
  Here the loader's length is rounded up to whole steps, which makes upstream's arithmetic correct.
- dpo_tune_cache.py skips the completed batches in every later epoch too. Here they are skipped only
  in the resumed epoch.
- A checkpoint of the last step makes it train one more step. Here no batch is left.
- dpo_tune_cache.py loads the checkpoint before it looks for the reference log-probabilities; if
  they are missing, it computes them with the half-trained model. Here it loads the checkpoint
  afterwards.
- accelerate saves what is counted by ranks or by micro batches: the schedule takes a step for each
  rank (scheduler.py:75), the number of micro batches decides when the optimizer steps, and DDP's
  wrapper is in the names of the weights. Here another width reads them in its own terms.
- The optimizer's state has the rate of the next step, by the schedule of the width that saved it. The
  two schedules differ where the rows are not a multiple of the global batch: one has epochs x
  ceil(ranks x rows / global batch) steps, warm-up in whole steps of these (finetune.py:684,
  dpo_tune_cache.py:434). Here the optimizer gets the rate of the schedule of this width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..hooks import replaces
from .patch import PatchContext, PatchError, PatchInfo

_ID = "exact_resume"
_WRAPPER = "module."  # what torch's DistributedDataParallel puts before the name of a weight


def round_to_steps(batches: int, accumulation: int) -> int:
    """Round the batches of an epoch up to whole optimizer steps of `accumulation` batches.

    >>> round_to_steps(5, 2)
    6
    """
    return -(-batches // accumulation) * accumulation


def _resume(context: PatchContext) -> None:
    _count_whole_steps()
    _load_at_any_width()
    _check_checkpoint(context)
    if context.trainer.script_name == "dpo_tune_cache.py":
        _load_after_reference(context)


def _count_whole_steps() -> None:
    from accelerate import Accelerator

    @replaces(Accelerator, "prepare_data_loader")
    def prepare_whole_steps(prepare: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        loader = prepare(self, *arguments, **options)
        plain = type(loader.base_dataloader)  # accelerate's loader takes its length from torch's
        accumulation = self.gradient_accumulation_steps

        class WholeSteps(plain):  # type: ignore[misc, valid-type]
            def __len__(self) -> int:
                return round_to_steps(super().__len__(), accumulation)

        loader.base_dataloader.__class__ = WholeSteps
        return loader


def _load_at_any_width() -> None:
    """Read the state that accelerate saved at the width of this process."""
    from accelerate import Accelerator, checkpointing

    @replaces(Accelerator, "load_state")
    def load_and_rescale(load: Any, self: Any, folder: Any, *arguments: Any, **options: Any) -> Any:
        loaded = load(self, folder, *arguments, **options)
        ranks = len(list(Path(folder).glob("random_states_*.pkl")))
        self.step = 0  # a checkpoint is written when the optimizer has stepped
        if ranks != self.num_processes:
            for scheduler in self._schedulers:
                schedule = getattr(scheduler, "scheduler", scheduler)
                move_schedule(schedule, schedule.last_epoch // ranks * self.num_processes)
        return loaded

    @replaces(checkpointing, "load_model")
    def load_unwrapped(load: Any, model: Any, file: Any, **options: Any) -> Any:
        return load(_match_names(model, file), file, **options)


def move_schedule(schedule: Any, step: int) -> None:
    """Move a schedule of transformers', which is a LambdaLR of torch's, to one of its own steps, and
    give its optimizer the rates of that step.
    """
    factors = [factor(step) for factor in schedule.lr_lambdas]
    rates = [base * factor for base, factor in zip(schedule.base_lrs, factors, strict=True)]
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule.last_epoch = step
    schedule._last_lr = rates


def _match_names(model: Any, file: Any) -> Any:
    """Return the model under the names that a file of weights has: with or without DDP's wrapper."""
    from safetensors import safe_open
    from torch.nn import Module

    with safe_open(file, framework="pt") as weights:
        is_wrapped = all(name.startswith(_WRAPPER) for name in weights.keys())  # noqa: SIM118
    if is_wrapped == hasattr(model, "module"):
        return model
    if not is_wrapped:
        return model.module
    wrapper = Module()
    wrapper.module = model
    return wrapper


def _check_checkpoint(context: PatchContext) -> None:
    """Check upstream's choice of the checkpoint, and skip the completed batches once."""
    from accelerate import Accelerator
    from open_instruct import utils

    given = Path(str(context.value))
    expected = given.name
    is_finished = False
    skipped = False

    @replaces(utils, "get_last_checkpoint_path")
    def choose_expected(choose: Any, args: Any, incomplete: bool = False) -> Any:
        nonlocal is_finished
        path = choose(args, incomplete)
        if incomplete:
            return path
        chosen = Path(path).name if path else "nothing"
        if chosen != expected:
            raise PatchError(_ID, f"the trainer would resume from {chosen}, not from {expected}")
        unit, _, number = expected.partition("_")
        is_finished = unit == "step" and int(number) >= args.max_train_steps
        context.events.emit("evidence", what="resumed_from", value=expected)
        path = str(given) if given.is_absolute() else path
        print(f"launch: resuming from {path}", flush=True)
        return path

    @replaces(Accelerator, "skip_first_batches")
    def skip_once(skip: Any, self: Any, dataloader: Any, num_batches: int = 0) -> Any:
        nonlocal skipped
        if is_finished:
            return []
        if skipped:
            return dataloader
        skipped = True
        return skip(self, dataloader, num_batches)


def _load_after_reference(context: PatchContext) -> None:
    from accelerate import Accelerator
    from open_instruct import dpo_utils

    loss = dpo_utils.DPOLossType(context.trainer.flag("loss_type") or dpo_utils.DPOConfig.loss_type)
    if not loss.needs_reference_model:
        return
    deferred: list[Callable[[], Any]] = []

    @replaces(Accelerator, "load_state")
    def load_later(load: Any, *arguments: Any, **options: Any) -> None:
        deferred.append(functools.partial(load, *arguments, **options))

    @replaces(dpo_utils, "build_reference_logprobs_cache")
    def build_and_load(build: Any, *arguments: Any, **options: Any) -> Any:
        cache = build(*arguments, **options)
        while deferred:
            deferred.pop()()
        return cache


RESUME = PatchInfo(
    id=_ID,
    reason="rounds the length of an epoch up to whole steps and skips the completed batches once: "
    "upstream resumes at a wrong batch, and skips data in later epochs",
    lines={
        "open_instruct/finetune.py": {
            744: "last_checkpoint_path = get_last_checkpoint_path(args)",
            759: "starting_epoch = resume_batch_idx // len(train_dataloader)",
            786: "active_dataloader = accelerator.skip_first_batches(train_dataloader, "
            "resume_batch_idx)",
        },
        "open_instruct/dpo_tune_cache.py": {
            497: "accelerator.load_state(last_checkpoint_path)",
            509: "starting_epoch = resume_step // len(train_dataloader)",
            522: "reference_cache = dpo_utils.build_reference_logprobs_cache(",
            558: "active_dataloader = accelerator.skip_first_batches(train_dataloader, "
            "resume_step)",
        },
        "accelerate/accelerator.py": {
            4314: "def skip_first_batches(self, dataloader, num_batches: int = 0):",
            1402: "return self.prepare_data_loader(obj, device_placement=device_placement)",
            1237: "self.gradient_state._set_sync_gradients((self.step % "
            "self.gradient_state.num_steps) == 0)",
            3713: "weights.append(self.get_state_dict(model, unwrap=False))",
        },
        "accelerate/checkpointing.py": {
            243: "load_model(model, input_model_file, device=str(map_location), "
            "**load_model_func_kwargs)",
        },
        "accelerate/scheduler.py": {
            75: "num_processes = AcceleratorState().num_processes",
        },
        "accelerate/data_loader.py": {
            469: "return len(self.base_dataloader)",
            1460: "iteration=dataloader.iteration,",
        },
    },
    apply=_resume,
    takes_value=True,  # the checkpoint's folder
)
