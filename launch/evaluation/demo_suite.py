"""The demo's own tasks, made of the demo's chats.

`demo_order` asks which of two sentences is the documentation and which has its words in another order,
`demo_likelihood` how likely the documentation is, in bits per byte. Both are log-likelihoods: a tiny model writes no
answer that could be right. Any of the questions may be among those that the demo trained on.

`demo_modules` samples answers to questions that `demo_rlvr` held out, and scores them with its verifier.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.demo import DEMO_KEY, rewards
from launch.demo.ensure import prompt_rows, read_rows
from launch.worker.held_out import CHOICE, LOSS, write_task

_QUESTIONS = 100
_HELD_OUT = 200  # questions of `demo_modules`
_WORDS = 16  # of a sentence whose words are put into another order
_VERSION = 4
_MODULES = """\
task: demo_modules
dataset_path: json
dataset_kwargs: {{ data_files: {{ test: {data} }} }}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt[0].content}}}}"
doc_to_target: "{{{{ground_truth}}}}"
generation_kwargs: {{ until: [], max_gen_toks: 48, do_sample: true, temperature: 1.0 }}
process_results: !function modules.process_results
metric_list: [{{ metric: reward, aggregation: mean, higher_is_better: true }}]
num_fewshot: 0
"""
_REWARD = """

def process_results(doc, results):
    return {"reward": names_a_module([results[0]], [doc["ground_truth"]])[0]}
"""


def ensure_module_suite(cache: Path) -> Path:
    """Return the folder of `demo_modules`, which is made if it is missing."""
    folder = cache / "demo" / f"modules-{_VERSION}-{DEMO_KEY}"
    if not (folder / "modules.yaml").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        data = folder / "prompts.jsonl"  # not the name of a run's held-out rows
        data.write_text("".join(f"{row}\n" for row in prompt_rows()[1][:_HELD_OUT]), encoding="utf-8")
        verifier = Path(rewards.__file__).read_text(encoding="utf-8")
        (folder / "modules.py").write_text(verifier + _REWARD, encoding="utf-8")
        (folder / "modules.yaml").write_text(_MODULES.format(data=json.dumps(str(data))), encoding="utf-8")
    return folder


def ensure_demo_suite(cache: Path) -> Path:
    """Return the folder of the tasks, which is made if it is missing."""
    folder = cache / "demo" / f"tasks-{_VERSION}-{DEMO_KEY}"
    if (folder / "demo_likelihood.yaml").is_file():
        return folder
    lines = read_rows("chats").splitlines()
    rows = [row for number, line in enumerate(lines) if (row := _make_row(number, json.loads(line)["messages"]))]
    for name, text in (("demo_order", CHOICE), ("demo_likelihood", LOSS)):
        write_task(folder, name, text, rows[-_QUESTIONS:])
    return folder


def _make_row(number: int, messages: Sequence[Mapping[str, str]]) -> dict[str, Any] | None:
    """Return the question of a chat; None for an answer that is too short to be put into another order.

    The first and the last word stay: a sentence has the same tokens in both orders, so an untrained model guesses.
    """
    question, right = (message["content"] for message in messages)
    words = right.rpartition("`\n\n")[2].split()[:_WORDS]
    inner = words[1:-1]
    random.Random(number).shuffle(inner)
    if len(words) < _WORDS or inner == words[1:-1]:
        return None
    shuffled = [words[0], *inner, words[-1]]
    return {"prompt": question, "answer": right, "text": right, "choices": [" ".join(words), " ".join(shuffled)]}
