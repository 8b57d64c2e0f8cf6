"""Checks what is in effect in OLMo-core's trainers before their first optimizer step."""

from __future__ import annotations

import functools
from typing import Any

from ..evidence import olmo_core
from ..evidence.collector import report_findings
from .patch import PatchContext, PatchInfo, UpstreamSource, always_wanted

_MODULE = "olmo_core/train/train_module/transformer/train_module.py"


def _collect_evidence(context: PatchContext) -> None:
    from olmo_core.train.train_module import TransformerTrainModule

    build, step = TransformerTrainModule.__init__, TransformerTrainModule.optim_step
    first_inputs: list[olmo_core.DocumentInputs | None] = []

    @functools.wraps(build)
    def build_and_hook(self: Any, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)

        def record_inputs(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            if module.training:  # else this pass computes the reference
                handle.remove()
                first_inputs.append(olmo_core.describe_inputs(given, named))

        handle = self.model.register_forward_pre_hook(record_inputs, with_kwargs=True)

    @functools.wraps(step)
    def collect_and_step(self: Any, *arguments: Any, **options: Any) -> Any:
        TransformerTrainModule.optim_step = step
        inputs = first_inputs[0] if first_inputs else None
        report_findings(
            olmo_core.collect(self, inputs, context.trainer, context.expectations), context.allowed, context.events
        )
        return step(self, *arguments, **options)

    TransformerTrainModule.__init__ = build_and_hook
    TransformerTrainModule.optim_step = collect_and_step


PATCH = PatchInfo(
    id="olmo_core_evidence",
    reason="checks the requested settings in OLMo-core's own objects before the first optimizer step",
    wanted=always_wanted,
    condition="always",
    sources=(
        UpstreamSource(_MODULE, "def optim_step(self):", 560, 560, "3.0.0"),
        UpstreamSource(_MODULE, "self.max_grad_norm = max_grad_norm", 223, 223, "3.0.0"),
        UpstreamSource(
            "olmo_core/nn/transformer/model.py", '(doc_lens := kwargs.pop("doc_lens", None))', 497, 497, "3.0.0"
        ),
        UpstreamSource(
            "olmo_core/nn/attention/backend.py", "cu_doc_lens: Optional[torch.Tensor] = None,", 226, 226, "3.0.0"
        ),
    ),
    apply=_collect_evidence,
)
