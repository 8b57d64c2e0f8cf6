"""Collects evidence from the first step to the saved model; a requested setting that is not in
effect ends the rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..expectations import STATE, report_evidence
from ..patches.patch import PatchContext
from . import Evidence, batches, judge_all, kernels, precision, start, trainer_objects, updates
from .trainer_objects import TrainerObjects


class EvidenceCollector:
    """Follows one trainer."""

    def __init__(self, context: PatchContext) -> None:
        self._context = context
        self._requested = context.requested
        self._first_inputs: batches.ForwardInputs | None = None
        # the passes of the current optimizer step that train
        self._passes: list[batches.ForwardInputs] = []
        self._counts_samples = "global_batch" in context.requested
        self._packing: str | None = None  # in effect
        self._checkpoint: str | None = None
        self._clip_norm: float | None = None
        self._objects: TrainerObjects | None = None
        self._is_done = False
        self._steps = 0  # of this process
        self._updates: updates.Updates | None = None

    def model_prepared(self, model: Any) -> None:
        """Record the inputs of the model's first forward pass, and of those that train in the first
        step.
        """
        import torch

        is_first = True

        def record_inputs(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            nonlocal is_first
            positional = {"input_ids": arguments[0]} if arguments else {}
            inputs = {**positional, **named}
            described = batches.describe_inputs(inputs)
            if is_first:
                is_first = False
                self._first_inputs = described
                if "lora" in self._requested:
                    self._context.events.emit("first_rows", rows=batches.first_rows(inputs))
            if not self._counts_samples:
                handle.remove()
            elif described is not None and torch.is_grad_enabled():  # else it is the reference
                self._passes.append(described)

        handle = trainer_objects.find_forward(model).register_forward_pre_hook(
            record_inputs, with_kwargs=True
        )

    def weights_loaded(self, model: Any, source: object, info: Any) -> None:
        """Check what transformers reports of a model that it has just loaded from `source`."""
        self._report([start.check_weights(model, source, info)])

    def state_loaded(self, folder: object) -> None:
        """Note that `Accelerator.load_state` loads this folder."""
        self._checkpoint = str(folder)

    def gradients_clipped(self, norm: float) -> None:
        """Note that the trainer clips at `norm`; infinity only measures."""
        if norm != float("inf"):
            self._clip_norm = float(norm)

    def backward_begins(self, accelerator: Any) -> None:
        """Check everything but the clipping: the first micro batch has gone through the model."""
        if self._objects is not None:
            return
        self._objects = trainer_objects.find_trainer_objects(accelerator, self._checkpoint)
        self._report(self.collect(self._objects))
        if self._objects.engine is not None:  # which clips and steps within backward()
            self._report([precision.clipping(self._objects, None, self._requested.get("clip"))])
            self._is_done = True
        if self._objects.model is not None and self._objects.optimizer is not None:
            self._updates = updates.Updates(self._objects)

    def step_ended(self) -> None:
        """Check what the optimizer step changed."""
        # which steps within backward()
        if self._objects is not None and self._objects.engine is not None:
            self._count_samples()
        if self._updates is not None:
            self._steps += 1
            self._report(self._updates.after_step())

    def model_saved(self, model: Any, folder: object, state: Mapping[str, Any] | None) -> None:
        """Check the files of the model if `folder` is the trainer's output; a finding there ends no
        rank.
        """
        output = Path(self._context.trainer.flag("output_dir") or "").resolve()
        saved = Path(str(folder)).resolve()
        if self._context.trainer.script_name == "reward_modeling.py":
            saved = saved.parent  # it saves into a folder of its output (reward_modeling.py:195)
        if self._context.events.rank or saved != output:
            return

        def check() -> Evidence:
            return updates.check_saved(Path(str(folder)), model, state)

        followed = self._updates  # None in a resumed run with no step left
        findings = followed.at_end(check) if followed is not None else [updates.try_check(check)]
        for finding in findings:
            self._context.events.emit("evidence", **finding.fields())
        if self._objects is not None and self._objects.step is not None:
            self._context.events.emit("saved", step=self._objects.step + self._steps)

    def step_begins(self) -> None:
        """Check the samples and the clipping of a trainer without DeepSpeed, before its first
        optimizer step.
        """
        self._count_samples()
        if self._updates is not None:
            self._updates.note_gradients()
        if self._is_done or self._objects is None:
            return
        self._is_done = True
        clipping = precision.clipping(self._objects, self._clip_norm, self._requested.get("clip"))
        self._report([clipping])

    def collect(self, objects: TrainerObjects) -> list[Evidence]:
        """Collect everything but the clipping."""
        requested = self._requested
        first = self._first_inputs
        if objects.model is None:
            missing = requested.keys() - STATE
            unknown = [Evidence(what, None, "no model was prepared") for what in missing]
            return judge_all(unknown, requested)
        packing = batches.check_packing(objects, first)
        self._packing = packing.value
        found = [
            *precision.zero(objects, requested.get("zero_stage")),
            *kernels.check_liger(objects, requested.get("liger")),
            packing,
            *batches.check_global_batch(objects, packing.value),
            *([batches.check_balanced(objects, first)] if "balanced" in requested else []),
            *([batches.check_averaging(objects)] if "loss_averaging" in requested else []),
            *kernels.check_attention(objects, first, packing.value, requested.get("attention")),
            *precision.dtypes(objects),
            *start.check_adapter(objects, requested.get("lora")),
            precision.checkpointing(objects),
            start.check_template(
                objects.tokenizer, self._context.trainer, requested.get("chat_template")
            ),
            start.check_step(objects, requested.get("resumed_step")),
        ]
        return judge_all(found, requested)

    def _count_samples(self) -> None:
        """Check the samples of the step; in a resumed run until one is not the rest of an epoch."""
        if self._objects is None or not self._counts_samples:
            return
        passes = self._passes
        self._passes = []
        requested = self._requested["global_batch"]
        ranks = self._objects.accelerator.num_processes
        finding = batches.count_samples(
            passes, self._packing, ranks, requested, resumed=bool(self._objects.step)
        )
        # the rest of an epoch: the next step is whole
        self._counts_samples = finding.verdict is None
        self._report([finding])

    def _report(self, evidence: Sequence[Evidence]) -> None:
        report_evidence(evidence, self._context.allowed, self._context.events)
