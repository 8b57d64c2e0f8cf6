"""Checks what is in effect in the trainer's own objects before the first optimizer step."""

from __future__ import annotations

import functools
from typing import Any

from .. import accelerator
from ..evidence.collector import EvidenceCollector
from ..replacing import replaces
from .patch import PatchContext, PatchInfo


def _collect_evidence(context: PatchContext) -> None:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.utils import DistributedType

    collector = EvidenceCollector(context.requested, context.allowed, context.trainer, context.events)
    accelerator.when_prepared(collector.model_prepared)
    accelerator.when_clipped(lambda _, max_norm, norm: collector.gradients_clipped(max_norm))

    @replaces(Accelerator, "backward")
    def collect_and_backward(backward: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        collector.backward_begins(self)
        result = backward(self, *arguments, **options)
        if self.distributed_type != DistributedType.DEEPSPEED or (self.sync_gradients and collector.step_ended()):
            Accelerator.backward = backward
        return result

    @replaces(Accelerator, "load_state")
    def load_and_notify(load_state: Any, self: Any, input_dir: Any = None, *arguments: Any, **options: Any) -> Any:
        loaded = load_state(self, input_dir, *arguments, **options)
        collector.state_loaded(input_dir)
        return loaded

    @replaces(AcceleratedOptimizer, "step")
    def collect_and_step(step: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        if self.gradient_state.sync_gradients:  # else this is one of several micro batches
            collector.step_begins()
        result = step(self, *arguments, **options)
        if self.gradient_state.sync_gradients and collector.step_ended():
            AcceleratedOptimizer.step = step
        return result

    _check_loaded_weights(collector)


def _check_loaded_weights(collector: EvidenceCollector) -> None:
    """Report which weights of a model its checkpoint lacks: transformers draws those at random, with a log line."""
    from transformers.modeling_utils import PreTrainedModel

    finalize = PreTrainedModel._finalize_model_loading

    @functools.wraps(finalize)
    def finalize_and_check(model: Any, load_config: Any, loading_info: Any) -> Any:
        info = finalize(model, load_config, loading_info)
        collector.weights_loaded(model, load_config.pretrained_model_name_or_path, info)
        return info

    PreTrainedModel._finalize_model_loading = staticmethod(finalize_and_check)


PATCH = PatchInfo(
    id="evidence",
    reason="checks the requested settings in the trainer's own objects before the first optimizer step",
    lines={
        "accelerate/accelerator.py": {
            1415: "def prepare(self, *args, device_placement=None):",
            2490: "self._models.append(engine)",
            2829: "def backward(self, loss, **kwargs):",
            2989: "def clip_grad_norm_(self, parameters, max_norm, norm_type=2):",
            3791: "def load_state(self, input_dir: str | None = None,",
        },
        "transformers/modeling_utils.py": {
            4597: "model, load_config: LoadStateDictConfig, loading_info: LoadStateDictInfo"
        },
        "accelerate/optimizer.py": {169: "if self.gradient_state.sync_gradients:"},
    },
    apply=_collect_evidence,
)
