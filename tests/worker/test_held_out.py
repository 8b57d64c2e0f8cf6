"""The tasks of held-out rows: what they ask is what the chat template would train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launch.worker.held_out import bits, exact, most_likely, write_tasks

pytest.importorskip("transformers", reason="the `train` dependencies are not installed")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from launch.demo.make_model import make_tokenizer

    return make_tokenizer()


def turns(*texts: str) -> list[dict[str, str]]:
    return [
        {"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)
    ]


def write(
    folder: Path, tokenizer: Any, rows: list[dict[str, Any]], context: int = 500
) -> tuple[int, dict[str, Any]]:
    """Write the tasks; return how many rows are left out, and the questions of each task."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dropped = write_tasks(folder / "rows.jsonl", folder / "tasks", tokenizer, context)
    files = sorted((folder / "tasks").glob("*.yaml"))
    return dropped, {
        file.stem: [
            json.loads(line) for line in file.with_suffix(".jsonl").read_text().splitlines()
        ]
        for file in files
    }


def test_prompt_and_answer_are_the_row_in_the_chat_template(tmp_path: Path, tokenizer: Any) -> None:
    messages = turns("Hi", "Hello", "What is {{ 1 + 1 }}?", "[1, 2]")
    dropped, tasks = write(tmp_path, tokenizer, [{"messages": messages}])
    [doc] = tasks["held_out_loss"]
    assert dropped == 0 and list(tasks) == ["held_out_exact", "held_out_loss"]
    assert doc["prompt"] + doc["answer"] == tokenizer.apply_chat_template(messages, tokenize=False)
    assert doc["prompt"].endswith("<|assistant|>\n") and doc["answer"].startswith("[1, 2]")
    assert doc["text"] == "[1, 2]"


def test_rows_that_do_not_fit_are_dropped_and_long_answers_are_not_expected_word_for_word(
    tmp_path: Path, tokenizer: Any
) -> None:
    rows = [{"messages": turns("Hi", "Hello")}, {"messages": turns("Hi", "word " * 60)}]
    rows += [{"messages": turns("Hi " * 600, "Hello")}]
    dropped, tasks = write(tmp_path, tokenizer, rows)
    assert dropped == 1
    assert [len(docs) for docs in (tasks["held_out_loss"], tasks["held_out_exact"])] == [2, 1]
    dropped, tasks = write(tmp_path, tokenizer, rows, context=4)
    assert (dropped, tasks) == (3, {}), "tasks of an earlier evaluation do not stay"


def test_pairs_ask_which_answer_is_more_likely(tmp_path: Path, tokenizer: Any) -> None:
    pair = {"chosen": turns("Hi", "Hello"), "rejected": turns("Hi", "Go away")}
    _, tasks = write(tmp_path, tokenizer, [pair])
    assert list(tasks) == ["held_out_choice", "held_out_loss"]
    chosen, rejected = tasks["held_out_choice"][0]["choices"]
    assert chosen.startswith("Hello") and rejected.startswith("Go away")


def test_bad_answers_are_asked_for_apart(tmp_path: Path, tokenizer: Any) -> None:
    rows = [
        {"messages": turns("Hi", "Hello"), "label": True},
        {"messages": turns("Hi", "Go away"), "label": False},
    ]
    _, tasks = write(tmp_path, tokenizer, rows)
    assert {name: [doc["text"] for doc in docs] for name, docs in tasks.items()} == {
        "held_out_bad": ["Go away"],
        "held_out_exact": ["Hello"],
        "held_out_loss": ["Hello"],
    }
    better = {}
    for name in ("held_out_bad", "held_out_loss"):
        text = (tmp_path / "tasks" / f"{name}.yaml").read_text(encoding="utf-8")
        better[name] = "higher_is_better: true" in text
    assert better == {"held_out_bad": True, "held_out_loss": False}


def test_rows_that_name_their_tasks_become_these(tmp_path: Path, tokenizer: Any) -> None:
    rows: list[dict[str, Any]] = [
        {"task": name, "messages": turns("Hi", name)} for name in ("b", "a", "b")
    ]
    rows += [{"task": "pairs", "chosen": turns("Hi", "Hello"), "rejected": turns("Hi", "Go away")}]
    dropped, tasks = write(
        tmp_path, tokenizer, [*rows, {"task": "a", "messages": turns("Hi", "word " * 200)}]
    )
    assert dropped == 1
    assert {name: [doc["text"] for doc in docs] for name, docs in tasks.items()} == {
        "a": ["a"],
        "b": ["b", "b"],
        "pairs": ["Hello"],
    }
    assert tasks["b"][0]["answer"] == "b<|end|>" and len(tasks["pairs"][0]["choices"]) == 2
    texts = {
        name: (tmp_path / "tasks" / f"{name}.yaml").read_text(encoding="utf-8") for name in tasks
    }
    assert "held_out.most_likely" in texts["a"] and "multiple_choice" in texts["pairs"]


def test_scores() -> None:
    assert most_likely({}, [(-0.5, True)]) == {"exact_answers": 1.0}
    assert most_likely({}, [(-0.5, False)]) == {"exact_answers": 0.0}
    assert bits({"text": "four"}, [(-2.772588722239781, True)]) == {"bits": pytest.approx(1.0)}
    assert exact({"text": "It is red."}, [" It is red.\n"]) == {"exact_answers": 1.0}
    assert exact({"text": "It is red."}, ["It is red. It"]) == {"exact_answers": 0.0}
