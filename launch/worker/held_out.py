"""The tasks of a run's held-out rows for lm-evaluation-harness, written in the trainer's
interpreter.

`held_out_loss`: the bits per byte of a row's last answer, with its end, as it would be trained.
`held_out_exact`: whether the model writes a short answer exactly, without sampling.
`held_out_choice`: of a pair, whether the chosen answer is more likely than the rejected one.

Rows that name a `task` become tasks of these names instead: whether the answer and its end are what
the model writes without sampling, read from one pass, or of pairs which answer is more likely.

This file is copied beside the tasks, which call `bits`, `exact` and `most_likely`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

BITS, EXACT = "bits", "exact_answers"  # metrics
ROWS = "held_out.jsonl"  # the rows, in a folder of tasks
_SHORT = 200  # bytes of an answer that can be expected word for word
_MOST_EXACT = 100  # rows whose answers are generated
_TASK = """\
task: {name}
dataset_path: json
dataset_kwargs: {{ data_files: {{ test: {data} }} }}
test_split: test
num_fewshot: 0
doc_to_text: prompt
target_delimiter: ""
"""
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
    return {EXACT: float(results[0].strip() == doc["text"].strip())}


def most_likely(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
    """Return whether each token of the answer is the most likely one."""
    return {EXACT: float(results[0][1])}


def write_tasks(rows: Path, folder: Path, tokenizer: Any, context: int) -> int:
    """Write the tasks of the rows that fit into `context` tokens; return how many are left out."""
    given = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    docs = [doc for row in given for doc in _render(row, tokenizer, context)]
    if names := dict.fromkeys(doc["task"] for doc in docs if "task" in doc):
        for name in names:
            of_name = [doc for doc in docs if doc["task"] == name]
            write_task(folder, name, CHOICE if "choices" in of_name[0] else _MOST_LIKELY, of_name)
        return len(given) - len(docs)
    pairs = [doc for doc in docs if "choices" in doc]
    short = [doc for doc in docs if len(doc["text"].encode()) <= _SHORT and not pairs][:_MOST_EXACT]
    # a longer answer is another one
    room = 2 * max((doc["tokens"] for doc in short), default=0) + 8
    short = [doc for doc in short if doc["prompt_tokens"] + room <= context]
    exact = _EXACT.replace("TOKENS", str(room))
    for name, text, of_task in (
        ("loss", LOSS, docs),
        ("exact", exact, short),
        ("choice", CHOICE, pairs),
    ):
        (folder / f"held_out_{name}.yaml").unlink(missing_ok=True)
        if of_task:
            write_task(folder, f"held_out_{name}", text, of_task)
    return len(given) - len(docs)


def write_task(folder: Path, name: str, text: str, docs: Sequence[Mapping[str, Any]]) -> None:
    """Write one task: its questions, and `text` below what all tasks have in common."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs), encoding="utf-8")
    (folder / Path(__file__).name).write_text(
        Path(__file__).read_text(encoding="utf-8"), encoding="utf-8"
    )
    head = _TASK.format(name=name, data=json.dumps(str(data)))
    (folder / f"{name}.yaml").write_text(head + text, encoding="utf-8")


def _render(row: Mapping[str, Any], tokenizer: Any, context: int) -> Iterator[dict[str, Any]]:
    """Yield a row as a question of the tasks, in the tokenizer's chat template; nothing for one
    that does not fit.
    """
    conversations = [row[name] for name in ("messages", "chosen", "rejected") if name in row]
    prompt = tokenizer.apply_chat_template(
        conversations[0][:-1], tokenize=False, add_generation_prompt=True
    )
    answers = []
    for messages in conversations:
        whole = tokenizer.apply_chat_template(messages, tokenize=False)
        answers.append(
            whole[len(prompt) :] if whole.startswith(prompt) else messages[-1]["content"]
        )
    lengths = [len(tokenizer.encode(text, add_special_tokens=False)) for text in (prompt, *answers)]
    if lengths[0] + max(lengths[1:]) <= context:
        text = conversations[0][-1]["content"]
        doc = {
            "prompt": prompt,
            "answer": answers[0],
            "text": text,
            "tokens": lengths[1],
            "prompt_tokens": lengths[0],
        }
        named = {"task": row["task"]} if "task" in row else {}
        yield doc | named | ({"choices": answers} if len(answers) > 1 else {})
