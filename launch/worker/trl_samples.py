"""What a model writes while TRL trains it: answers to a few fixed prompts, sent as events.

SFT and DPO: `answer_prompts`, for recipe.sample_every. RLVR samples by its own rollouts
(trl_rlvr.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from statistics import fmean
from typing import Any

from .channel import EventWriter
from .generating import encode_conversation, write_answer

_PROMPTS = 3
_ROWS_SEARCHED = 100  # rows that are searched for prompts
_TOKENS = 128  # maximum number of tokens of an answer
_TEXT = 600  # characters of a recorded prompt or completion


def send_completion(
    events: EventWriter, step: int, prompt: Any, completion: str, **more: Any
) -> None:
    """Send one completion of a prompt, which is a text or a conversation."""
    asked = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
    events.emit(
        "completion", step=step, prompt=asked[:_TEXT], completion=completion[:_TEXT], **more
    )


def find_prompts(rows: Any, tokenizer: Any, longest: int) -> list[Any]:
    """Return the first conversations of up to `longest` tokens, without their last answers.

    Rows of plain text have none.
    """
    prompts: list[Any] = []
    for row in islice(rows, _ROWS_SEARCHED):
        prompt = _read_prompt(row)
        if not prompt:
            continue
        tokens = encode_conversation(tokenizer, prompt)["input_ids"].shape[1]
        if tokens <= longest:
            prompts.append(prompt)
        if len(prompts) == _PROMPTS:
            break
    return prompts


def _read_prompt(row: Mapping[str, Any]) -> Any:
    """Return the prompt of a row as messages; None if it has none."""
    prompt = row.get("prompt")
    if isinstance(prompt, str) and prompt:
        return [{"role": "user", "content": prompt}]
    if prompt:
        return prompt
    conversation = row.get("messages") or row.get("chosen")
    return conversation[:-1] if isinstance(conversation, list) else None


def sampling_class(entry: Any, every: int | None, sample: Callable[[Any], dict[str, float]]) -> Any:
    """Return a subclass of `entry` (see `launch.worker.trl_trainer.entry_class`) that calls
    `sample(trainer)`.

    It is called before the first step, after each `every` steps (without `every`: in the middle),
    and after the last step. `sample` must not change the training's random numbers, and returns
    metrics of the step.
    """

    class SamplingTrainer(entry):  # type: ignore[misc]
        def training_step(self, *arguments: Any, **options: Any) -> Any:
            if self.state.global_step == 0 and not hasattr(self, "_begun"):
                self._begun = True
                sample(self)
            return super().training_step(*arguments, **options)

        def log(self, logs: dict[str, float], *arguments: Any, **options: Any) -> None:
            if self.model.training and "loss" in logs and self._is_sampled():
                began = time.perf_counter()
                logs.update(sample(self), sample_seconds=time.perf_counter() - began)
            super().log(logs, *arguments, **options)

        def _is_sampled(self) -> bool:
            step = self.state.global_step
            last = self.state.max_steps
            middle = -(-last // 2)
            interval = middle if every is None else every
            return bool(step % interval == 0 or step >= last)

    return SamplingTrainer


def answer_prompts(
    trainer: Any, prompts: Sequence[Sequence[Mapping[str, str]]], events: EventWriter
) -> dict[str, float]:
    """Send answers that are generated greedily, on all ranks, since each may hold a shard of the
    weights.
    """
    import torch
    from trl.models.utils import unwrap_model_for_generation

    tokenizer: Any = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    trainer.model.eval()
    try:
        with (
            unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model,
            torch.no_grad(),
        ):
            context = getattr(model.config, "max_position_embeddings", tokenizer.model_max_length)
            answers = [
                write_answer(model, tokenizer, prompt, max_tokens=_TOKENS, context=context)
                for prompt in prompts
            ]
    finally:
        trainer.model.train()
    if trainer.accelerator.is_main_process:
        for prompt, answer in zip(prompts, answers, strict=True):
            send_completion(events, trainer.state.global_step, prompt, answer["text"])
    return {
        "sample_tokens": fmean(answer["tokens"] for answer in answers),
        "sample_ended": fmean(answer["finished"] for answer in answers),
    }
