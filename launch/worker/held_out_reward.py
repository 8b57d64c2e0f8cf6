"""The lm-evaluation-harness task of RLVR's held-out prompts: the run's own verifiers score a sampled
answer. The task is written and scored in the trainer's interpreter.

Answers are sampled as in training, and a truncated answer earns the reward that it earned there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .held_out import write_task_files
from .json_codec import decode
from .trl_options import BY_ROW, VerifierOption
from .verifiers import VerifierCall, VerifierProcess

REWARD_METRIC = "reward"  # the metric
_NAME = "held_out_reward"
_TASK = """\
doc_to_target: target
output_type: generate_until
generation_kwargs: {{ until: [], max_gen_toks: {tokens}, do_sample: true, temperature: {heat} }}
process_results: !function {name}.score_answer
metric_list: [{{ metric: reward, aggregation: mean, higher_is_better: true }}]
"""


@dataclass(frozen=True)
class RewardSpec:
    """How the held-out prompts of a run are answered and scored."""

    verifier: str  # the entry's option `verifier`
    tokens: int  # maximum tokens of an answer: recipe.response_length
    temperature: float


@dataclass
class AnswerScorer:
    """Scores answers as the training does, in a process of the verifiers' own."""

    option: VerifierOption
    weights: Mapping[str, float]
    tokens: int
    tokenizer: Any
    process: VerifierProcess

    def score(self, row: Mapping[str, Any], answer: str) -> float:
        """Return the weighted sum of the verifiers' scores; a verifier that fails gives 0.

        Raises VerifierError if a verifier can't be loaded.
        """
        reward = 0.0
        truncated = self.option.truncated_reward
        ids = self.tokenizer.encode(answer, add_special_tokens=False)
        for name, weight in self.weights.items():
            if not self.option.judges(name, row):
                continue
            if truncated is not None and len(ids) >= self.tokens:
                reward += weight * truncated
                continue
            outcome = self.process.score(VerifierCall(name, row["prompt"], answer, row, ids))
            reward += weight * (outcome.score or 0.0)
        return reward


_scorers: list[AnswerScorer] = []  # the last one scores, since the harness calls a bare function


def score_answer(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Return the reward of the answer to a question."""
    return {REWARD_METRIC: _scorers[-1].score(json.loads(doc["row"]), results[0])}


def write_reward_task(
    rows: Path, folder: Path, spec: RewardSpec, tokenizer: Any, context: int
) -> int:
    """Write the task of the prompts that leave room for an answer in `context` tokens; return the
    number of the other prompts.
    """
    docs = []
    dropped = 0
    datasets = []
    for line in rows.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        prompt = tokenizer.apply_chat_template(
            row["prompt"], tokenize=False, add_generation_prompt=True
        )
        if len(tokenizer.encode(prompt, add_special_tokens=False)) + spec.tokens > context:
            dropped += 1
            continue
        datasets.append(row.get("dataset"))
        docs.append({"prompt": prompt, "target": row.get("ground_truth") or "", "row": line})
    text = _TASK.format(name=_NAME, tokens=spec.tokens, heat=spec.temperature)
    write_task_files(folder, _NAME, text, docs)
    module = f"from {__package__}.{_NAME} import score_answer\n"
    (folder / f"{_NAME}.py").write_text(module, encoding="utf-8")
    option = decode(VerifierOption, spec.verifier)
    weights = option.names_in(datasets if BY_ROW in option.verifiers else ())
    process = VerifierProcess(list(weights), option.seconds)
    _scorers.append(AnswerScorer(option, weights, spec.tokens, tokenizer, process))
    return dropped
