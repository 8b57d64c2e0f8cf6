"""Collects evidence from OLMo-core's trainers, from the first optimizer step to the saved model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..expectations import report_evidence
from ..patches.patch import PatchContext
from . import REFUTED, Evidence, olmo_core, optimizer, optimizer_kind, order, rounding, rows
from .batches import NONE, PassRecorder, count_samples
from .saved_model import judge_saved, try_check
from .trainer_objects import TrainerObjects
from .updates import Updates


class OlmoCoreCollector:
    """Follows one trainer of OLMo-core; a requested setting that is not in effect ends the rank."""

    def __init__(self, context: PatchContext) -> None:
        self._context = context
        self._passes = PassRecorder()
        self.row_record = rows.RowRecord()
        self._trainer: Any = None  # olmo_core.train.Trainer, once the first step begins
        self._updates: Updates | None = None  # known once the first step begins
        self._rate_check: optimizer.RateCheck | None = None
        self._is_optimizer_checked = False
        self._is_refuted = False  # whether what was saved is not what was trained

    @property
    def has_begun(self) -> bool:
        """Whether the first optimizer step has begun."""
        return self._updates is not None

    def module_built(self, module: Any) -> None:
        """Record the inputs of the forward passes of `module`, a TransformerTrainModule."""
        self._passes.follow(module.model)

    def gradients_zeroed(self) -> None:
        """Forget the passes so far: the trainer runs a trial batch before its first step."""
        self._passes.take_training_passes()

    def first_step_begins(self, module: Any) -> None:
        """Check the settings by the passes of the first step, and follow the weights from here."""
        self._passes.stop()
        self._passes.first_training = None
        passes = self._passes.take_training_passes()
        requested = self._context.requested
        first_pass = passes[0] if passes else None
        evidence = olmo_core.collect(module, first_pass, self._context.trainer, requested)
        if "global_batch" in requested:
            ranks = olmo_core.count_ranks()
            evidence.append(count_samples(passes, NONE, ranks, requested["global_batch"]))
        self._trainer = module.trainer
        steps_done = self._trainer.global_step - 1
        objects = TrainerObjects(None, model=module.model, optimizer=module.optim, step=steps_done)
        evidence += optimizer.check_decay(objects, requested.get(optimizer.DECAY))
        evidence += optimizer.check_adam(module.optim.param_groups, self._context.trainer)
        steps = int(self._trainer.max_steps)
        count = optimizer.StepCount(steps, source="Trainer.max_steps of OLMo-core")
        loader = self._trainer.data_loader
        evidence += optimizer.check_steps(count, olmo_core.count_rows(loader), requested)
        evidence += order.check_olmo_core_order(loader, requested.get(order.ORDER_SEED))
        evidence += olmo_core.check_tokens(loader, requested.get("global_tokens"))
        evidence += olmo_core.check_limit(loader, requested.get(rows.LIMIT), self.row_record)
        mixture = requested.get(rows.MIXTURE)
        evidence += olmo_core.check_mixture(loader, self.row_record, mixture)
        evidence.append(olmo_core.check_step(self._trainer, requested.get("resumed_step")))
        evidence += olmo_core.check_learnt_answers(loader, requested)
        self.report(evidence)
        if optimizer.RateCheck.is_requested(requested):
            self._rate_check = optimizer.RateCheck(requested, optimizer.olmo_core_rates, count)
        if module.scheduler is not None:
            get_rate = module.scheduler.get_lr
            found = rounding.check_rounding(
                objects, lambda step: float(get_rate(1.0, step + 1, steps)), steps
            )
            rounding.report_rounding(found, self._context.allowed, self._context.events)
        self._updates = Updates(objects)

    def step_ended(self) -> None:
        """Check what an optimizer step changed."""
        if self._rate_check is not None:  # the schedule moves within the step
            groups = self._trainer.train_module.optim.param_groups
            rates = [float(group["lr"]) for group in groups]
            self.report(self._rate_check.step(self._trainer.global_step - 1, rates))
        if self._updates is not None:
            self._updates.note_gradients()  # the step has clipped the gradients by now
            self.report(self._updates.after_step())
            if not self._is_optimizer_checked:
                self._is_optimizer_checked = True
                requested = self._context.requested.get(optimizer_kind.KIND)
                optim = self._trainer.train_module.optim
                self.report(optimizer_kind.check_optimizer(optim, requested))

    def checkpoint_begins(self) -> None:
        """Send what the steps before a checkpoint have proven."""
        if self._updates is not None and self._context.events.rank == 0:
            for item in self._updates.so_far():
                self._context.events.emit("evidence", **item.fields())

    def checkpoint_saved(self, trainer: Any) -> None:
        """Check the checkpoint at the end of the training; a model of transformers is written after
        it.
        """
        folder = Path(str(trainer.save_folder)) / f"step{trainer.global_step}"
        model = trainer.train_module.model

        def check() -> Evidence:
            if self._context.events.rank:
                return judge_saved(dict(model.named_parameters()), 0, (), "its part")
            return olmo_core.check_checkpoint(folder, model)

        self._report_saved(check, is_last=False)

    def model_exported(self, model: Any, folder: Path) -> None:
        """Check a model of transformers that was made of the trained weights; nothing is written
        after it.
        """
        self._report_saved(lambda: olmo_core.check_export(folder, model), is_last=True)

    def _report_saved(self, check: Callable[[], Evidence], *, is_last: bool) -> None:
        """Report on what was saved.

        Every rank but the first reports only what is refuted in its part.
        """
        events = self._context.events
        is_first_rank = events.rank == 0
        followed = self._updates  # None in a resumed run that had no step left
        evidence = [try_check(check)] if followed is None else followed.at_end(check)
        if self._rate_check is not None:
            evidence += self._rate_check.summary()
        for item in evidence:
            if item.what == "saved_weights" and self._is_refuted:
                continue  # the evidence of the exported model can't overrule a refuted checkpoint
            if is_first_rank or item.verdict == REFUTED:
                events.emit("evidence", **item.fields())
            self._is_refuted |= item.what == "saved_weights" and item.verdict == REFUTED
        if is_first_rank and is_last and followed is not None:
            events.emit("saved", step=self._trainer.global_step)

    def report(self, evidence: Sequence[Evidence]) -> None:
        """Send evidence; end the rank if a requested setting is not in effect."""
        report_evidence(evidence, self._context.allowed, self._context.events)
