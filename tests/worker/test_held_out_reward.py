"""The task of held-out prompts: real verifiers score answers as they did in training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launch.worker import held_out_reward
from launch.worker.held_out_reward import RewardSpec, score_answer, write_reward_task

pytest.importorskip("transformers", reason="the `train` dependencies are not installed")

RULES = """
def right(completions, ground_truth, **columns):
    return [float(truth in answer[0]["content"]) for answer, truth in zip(completions, ground_truth)]

def fails(completions, **columns): raise ValueError("unit")
"""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from launch.demo.make_model import make_tokenizer

    return make_tokenizer()


def row(text: str, truth: str) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": text}], "ground_truth": truth}


def test_an_answer_earns_what_it_would_in_training(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "rules.py").write_text(RULES, encoding="utf-8")
    rows = [row("1 + 1?", "2"), row("long " * 200, "3")]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in rows))
    option = {
        "verifiers": {f"{tmp_path / 'rules.py'}:right": 1.0, "exact": 0.5},
        "seconds": 20.0,
        "window": 64,
        "truncated_reward": -1.0,
    }
    spec = RewardSpec(json.dumps(option), 8, 0.7)
    task = tmp_path / "task"
    assert write_reward_task(tmp_path / "rows.jsonl", task, spec, tokenizer, 100) == 1
    try:
        [doc] = map(json.loads, (task / "held_out_reward.jsonl").read_text().splitlines())
        expected = tokenizer.apply_chat_template(
            rows[0]["prompt"], tokenize=False, add_generation_prompt=True
        )
        assert (doc["prompt"], doc["target"]) == (expected, "2")
        cut_off = "2 " * 20
        for answer, reward in (("2", 1.5), ("is 2", 1.0), ("3", 0.0), (cut_off, -1.5)):
            assert score_answer(doc, [answer]) == {"reward": reward}
        text = (task / "held_out_reward.yaml").read_text()
        assert "temperature: 0.7" in text and "max_gen_toks: 8" in text
    finally:
        held_out_reward._scorers.pop().process.close()


def test_a_verifier_that_fails_gives_nothing(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "rules.py").write_text(RULES, encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": row("?", "")["prompt"]}))
    option = {"verifiers": {f"{tmp_path / 'rules.py'}:fails": 1.0}, "seconds": 20.0, "window": 64}
    spec = RewardSpec(json.dumps(option), 8, 1.0)
    assert write_reward_task(tmp_path / "rows.jsonl", tmp_path / "t", spec, tokenizer, 100) == 0
    try:
        [doc] = map(json.loads, (tmp_path / "t" / "held_out_reward.jsonl").read_text().splitlines())
        assert score_answer(doc, ["2"]) == {"reward": 0.0}
    finally:
        held_out_reward._scorers.pop().process.close()
