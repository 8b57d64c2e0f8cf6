"""Finds the objects of a training run from inside it: its model, optimizer and data loader."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

_LIBRARIES = ("trl", "transformers", "accelerate", "torch", "deepspeed")
_DEPTH = 40  # outer frames to search; the trainers' loops are within fifteen


@dataclass(frozen=True)
class TrainerObjects:
    """The objects of one training run; a field is None if the object was not found."""

    accelerator: Any
    wrapped: Any = None  # the prepared model
    model: Any = None  # the causal language model below DDP, DeepSpeed, compilation and PEFT
    engine: Any = None  # DeepSpeed's
    optimizer: Any = None  # torch's or DeepSpeed's, below accelerate's wrapper
    dataloader: Any = None  # the source of the training batches
    trainer: Any = None  # transformers' Trainer
    tokenizer: Any = None
    arguments: Any = None  # the script's own, of open-instruct
    step: int | None = None  # optimizer steps already done
    checkpoint: str | None = None


def class_name(instance: Any) -> str:
    """Return the class of an object by the name that its library has for it: that of a subclass
    which launch makes of TRL's trainer is `DPOTrainer`.
    """
    for cls in type(instance).__mro__:
        if cls.__module__.partition(".")[0] in _LIBRARIES:
            return cls.__name__
    return type(instance).__name__


def unwrap(model: Any) -> Any:
    """Return the transformers model below DDP, DeepSpeed, torch.compile and PEFT."""
    inner = _wrapped_model(model)
    while inner is not None:
        model = inner
        inner = _wrapped_model(model)
    get_base = getattr(model, "get_base_model", None)
    return get_base() if callable(get_base) else model


def _wrapped_model(model: Any) -> Any:
    """Return the model that DDP, DeepSpeed or torch.compile has wrapped; None without a wrapper."""
    for name in ("_orig_mod", "module"):
        inner = getattr(model, name, None)
        if inner is not None and hasattr(inner, "named_modules"):
            return inner
    return None


def find_forward(model: Any) -> Any:
    """Return the module whose forward pass a trainer calls.

    Of a reward model that is the backbone (open_instruct/model_utils.py, `get_reward`).
    """
    model = unwrap(model)
    return model.base_model if type(model).__name__.endswith("ForSequenceClassification") else model


def frames() -> Iterator[FrameType]:
    """Yield the frames of the caller and outwards, innermost first, at most _DEPTH."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def find_frame(*names: str) -> FrameType | None:
    """Return the innermost outer frame that has local variables of all these names."""
    for frame in frames():
        if all(name in frame.f_locals for name in names):
            return frame
    return None


def find_trainer_objects(accelerator: Any, loaded: str | None) -> TrainerObjects:
    """Find the objects of the run that uses `accelerator`; call it from inside the training loop.

    `loaded` is the checkpoint that was passed to `Accelerator.load_state`, if there was one.
    """
    local = _find_loop_variables()
    trainer = local.get("trainer")
    wrapped = _training_model(accelerator)
    optimizers = getattr(accelerator, "_optimizers", [])
    engine = getattr(getattr(accelerator, "deepspeed_engine_wrapped", None), "engine", None)
    loaders = getattr(accelerator, "_dataloaders", [])
    if trainer is not None:
        step = trainer.state.global_step
        tokenizer = getattr(trainer, "processing_class", None)
    else:
        step = local.get("completed_steps")
        tokenizer = local.get("tokenizer")
    return TrainerObjects(
        accelerator=accelerator,
        wrapped=wrapped,
        model=None if wrapped is None else unwrap(wrapped),
        engine=engine,
        optimizer=getattr(optimizers[0], "optimizer", None) if optimizers else None,
        dataloader=loaders[0] if loaders else None,
        trainer=trainer,
        tokenizer=tokenizer,
        arguments=local.get("args"),
        step=step if isinstance(step, int) else None,
        checkpoint=loaded or local.get("resume_from_checkpoint"),
    )


def _training_model(accelerator: Any) -> Any:
    """Return the prepared model that is trained; a reference model is not in training mode."""
    for model in reversed(getattr(accelerator, "_models", [])):
        has_gradients = any(parameter.requires_grad for parameter in model.parameters())
        if model.training and has_gradients:
            return model
    return None


def _find_loop_variables() -> dict[str, Any]:
    """Find variables of the outer frames that train.

    They are transformers' Trainer, and the `args`, `tokenizer` and `completed_steps` of
    open-instruct's loops.
    """
    transformers_trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    variables: dict[str, Any] = {}
    for frame in frames():
        local = frame.f_locals
        owner = local.get("self")
        if transformers_trainer is not None and isinstance(owner, transformers_trainer):
            variables.setdefault("trainer", owner)
            if isinstance(local.get("resume_from_checkpoint"), str):
                variables.setdefault("resume_from_checkpoint", local["resume_from_checkpoint"])
        if "accelerator" in local and "tokenizer" in local:
            variables.setdefault("completed_steps", local.get("completed_steps"))
            variables.setdefault("tokenizer", local["tokenizer"])
            variables.setdefault("args", local.get("args"))
    return variables
