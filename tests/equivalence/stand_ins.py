"""What the old scripts need beside today's libraries, and what makes both sides fp32: each a
stand-in with its reason.

`STAND_INS` is the table of docs/explanation/tulu3.md. Nothing else of either side is changed. Each
rank applies its own (EQUIVALENCE_STAND_INS) before its script is read (site/sitecustomize.py).
"""

from __future__ import annotations

import functools
import json
import os
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class StandIn:
    """`apply` runs in each rank before the script."""

    replaces: str
    reason: str
    apply: Callable[[], None]


def _add_transformers_cache() -> None:
    from transformers.utils import hub

    hub.TRANSFORMERS_CACHE = None


def _add_module(name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def _add_litellm() -> None:
    _add_module("litellm", acompletion=None)


def _add_matplotlib() -> None:
    _add_module("matplotlib")
    _add_module("matplotlib.pyplot")


def _return_token_ids() -> None:
    from transformers import PreTrainedTokenizerBase

    original = PreTrainedTokenizerBase.apply_chat_template

    @functools.wraps(original)
    def apply_chat_template(self: Any, *arguments: Any, **options: Any) -> Any:
        return original(self, *arguments, **{"return_dict": False, **options})

    PreTrainedTokenizerBase.apply_chat_template = apply_chat_template


def _report_no_gpu_memory() -> None:
    import torch

    torch.cuda.current_device = lambda: 0
    torch.cuda.max_memory_reserved = lambda device=None: 0
    torch.cuda.max_memory_allocated = lambda device=None: 0


def _register_again() -> None:
    from transformers import AutoModelForSequenceClassification

    original = AutoModelForSequenceClassification.register

    def register(config: Any, model: Any, exist_ok: bool = True) -> None:
        original(config, model, exist_ok=exist_ok)

    AutoModelForSequenceClassification.register = register


def _take_old_accelerator() -> None:
    from accelerate import Accelerator, DataLoaderConfiguration

    construct = Accelerator.__init__

    @functools.wraps(construct)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        if options.pop("use_seedable_sampler", False):
            options["dataloader_config"] = DataLoaderConfiguration(use_seedable_sampler=True)
        construct(self, *arguments, **options)

    Accelerator.__init__ = init


def _leave_out_empty_groups() -> None:
    import torch

    construct = torch.optim.AdamW.__init__

    @functools.wraps(construct)
    def init(self: Any, params: Any, *arguments: Any, **options: Any) -> None:
        groups = [group for group in params if not isinstance(group, dict) or group["params"]]
        construct(self, groups, *arguments, **options)

    torch.optim.AdamW.__init__ = init


def _train_in_fp32() -> None:
    import torch
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    load = PreTrainedModel.from_pretrained.__func__
    construct = Accelerator.__init__

    def from_pretrained(cls: Any, *arguments: Any, **options: Any) -> Any:
        options.pop("torch_dtype", None)
        return load(cls, *arguments, **{**options, "dtype": torch.float32})

    @functools.wraps(construct)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        construct(self, *arguments, **{**options, "mixed_precision": "no"})

    PreTrainedModel.from_pretrained = classmethod(from_pretrained)
    Accelerator.__init__ = init


def _record() -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    from transformers import PreTrainedModel

    path = Path(os.environ["EQUIVALENCE_RECORD"]) / f"rank-{os.environ.get('RANK', '0')}.jsonl"
    out = path.open("a", encoding="utf-8")
    load = PreTrainedModel.from_pretrained.__func__

    def write(**fields: Any) -> None:
        out.write(json.dumps(fields) + "\n")
        out.flush()

    def on_forward(model: Any, arguments: Any, named: dict[str, Any]) -> None:
        if not (model.training and torch.is_grad_enabled()):
            return
        tensors = {"input_ids": arguments[0], **named} if arguments else named
        names = ("input_ids", "labels", "attention_mask", "position_ids")
        write(
            batch={
                name: tensors[name].tolist()
                for name in names
                if hasattr(tensors.get(name), "tolist")
            }
        )

    def on_step(optimizer: Any, arguments: Any, named: Any) -> None:
        groups = optimizer.param_groups
        gradients = [parameter.grad for group in groups for parameter in group["params"]]
        norms = [gradient.double().norm() for gradient in gradients if gradient is not None]
        write(
            rates=sorted({group["lr"] for group in groups}), norm=float(torch.stack(norms).norm())
        )

    def from_pretrained(cls: Any, *arguments: Any, **options: Any) -> Any:
        model = load(cls, *arguments, **options)
        # get_reward calls the model without its head
        called = model.base_model if hasattr(model, "score") else model
        called.register_forward_pre_hook(on_forward, with_kwargs=True)
        return model

    PreTrainedModel.from_pretrained = classmethod(from_pretrained)
    register_optimizer_step_pre_hook(on_step)


STAND_INS = {
    "transformers_cache": StandIn(
        "transformers.utils.hub.TRANSFORMERS_CACHE",
        "transformers 5 lacks it; used to look for a tokenizer's commit",
        _add_transformers_cache,
    ),
    "litellm": StandIn(
        "litellm.acompletion", "imported for a judge, which no training calls", _add_litellm
    ),
    "matplotlib": StandIn(
        "matplotlib.pyplot", "imported for a plot, which no training here draws", _add_matplotlib
    ),
    "token_ids": StandIn(
        "apply_chat_template(return_dict=False)",
        "transformers 5 returns a dictionary by default",
        _return_token_ids,
    ),
    "gpu_memory": StandIn(
        "torch.cuda.current_device, max_memory_reserved, max_memory_allocated",
        "the scripts log a GPU's memory, also without one",
        _report_no_gpu_memory,
    ),
    "registered_models": StandIn(
        "AutoModelForSequenceClassification.register(exist_ok=True)",
        "transformers 5 has the OLMo classifiers that reward_modeling.py registers",
        _register_again,
    ),
    "old_accelerator": StandIn(
        "Accelerator(use_seedable_sampler=True)",
        "accelerate 1 takes it in a DataLoaderConfiguration",
        _take_old_accelerator,
    ),
    "empty_group": StandIn(
        "torch.optim.AdamW(groups with parameters)",
        "DeepSpeed drops a group without parameters, as Llama's biases are, which torch's "
        "schedulers now refuse",
        _leave_out_empty_groups,
    ),
    "fp32": StandIn(
        "from_pretrained(dtype=float32), Accelerator(mixed_precision=no)",
        "the scripts load bf16 whatever they are given; on both sides, but for the bf16 pair",
        _train_in_fp32,
    ),
    "record": StandIn(
        "a hook of the model and of the optimizer",
        "writes batches, rates and norms; on both sides",
        _record,
    ),
}


def apply(names: Sequence[str]) -> None:
    """Apply the stand-ins of these names."""
    for name in names:
        STAND_INS[name].apply()
