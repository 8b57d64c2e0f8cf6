"""Collects evidence from the first step to the saved model; a requested setting that is not in
effect ends the rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..expectations import STATE, report_evidence
from ..patches.patch import PatchContext
from . import (
    Evidence,
    adapter_kind,
    batches,
    dealt,
    judge_all,
    kernels,
    learnt,
    objective,
    optimizer,
    optimizer_kind,
    order,
    precision,
    rounding,
    rows,
    saved_model,
    start,
    trainer_objects,
    updates,
)
from .trainer_objects import TrainerObjects

# Flags with which several ranks share a sequence.
_SPLIT_SAMPLES = ("sequence_parallel_size", "cp_degree", "context_parallel_degree")


class EvidenceCollector:
    """Follows one trainer."""

    def __init__(self, context: PatchContext) -> None:
        self._context = context
        self._requested = context.requested
        self._passes = batches.PassRecorder(self._send_first_rows)
        self._counts_samples = "global_batch" in context.requested
        self.row_record = rows.RowRecord()
        self._epoch = dealt.EpochRecorder()
        self._epoch_due: dealt.DueCounts | None = None  # the expected counts of all ranks
        self._epoch_steps = 0  # optimizer steps of an epoch
        self._mixture: Evidence | None = None  # the evidence "mixture" of the first step
        self._packing: str | None = None  # the packing in effect
        self._checkpoint: str | None = None  # the folder that the trainer has loaded
        self._clip_norm: float | None = None  # the norm that the trainer passes to accelerate
        self._objects: TrainerObjects | None = None  # known once the first backward pass begins
        self._is_clipping_checked = False
        self._steps = 0  # optimizer steps of this process
        self._updates: updates.Updates | None = None
        self._rate_check: optimizer.RateCheck | None = None
        # The learning rates of the optimizer's groups in the current step.
        self._rates: list[float] = []
        context.events.before_checkpoint(self._send_updates)

    def model_prepared(self, model: Any) -> None:
        """Record the inputs of the model's first forward pass, and of those of the first step."""
        forward = trainer_objects.find_forward(model)
        self._passes.follow(forward)
        if self._counts_epoch():
            self._epoch.follow(forward)

    def _counts_epoch(self) -> bool:
        """Whether the sequences of the passes are those of the rows, whose number is requested.

        No global batch is requested where several ranks share a sequence, nor in samples for bins.
        """
        requested = self._requested
        is_whole = "global_batch" in requested
        if requested.get("packing") == batches.BINS:
            trainer = self._context.trainer
            is_whole = not any(trainer.flag(name) for name in _SPLIT_SAMPLES)
        return is_whole and rows.MIXTURE in requested

    def _send_first_rows(self, inputs: Mapping[str, Any]) -> None:
        """Send the rows on which `launch merge` compares an adapter with the merged model."""
        if "lora" in self._requested:
            self._context.events.emit("first_rows", rows=batches.first_rows(inputs))

    def weights_loaded(self, model: Any, source: object, info: Any) -> None:
        """Check what transformers reports of a model that it has just loaded from `source`."""
        self.report([start.check_weights(model, source, info)])

    def state_loaded(self, folder: object) -> None:
        """Note that `Accelerator.load_state` loads this folder."""
        self._checkpoint = str(folder)

    def gradients_clipped(self, norm: float) -> None:
        """Note that the trainer clips at `norm`; infinity only measures."""
        if norm != float("inf"):
            self._clip_norm = float(norm)

    def backward_begins(self, accelerator: Any) -> None:
        """Check everything but the clipping. Called after the first forward pass of a micro batch."""
        if self._objects is not None:
            self._note_rates()
            return
        self._objects = trainer_objects.find_trainer_objects(accelerator, self._checkpoint)
        if not self._counts_samples:
            self._passes.stop()
        collected = self.collect(self._objects)
        self.report(collected)
        self._expect_epoch(self._objects, collected)
        if self._objects.engine is not None:  # DeepSpeed clips and steps within backward()
            self._check_clipping(self._objects)
        if self._objects.model is not None and self._objects.optimizer is not None:
            self._check_rounding(self._objects)
            self._updates = updates.Updates(self._objects)
            self._rate_check = self._make_rate_check(self._objects)
            self._note_rates()

    def _send_updates(self) -> None:
        """Send what the steps have proven so far: the checkpoint that follows is made of them."""
        items = self._updates.so_far() if self._updates is not None else []
        if self._rate_check is not None:
            items = [*items, *self._rate_check.summary()]
        for item in items:
            self._context.events.emit("evidence", **item.fields())

    def step_ended(self) -> None:
        """Check what the optimizer step changed."""
        if self._objects is not None and self._objects.engine is not None:
            # DeepSpeed steps within backward(), so that `step_begins` is not called.
            self._count_samples()
        if self._rate_check is not None:
            self.report(self._rate_check.step(self._steps_done(), self._rates))
        if self._updates is not None:
            self._steps += 1
            if self._steps == 1:
                self._check_optimizer()
            self._compare_epoch()
            self.report(self._updates.after_step())

    def model_saved(self, model: Any, folder: object, state: Mapping[str, Any] | None) -> None:
        """Check the files of the model if `folder` is the trainer's output; a fault there ends no
        rank.
        """
        output = Path(self._context.trainer.flag("output_dir") or "").resolve()
        saved = Path(str(folder)).resolve()
        if self._context.trainer.script_name == "reward_modeling.py":
            saved = saved.parent  # it saves into a folder of its output (reward_modeling.py:195)
        if self._context.events.rank or saved != output:
            return

        def check() -> Evidence:
            return saved_model.check_saved(Path(str(folder)), model, state)

        followed = self._updates  # None in a resumed run that had no step left
        evidence = [saved_model.try_check(check)] if followed is None else followed.at_end(check)
        if self._rate_check is not None:
            evidence += self._rate_check.summary()
        for item in evidence:
            self._context.events.emit("evidence", **item.fields())
        if self._objects is not None and self._objects.step is not None:
            self._context.events.emit("saved", step=self._steps_done())

    def step_begins(self) -> None:
        """Check the samples and the clipping of a trainer without DeepSpeed, before its first
        optimizer step.
        """
        self._count_samples()
        self._note_rates()
        if self._updates is not None:
            self._updates.note_gradients()
        if self._objects is not None:
            self._check_clipping(self._objects)

    def _check_optimizer(self) -> None:
        """Check the optimizer after a step, which has made its states."""
        assert self._objects is not None
        requested = self._requested.get(optimizer_kind.KIND)
        self.report(optimizer_kind.check_optimizer(self._objects.optimizer, requested))

    def _check_rounding(self, objects: TrainerObjects) -> None:
        """Check that the schedule's largest step can change the weights."""
        count = self._count_steps(objects)
        if count is None:
            return
        factor = rounding.find_factor(objects, count.per_step)
        found = rounding.check_rounding(objects, factor, count.total)
        rounding.report_rounding(found, self._context.allowed, self._context.events)

    def _check_clipping(self, objects: TrainerObjects) -> None:
        """Check the clipping of the first optimizer step."""
        if self._is_clipping_checked:
            return
        self._is_clipping_checked = True
        requested = self._requested.get("grad_clip")
        self.report([precision.check_clipping(objects, self._clip_norm, requested)])

    def collect(self, objects: TrainerObjects) -> list[Evidence]:
        """Collect everything but the clipping."""
        requested = self._requested
        first = self._passes.first_trained
        if objects.model is None:
            missing = requested.keys() - STATE
            unknown = [Evidence(what, None, "no model was prepared") for what in missing]
            return judge_all(unknown, requested)
        packing = batches.check_packing(objects, first)
        self._packing = packing.value
        template = requested.get("chat_template")
        evidence = [
            *precision.check_zero(objects, requested.get("zero_stage")),
            *kernels.check_liger(objects, requested.get("liger")),
            packing,
            *batches.check_epoch(objects, packing.value),
        ]
        if "balanced" in requested:
            evidence.append(batches.check_balanced(objects, self._passes.first))
        if "loss_averaging" in requested:
            evidence.append(batches.check_averaging(objects))
        evidence += [
            *kernels.check_attention(objects, first, packing.value, requested.get("attention")),
            *precision.check_dtypes(objects),
            *start.check_lora(objects, requested.get("lora"), requested.get(adapter_kind.MODULES)),
            *adapter_kind.check_adapter_kind(objects.model, requested, objects.step or 0),
            *start.check_adapter_settings(objects.model, requested),
            *start.check_adapter_targets(objects.model, requested.get("lora_targets")),
            *start.check_adapter_start(objects, requested.get("lora_start")),
            precision.check_checkpointing(objects),
            start.check_template(objects.tokenizer, self._context.trainer, template),
            start.check_step(objects, requested.get("resumed_step")),
            *optimizer.check_decay(objects, requested.get(optimizer.DECAY)),
            *optimizer.check_adam(
                getattr(objects.optimizer, "param_groups", ()), self._context.trainer
            ),
            *self._check_steps(objects),
            *objective.check_trl(objects.trainer, requested),
            *self._check_rows(objects),
        ]
        return judge_all(evidence, requested)

    def _check_rows(self, objects: TrainerObjects) -> list[Evidence]:
        """Check which rows the trainer deals."""
        script = self._context.trainer.script_name
        documents = self._passes.take_first_documents()
        requested = self._requested
        dataset: Any = getattr(objects.dataloader, "dataset", None)
        arguments = getattr(objects.trainer, "args", None)
        count = rows.count_loaded(dataset, self._packing, arguments)
        return [
            *order.check_order(
                objects, documents, script, requested.get(order.ORDER_SEED), self.row_record.sources
            ),
            *rows.check_longest(objects, requested.get(rows.LIMIT), self.row_record),
            *rows.check_mixture(self.row_record, count, requested.get(rows.MIXTURE)),
            *learnt.check_learnt(
                self.row_record.sources,
                learnt.read_dataset(dataset),
                objects.tokenizer,
                requested.get(learnt.LEARNT),
                requested.get(rows.LIMIT),
            ),
        ]

    def _expect_epoch(self, objects: TrainerObjects, collected: Sequence[Evidence]) -> None:
        """Note the expected counts of the first whole epoch; stop counting if none is known."""
        self._mixture = next((item for item in collected if item.what == rows.MIXTURE), None)
        script = self._context.trainer.script_name
        self._epoch_due = dealt.expect_epoch(objects, self._packing, script)
        arguments = objects.arguments if objects.trainer is None else objects.trainer.args
        accumulation = int(getattr(arguments, "gradient_accumulation_steps", 0) or 0)
        if self._mixture is None or self._epoch_due is None or not accumulation:
            self._epoch.stop()
            return
        self._epoch_steps = -(-len(objects.dataloader) // accumulation)

    def _compare_epoch(self) -> None:
        """Compare the counts of the first whole epoch with those of its rows, once it ends."""
        if not self._epoch.is_counting or self._epoch_due is None or self._mixture is None:
            return
        assert self._objects is not None
        if self._steps_done() % self._epoch_steps:
            return
        if self._steps < self._epoch_steps:  # a resumed run began within this epoch
            self._epoch.reset()
            return
        self._epoch.stop()
        found = self._epoch.read_all(self._packing, self._objects.accelerator)
        self.report([rows.add_epoch(self._mixture, found, self._epoch_due)])

    def _check_steps(self, objects: TrainerObjects) -> list[Evidence]:
        """Check how many optimizer steps the trainer will make, where that is requested."""
        if self._requested.keys().isdisjoint((optimizer.EPOCHS, optimizer.MAX_STEPS)):
            return []
        count = self._count_steps(objects)
        rows_of_steps = optimizer.count_rows(objects)
        return optimizer.check_steps(count, rows_of_steps, self._requested)

    def _count_steps(self, objects: TrainerObjects) -> optimizer.StepCount | None:
        epochs = self._requested.get(optimizer.EPOCHS)
        script = self._context.trainer.script_name
        return optimizer.read_step_count(objects, script, None if epochs is None else int(epochs))

    def _make_rate_check(self, objects: TrainerObjects) -> optimizer.RateCheck | None:
        """Return what compares the rate of each step; None if no schedule is requested."""
        count = self._count_steps(objects)
        if count is None or not optimizer.RateCheck.is_requested(self._requested):
            return None
        return optimizer.RateCheck(self._requested, optimizer.transformers_rates, count)

    def _note_rates(self) -> None:
        """Note the rates of the next optimizer step: DeepSpeed may move its schedule within it."""
        if self._objects is not None and self._objects.optimizer is not None:
            self._rates = [float(group["lr"]) for group in self._objects.optimizer.param_groups]

    def _steps_done(self) -> int:
        """Return the optimizer steps that the run has done, those before a resume included."""
        before = 0 if self._objects is None else self._objects.step or 0
        return before + self._steps

    def _count_samples(self) -> None:
        """Check the samples of the first step that is not shortened by the end of an epoch."""
        if self._objects is None or not self._counts_samples:
            return
        evidence = batches.count_samples(
            self._passes.take_training_passes(),
            self._packing,
            self._objects.accelerator.num_processes,
            self._requested["global_batch"],
            resumed=bool(self._objects.step),
        )
        if evidence.verdict is not None:
            self._counts_samples = False
            self._passes.stop()
        # Without a verdict the step had the last rows of an epoch, and the next step is whole.
        self.report([evidence])

    def report(self, evidence: Sequence[Evidence]) -> None:
        """Send evidence; end the rank if a requested setting is not in effect."""
        report_evidence(evidence, self._context.allowed, self._context.events)
