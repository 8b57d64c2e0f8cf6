"""Answers prompts with a model, in the trainer's interpreter.

`main` takes a `ModelRequest`. It reads requests from stdin and writes an answer to each on stdout,
a JSON object a line:

    {"measure": [CONVERSATION, ...]}  ->  {"lengths": [prompt tokens, ...], "context": tokens}
    {"messages": CONVERSATION, "seed": 0, "temperature": 0.0, "top_p": 1.0, "max_tokens": 256}
        ->  {"text": "...", "tokens": generated tokens, "finished": whether the model ended its answer}

A CONVERSATION is a list of `{"role": ..., "content": ...}`. The model is loaded when the first
answer is requested.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TextIO

from .json_codec import decode
from .model_loading import ModelRequest, load_model, read_base

GREEDY: Mapping[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
_UNLIMITED = 1 << 30  # a tokenizer without a limit has an astronomic one


def encode_conversation(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> Any:
    """Return a conversation in the chat template, as the inputs of a model that is to continue
    it.
    """
    return tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
    )


def write_answer(
    model: Any,
    tokenizer: Any,
    messages: Sequence[Mapping[str, str]],
    *,
    max_tokens: int,
    context: int,
    sampling: Mapping[str, Any] = GREEDY,
) -> dict[str, Any]:
    """Generate the next turn: its text, its number of tokens, and whether the model ended it.

    An answer ends at the tokenizer's end of a sequence, which the template trains, or at one of the
    model's.
    """
    inputs = encode_conversation(tokenizer, messages).to(model.device)
    prompt = inputs["input_ids"].shape[1]
    ends = _end_tokens(model, tokenizer)
    padding = tokenizer.pad_token_id
    if padding is None:
        padding = tokenizer.eos_token_id
    sequences = model.generate(
        **inputs,
        max_new_tokens=min(max_tokens, context - prompt),
        eos_token_id=sorted(ends),
        pad_token_id=int(padding),
        **sampling,
    )
    answer = sequences[0][prompt:]
    return {
        "text": tokenizer.decode(answer, skip_special_tokens=True),
        "tokens": len(answer),
        "finished": len(answer) > 0 and int(answer[-1]) in ends,
    }


def _end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Return the tokens that end an answer."""
    of_model = model.generation_config.eos_token_id
    if not isinstance(of_model, list):
        of_model = [of_model]
    return {token for token in (tokenizer.eos_token_id, *of_model) if token is not None}


class Generator:
    """A model folder's tokenizer and, once it is needed, its model."""

    def __init__(self, model: ModelRequest) -> None:
        from transformers import AutoConfig, AutoTokenizer

        self._request = model
        self._tokenizer = AutoTokenizer.from_pretrained(model.folder)
        self._config = AutoConfig.from_pretrained(read_base(model.folder))

    @cached_property
    def _model(self) -> Any:
        model, _ = load_model(
            self._request.folder, quantized=self._request.quantized, state=self._request.state
        )
        return model

    def measure(self, conversations: Sequence[Sequence[Mapping[str, str]]]) -> dict[str, Any]:
        """Return the tokens of each prompt in the chat template, and how many fit into the
        model.
        """
        lengths = []
        for messages in conversations:
            inputs = encode_conversation(self._tokenizer, messages)
            lengths.append(inputs["input_ids"].shape[1])
        return {"lengths": lengths, "context": self._context()}

    def answer(
        self,
        messages: Sequence[Mapping[str, str]],
        seed: int,
        temperature: float,
        top_p: float,
        max_tokens: int,
    ) -> dict[str, Any]:
        """Generate the next turn of a conversation; greedily for temperature 0."""
        from transformers import set_seed

        self._refuse_unknown_tokens(messages)
        set_seed(seed)
        sampling = GREEDY
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p}
        return write_answer(
            self._model,
            self._tokenizer,
            messages,
            max_tokens=max_tokens,
            context=self._context(),
            sampling=sampling,
        )

    def _refuse_unknown_tokens(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Raise ValueError if the tokenizer gives tokens that the model does not have."""
        largest = int(encode_conversation(self._tokenizer, messages)["input_ids"].max())
        rows = self._model.get_input_embeddings().weight.shape[0]
        if largest >= rows:
            raise ValueError(f"its tokenizer gives token {largest}, and its weights have {rows}")

    def _context(self) -> int:
        """Return the tokens that fit into the model."""
        limit = min(int(self._tokenizer.model_max_length), _UNLIMITED)
        return min(limit, getattr(self._config, "max_position_embeddings", limit))


def _answer_request(generator: Generator, request: Mapping[str, Any]) -> dict[str, Any]:
    if "measure" in request:
        return generator.measure(request["measure"])
    return generator.answer(**request)


def serve(generator: Generator, requests: TextIO, answers: TextIO) -> None:
    """Answer each line of `requests`."""
    for line in requests:
        request = json.loads(line)
        answer = _answer_request(generator, request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main(arguments: Sequence[str]) -> None:
    """Serve the requests of the launcher; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(Generator(decode(ModelRequest, arguments[0])), sys.stdin, answers)
