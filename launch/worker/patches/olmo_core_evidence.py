"""Checks what is in effect in OLMo-core's trainers before their first optimizer step."""

from __future__ import annotations

from typing import Any

from ..evidence import olmo_core
from ..expectations import report_evidence
from ..replacing import replaces
from .patch import PatchContext, PatchInfo


def _collect_evidence(context: PatchContext) -> None:
    from olmo_core.train.train_module import TransformerTrainModule

    zero = TransformerTrainModule.zero_grads
    first_inputs: list[olmo_core.DocumentInputs] = []
    passes: list[olmo_core.DocumentInputs] = []  # of the current optimizer step
    handles: list[Any] = []

    @replaces(TransformerTrainModule, "__init__")
    def build_and_hook(build: Any, self: Any, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)

        def record_inputs(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            inputs = olmo_core.describe_inputs(given, named) if module.training else None  # else it is the reference
            if inputs is not None:
                first_inputs.append(inputs)
                passes.append(inputs)

        handles.append(self.model.register_forward_pre_hook(record_inputs, with_kwargs=True))

    @replaces(TransformerTrainModule, "zero_grads")
    def zero_and_forget(_: Any, self: Any) -> None:
        zero(self)
        passes.clear()  # the trainer tries a batch before its first step

    @replaces(TransformerTrainModule, "optim_step")
    def collect_and_step(step: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        TransformerTrainModule.optim_step, TransformerTrainModule.zero_grads = step, zero
        for handle in handles:
            handle.remove()
        inputs = first_inputs[0] if first_inputs else None
        evidence = olmo_core.collect(self, inputs, context.trainer, context.requested)
        evidence += olmo_core.count_samples(passes, context.requested.get("global_batch"))
        report_evidence(evidence, context.allowed, context.events)
        return step(self, *arguments, **options)


PATCH = PatchInfo(
    id="olmo_core_evidence",
    reason="checks the requested settings in OLMo-core's own objects before the first optimizer step",
    lines={
        "olmo_core/train/train_module/transformer/train_module.py": {
            560: "def optim_step(self):",
            223: "self.max_grad_norm = max_grad_norm",
        },
        "olmo_core/nn/transformer/model.py": {497: '(doc_lens := kwargs.pop("doc_lens", None))'},
        "olmo_core/nn/attention/backend.py": {226: "cu_doc_lens: Optional[torch.Tensor] = None,"},
    },
    apply=_collect_evidence,
)
