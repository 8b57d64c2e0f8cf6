"""The patch of OLMo-core's optimizer that lets a model train on one GPU."""

from __future__ import annotations

from typing import Any

from ..hooks import replaces
from .patch import PatchContext, PatchInfo


def _update_weights_singly(_: PatchContext) -> None:
    from olmo_core.optim import SkipStepAdamWConfig

    @replaces(SkipStepAdamWConfig, "__init__")
    def set_foreach(build: Any, self: Any, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **{**options, "foreach": False})


ONE_BY_ONE = PatchInfo(
    id="olmo_core_single_step",
    reason="has OLMo-core's AdamW update one weight after the other (foreach=False), by the same "
    "formula with other rounding: all at once would need three more fp32 copies on one GPU",
    lines={
        "olmo_core/optim/adamw.py": {
            264: "foreach: bool = True",
            82: "grad_squares = torch._foreach_mul(grads, grads)",
        },
        "open_instruct/olmo_core_finetune.py": {267: "optim=optim.SkipStepAdamWConfig("},
    },
    apply=_update_weights_singly,
)
