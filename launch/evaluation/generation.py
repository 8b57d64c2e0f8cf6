"""Generates answers: one worker per model, in its run's interpreter and chat template.

Prompts come from the command line, or from a file: JSON lines, or one prompt a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launch.data.formats import read_prompt
from launch.data.row_errors import RowError
from launch.data.rows import Row, read_rows
from launch.data.turns import Message
from launch.errors import refusal
from launch.evaluation.models import ModelSource, require_chat_template, require_packages
from launch.host.interpreter import WorkerProcess, open_worker
from launch.worker.finding import Finding

Conversation = Sequence[Mapping[str, Any]]
Messages = list[Message]
_MIN_ANSWER = 8  # tokens that must fit after a prompt


@dataclass(frozen=True)
class Sampling:
    """The sampling parameters of answers."""

    seed: int = 0  # set for each answer, so that an answer does not depend on those before it
    temperature: float = 0.0  # 0 means that the most likely token is always chosen
    top_p: float = 1.0
    max_tokens: int = 256


@dataclass(frozen=True)
class Answer:
    """The answer of a model to one prompt."""

    text: str
    tokens: int
    finished: bool  # False if it was cut off at the limit of tokens


class Responder:
    """A live worker with one model."""

    def __init__(self, model: ModelSource, worker: WorkerProcess) -> None:
        self._model = model
        self._worker = worker

    def refuse_long_prompts(self, conversations: Sequence[Conversation]) -> None:
        """Refuse prompts that leave no room for an answer, before the model is loaded.

        Raises UserError: prompt_too_long.
        """
        measured = self._request({"measure": list(conversations)})
        for number, length in enumerate(measured["lengths"], start=1):
            if length + _MIN_ANSWER > measured["context"]:
                context = f"the context of {self._model.label} is {measured['context']:,}"
                message = f"prompt {number} has {length:,} tokens, and {context}"
                raise refusal("prompt_too_long", message, "command line", "shorten the prompt")

    def answer(self, conversation: Conversation, sampling: Sampling) -> Answer:
        """Generate the next turn. Raises UserError: generation_failed."""
        return Answer(**self._request({"messages": list(conversation), **asdict(sampling)}))

    def _request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        line = ""
        with suppress(BrokenPipeError):
            self._worker.requests.write(json.dumps(request) + "\n")
            self._worker.requests.flush()
            line = self._worker.answers.readline()
        if not line:
            message = f"{self._model.label} gives no answer: {self._worker.wait()}"
            raise refusal("generation_failed", message, str(self._model.folder))
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def open_responder(model: ModelSource) -> Iterator[Responder]:
    """Start a worker with `model` and end it.

    Raises UserError: no_chat_template, no_interpreter, missing_packages.
    """
    require_chat_template(model)
    require_packages(model, "torch", "transformers")
    with open_worker(model.python, "generating", model.request) as worker:
        yield Responder(model, worker)


def as_conversation(prompt: str, system: str | None = None) -> Messages:
    """Return a conversation that begins with the prompt."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": prompt}]


def read_prompts(path: Path, system: str | None = None) -> list[Messages]:
    """Return one conversation per line.

    A line is a prompt, or, in a .jsonl file, JSON with `prompt` or `messages`. A final answer among
    the messages is dropped.

    Raises UserError: bad_prompts.
    """
    system_turn = as_conversation("", system)[:-1]
    try:
        if path.suffix == ".jsonl":
            conversations = [[*system_turn, *_read_row(row)] for row in read_rows(path)]
        else:
            lines = path.read_text(encoding="utf-8").split("\n")
            prompts = [line.strip() for line in lines]
            conversations = [as_conversation(prompt, system) for prompt in prompts if prompt]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        message = f"{path} cannot be read: {reason}"
        raise refusal("bad_prompts", message, "override prompts") from error
    if not conversations:
        raise refusal("bad_prompts", f"{path} has no prompts", "override prompts")
    return conversations


def _read_row(row: Row) -> Messages:
    cure = 'write {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}'
    try:
        if isinstance(row.value, dict):
            return read_prompt(row.value)
        reason = row.value.message if isinstance(row.value, Finding) else "not a JSON object"
    except RowError as error:
        reason = str(error)
    raise refusal("bad_prompts", f"the row holds no prompt: {reason}", row.place, cure)
