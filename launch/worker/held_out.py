"""The tasks of a run's held-out rows for lm-evaluation-harness, written in the trainer's
interpreter.

`held_out_loss`: the bits per byte of a row's last answer, with its end, as it would be trained.
`held_out_exact`: whether the model writes a short answer exactly, without sampling.
`held_out_choice`: whether the chosen answer of a pair is more likely than the rejected one.
`held_out_bad`: the bits per byte of an answer that is labelled bad, more of which are better.

Rows that name a `task` become tasks of these names instead. They measure whether the model would
write the answer and its end without sampling, which one forward pass shows, or for pairs which
answer is more likely.

This file is copied beside the tasks, which call `bits`, `exact` and `most_likely`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# The names of the metrics.
BITS = "bits"
EXACT = "exact_answers"
ROWS = "held_out.jsonl"  # the rows, in a folder of tasks
LABEL = "label"  # the column of KTO's rows: whether the answer is a good one
_SHORT = 200  # bytes of an answer that can be expected word for word
_MOST_EXACT = 100  # rows whose answers are generated
_TASK = """\
task: {name}
dataset_path: json
dataset_kwargs: {{ data_files: {{ test: {data} }} }}
test_split: test
num_fewshot: 0
doc_to_text: prompt
"""
_NO_DELIMITER = 'target_delimiter: ""\n'  # between the prompt and the answer
LOSS = """\
output_type: loglikelihood
doc_to_target: answer
process_results: !function held_out.bits
metric_list: [{ metric: bits, aggregation: mean, higher_is_better: false }]
"""
_EXACT = """\
output_type: generate_until
doc_to_target: text
generation_kwargs: { until: [], max_gen_toks: TOKENS, do_sample: false }
process_results: !function held_out.exact
metric_list: [{ metric: exact_answers, aggregation: mean, higher_is_better: true }]
"""
_MOST_LIKELY = """\
output_type: loglikelihood
doc_to_target: answer
process_results: !function held_out.most_likely
metric_list: [{ metric: exact_answers, aggregation: mean, higher_is_better: true }]
"""
_BAD = LOSS.replace("higher_is_better: false", "higher_is_better: true")
CHOICE = """\
output_type: multiple_choice
doc_to_choice: choices
doc_to_target: 0
metric_list: [{ metric: acc, aggregation: mean, higher_is_better: true }]
"""


def bits(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
    """Return the bits that a model needs for each byte of the answer."""
    return {BITS: -results[0][0] / math.log(2) / max(1, len(doc["text"].encode()))}


def exact(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Return whether the model wrote the answer word for word."""
    return {EXACT: float(results[0].strip() == doc["text"].strip())}


def most_likely(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
    """Return whether each token of the answer is the most likely one."""
    return {EXACT: float(results[0][1])}


def write_tasks(rows: Path, folder: Path, tokenizer: Any, context: int) -> int:
    """Write the tasks of the rows that fit into `context` tokens; return how many are dropped, as
    they are too long.
    """
    docs = []
    dropped = 0
    for line in rows.read_text(encoding="utf-8").splitlines():
        doc = _render(json.loads(line), tokenizer, context)
        if doc is None:
            dropped += 1
        else:
            docs.append(doc)
    names = dict.fromkeys(doc["task"] for doc in docs if "task" in doc)
    if names:
        for name in names:
            _write_named_task(folder, name, docs)
    else:
        _write_own_tasks(folder, docs, context)
    return dropped


def _write_named_task(folder: Path, name: str, docs: Sequence[Mapping[str, Any]]) -> None:
    """Write the task `name` of the questions that name it."""
    of_name = [doc for doc in docs if doc["task"] == name]
    text = CHOICE if "choices" in of_name[0] else _MOST_LIKELY
    write_task(folder, name, text, of_name)


def _write_own_tasks(folder: Path, docs: Sequence[Mapping[str, Any]], context: int) -> None:
    """Write the tasks of rows that name none; a task without a question is removed."""
    pairs = [doc for doc in docs if "choices" in doc]
    bad = [doc for doc in docs if doc.get(LABEL) is False]
    good = [doc for doc in docs if doc.get(LABEL) is not False]
    short = []
    if not pairs:
        short = [doc for doc in good if len(doc["text"].encode()) <= _SHORT][:_MOST_EXACT]
    # A longer answer can't be equal to any of the expected ones.
    max_tokens = 2 * max((doc["tokens"] for doc in short), default=0) + 8
    short = [doc for doc in short if doc["prompt_tokens"] + max_tokens <= context]
    exact_task = _EXACT.replace("TOKENS", str(max_tokens))
    for name, text, questions in (
        ("held_out_loss", LOSS, good),
        ("held_out_bad", _BAD, bad),
        ("held_out_exact", exact_task, short),
        ("held_out_choice", CHOICE, pairs),
    ):
        (folder / f"{name}.yaml").unlink(missing_ok=True)
        if questions:
            write_task(folder, name, text, questions)


def write_task(folder: Path, name: str, text: str, docs: Sequence[Mapping[str, Any]]) -> None:
    """Write a task that is scored by this file, a copy of which is written beside it."""
    write_task_files(folder, name, _NO_DELIMITER + text, docs)
    own_text = Path(__file__).read_text(encoding="utf-8")
    (folder / Path(__file__).name).write_text(own_text, encoding="utf-8")


def write_task_files(folder: Path, name: str, text: str, docs: Sequence[Mapping[str, Any]]) -> None:
    """Write the questions of a task, and its YAML: `text` below what all tasks have in common."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs), encoding="utf-8")
    head = _TASK.format(name=name, data=json.dumps(str(data)))
    (folder / f"{name}.yaml").write_text(head + text, encoding="utf-8")


def _render(row: Mapping[str, Any], tokenizer: Any, context: int) -> dict[str, Any] | None:
    """Return a row as a question of the tasks, in the tokenizer's chat template.

    None is returned for a row that does not fit into `context` tokens.
    """
    conversations = [row[name] for name in ("messages", "chosen", "rejected") if name in row]
    prompt = tokenizer.apply_chat_template(
        conversations[0][:-1], tokenize=False, add_generation_prompt=True
    )
    answers = [_render_answer(messages, prompt, tokenizer) for messages in conversations]
    prompt_tokens = _count_tokens(prompt, tokenizer)
    answer_tokens = [_count_tokens(answer, tokenizer) for answer in answers]
    if prompt_tokens + max(answer_tokens) > context:
        return None
    doc = {
        "prompt": prompt,
        "answer": answers[0],
        "text": conversations[0][-1]["content"],
        "tokens": answer_tokens[0],
        "prompt_tokens": prompt_tokens,
    }
    for name in ("task", LABEL):
        if name in row:
            doc[name] = row[name]
    if len(answers) > 1:
        doc["choices"] = answers
    return doc


def _render_answer(messages: Sequence[Mapping[str, Any]], prompt: str, tokenizer: Any) -> str:
    """Return what follows the prompt in the chat template: the last answer with its end.

    Where the template renders the beginning differently, the bare answer is returned.
    """
    whole = str(tokenizer.apply_chat_template(messages, tokenize=False))
    if whole.startswith(prompt):
        return whole[len(prompt) :]
    return str(messages[-1]["content"])


def _count_tokens(text: str, tokenizer: Any) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))
