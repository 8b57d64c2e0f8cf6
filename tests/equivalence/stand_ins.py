"""What the old scripts need beside today's libraries, and what makes both sides fp32: each a stand-in with its reason.

Nothing else of either side is changed. `STAND_INS` is the table of the page docs/explanation/tulu3.md.
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

    reason: str
    apply: Callable[[], None]


def _transformers_cache() -> None:
    from transformers.utils import hub

    hub.TRANSFORMERS_CACHE = None  # type: ignore[attr-defined]


def _module(name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def _litellm() -> None:
    _module("litellm", acompletion=None)


def _chat_template_ids() -> None:
    from transformers import PreTrainedTokenizerBase

    original = PreTrainedTokenizerBase.apply_chat_template

    @functools.wraps(original)
    def apply_chat_template(self: Any, *arguments: Any, **options: Any) -> Any:
        return original(self, *arguments, **{"return_dict": False, **options})

    PreTrainedTokenizerBase.apply_chat_template = apply_chat_template  # type: ignore[method-assign]


def _cuda_memory() -> None:
    import torch

    torch.cuda.current_device = lambda: 0
    torch.cuda.max_memory_reserved = lambda device=None: 0
    torch.cuda.max_memory_allocated = lambda device=None: 0


def _fp32() -> None:
    import torch
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    load = PreTrainedModel.from_pretrained.__func__  # type: ignore[attr-defined]
    construct = Accelerator.__init__

    def from_pretrained(cls: Any, *arguments: Any, **options: Any) -> Any:
        options.pop("torch_dtype", None)
        return load(cls, *arguments, **{**options, "dtype": torch.float32})

    @functools.wraps(construct)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        construct(self, *arguments, **{**options, "mixed_precision": "no"})

    PreTrainedModel.from_pretrained = classmethod(from_pretrained)  # type: ignore[assignment]
    Accelerator.__init__ = init  # type: ignore[method-assign]


def _record() -> None:
    import torch
    from transformers import PreTrainedModel

    folder, rank = Path(os.environ["EQUIVALENCE_RECORD"]), os.environ.get("RANK", "0")
    out = (folder / f"rank-{rank}.jsonl").open("a")
    load = PreTrainedModel.from_pretrained.__func__  # type: ignore[attr-defined]

    def write(**fields: Any) -> None:
        out.write(json.dumps(fields) + "\n")
        out.flush()

    def on_forward(model: Any, arguments: Any, named: dict[str, Any]) -> None:
        names = ("input_ids", "labels", "attention_mask", "position_ids")
        batch = {name: named[name].tolist() for name in names if hasattr(named.get(name), "tolist")}
        if arguments:
            batch["input_ids"] = arguments[0].tolist()
        write(batch=batch, training=model.training and torch.is_grad_enabled())

    def on_step(optimizer: Any, arguments: Any, named: Any) -> None:
        groups = optimizer.param_groups
        norms = [
            parameter.grad.double().norm()
            for group in groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        write(
            rates=[group["lr"] for group in groups],
            groups=[[group["weight_decay"], group["eps"], *group["betas"]] for group in groups],
            sizes=[len(group["params"]) for group in groups],
            norm=float(torch.stack(norms).norm()) if norms else 0.0,
        )

    def from_pretrained(cls: Any, *arguments: Any, **options: Any) -> Any:
        model = load(cls, *arguments, **options)
        model.register_forward_pre_hook(on_forward, with_kwargs=True)
        return model

    PreTrainedModel.from_pretrained = classmethod(from_pretrained)  # type: ignore[assignment]
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(on_step)


STAND_INS = {
    "transformers_cache": StandIn("transformers 5 has no hub.TRANSFORMERS_CACHE", _transformers_cache),
    "litellm": StandIn("imported for a judge that no training calls", _litellm),
    "chat_template_ids": StandIn("transformers 5 returns a dict of apply_chat_template", _chat_template_ids),
    "cuda_memory": StandIn("the scripts log a GPU's memory", _cuda_memory),
    "fp32": StandIn("both scripts load bf16 whatever they are told", _fp32),
    "record": StandIn("writes what each rank trains on, and at which rates; changes nothing", _record),
}


def apply(names: Sequence[str]) -> None:
    for name in names:
        STAND_INS[name].apply()
